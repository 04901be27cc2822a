"""Transforms of tiles against NumPy's Fourier transform and direct sums."""

import chex
import numpy as np
from absl.testing import absltest, parameterized

from capjax.layers import tile_transforms


def correlate(tile, kernel):
  """Valid outputs of the direct sums."""
  rows, columns = (
    n - k + 1 for n, k in zip(tile.shape, kernel.shape, strict=True)
  )
  height, width = kernel.shape
  return np.array(
    [
      [np.sum(tile[y : y + height, x : x + width] * kernel)
       for x in range(columns)]
      for y in range(rows)
    ]
  )  # fmt: skip


def check_correlates(made, size, taps):
  rng = np.random.default_rng(size)
  tile, kernel = rng.normal(size=(size, size)), rng.normal(size=taps)
  parts = int(np.sqrt(made.signs.shape[1]))
  quarters = tile.reshape(parts, size // parts, parts, size // parts)
  quarters = quarters.swapaxes(1, 2).reshape(parts**2, -1)
  got = 0
  for signs, pixels, of_taps, outputs in zip(*made, strict=True):
    products = (pixels @ (signs @ quarters)) * (of_taps @ kernel.ravel())
    got = got + outputs @ products
  want = correlate(tile, kernel)
  np.testing.assert_allclose(got.reshape(want.shape), want, atol=1e-9)


class TileTransformsTest(chex.TestCase):
  @parameterized.parameters((1, 1), (3, 2), (6, 6))
  def test_evaluations_correlate(self, *taps):
    made = tile_transforms.evaluations(*taps)
    check_correlates(made, tile_transforms.EVALUATIONS_TILE, taps)

  @parameterized.product(
    size=(2, 5, 6, 8, 10, 14), taps=((1, 2), (2, 2)), fold=(False, True)
  )
  def test_frequencies_correlate(self, size, taps, fold):
    if fold and not tile_transforms.folds(size):
      with self.assertRaisesRegex(ValueError, f"tile is {size}; quarters"):
        tile_transforms.frequencies(size, taps, fold)
      return
    made = tile_transforms.frequencies(size, taps, fold)
    check_correlates(made, size, taps)
    # Three products for each pair of frequencies, one for those alone.
    alone = 4 if size % 2 == 0 else 1
    points = alone + 3 * (size**2 - alone) // 2
    groups = 4 if fold else 1
    self.assertEqual(made.pixels.shape[:2], (groups, points // groups))
    self.assertEqual(made.pixels.shape[2], size**2 // groups)

  @parameterized.parameters(6, 10)
  def test_points_of_a_tile_are_its_fourier_transform(self, size):
    tile = np.random.default_rng(0).normal(size=(size, size))
    made = tile_transforms.frequencies(size, (2, 2), False)
    alone = 4
    want = np.fft.fft2(tile)
    # a + b comes first, then b, then a.
    sums, b, a = np.split(made.pixels[0, alone:] @ tile.ravel(), 3)
    np.testing.assert_allclose(sums, a + b)
    for value in a + 1j * b:
      self.assertLess(np.min(np.abs(want - value)), 1e-9)

  def test_broken_copies_fail(self):
    made = tile_transforms.frequencies(6, (2, 2), True)
    with self.assertRaises(AssertionError):
      check_correlates(made._replace(signs=np.abs(made.signs)), 6, (2, 2))
    with self.assertRaises(AssertionError):
      check_correlates(made._replace(taps=-made.taps), 6, (2, 2))


if __name__ == "__main__":
  absltest.main()
