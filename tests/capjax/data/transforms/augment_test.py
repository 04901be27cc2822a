"""Augmentations: what they may do to an image, and how often."""

import functools
import math
from unittest import mock

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from capjax.data.transforms import augment

_DTYPES = (jnp.uint8, jnp.float32)


def _draw(function, image, count=1, seed=0, **options):
  """Augments one image many times."""
  many = jax.vmap(lambda key: function(key, image, **options))
  return np.asarray(jax.jit(many)(cases.keys(count, seed)))


def _numbered(height, width, channels=1, dtype=jnp.uint8):
  """An image without zeros, in which every pixel differs."""
  size = height * width * channels
  return jnp.arange(1, size + 1).astype(dtype).reshape(height, width, channels)


def _placed(image, top, left, canvas):
  """Pixel by pixel: the image on a black canvas, cut at its borders."""
  out = np.zeros((*canvas, image.shape[2]), image.dtype)
  for h in range(image.shape[0]):
    for w in range(image.shape[1]):
      if 0 <= h + top < canvas[0] and 0 <= w + left < canvas[1]:
        out[h + top, w + left] = image[h, w]
  return out


def _assert_same_places(drawn, image, tops, lefts):
  """Each draw is one allowed place; each place is met, equally often."""
  places = {
    _placed(np.asarray(image), top, left, drawn.shape[1:3]).tobytes(): 0
    for top in tops
    for left in lefts
  }
  for picture in drawn:
    assert picture.tobytes() in places, "not a shift by whole pixels in range"
    places[picture.tobytes()] += 1
  cases.assert_equally_often(places.values())


def check_every_shift_is_equally_likely(shift, dtype=jnp.uint8):
  image = _numbered(5, 6, dtype=dtype)
  drawn = _draw(shift, image, 2000, max_shift=2)
  _assert_same_places(drawn, image, range(-2, 3), range(-2, 3))


def check_every_place_is_equally_likely(place, dtype=jnp.uint8):
  image = _numbered(4, 3, 2, dtype=dtype)
  drawn = _draw(place, image, 1000, canvas=(6, 7))
  _assert_same_places(drawn, image, range(3), range(5))


def _blob(x, y, height=41, width=61):
  """A smooth spot, x pixels right of and y pixels below the middle."""
  rows = np.arange(height)[:, None] - (height - 1) / 2
  columns = np.arange(width) - (width - 1) / 2
  spot = np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / 8)
  return jnp.asarray(spot[..., None], jnp.float32)


def _spot(pictures):
  """Where the spots are, in pixels from the middle."""
  mass = pictures[..., 0]
  columns = np.arange(mass.shape[2]) - (mass.shape[2] - 1) / 2
  rows = np.arange(mass.shape[1]) - (mass.shape[1] - 1) / 2
  total = mass.sum((1, 2))
  return (
    (mass.sum(1) @ columns) / total,
    (mass.sum(2) @ rows) / total,
  )


def _assert_fills(values, low, high, slack):
  """Values stay in their range and come near both ends."""
  reach = 0.05 * (high - low) + slack
  np.testing.assert_array_less(values, high + slack)
  np.testing.assert_array_less(low - slack, values)
  np.testing.assert_array_less(values.min(), low + reach)
  np.testing.assert_array_less(high - reach, values.max())


def check_rotation_is_rigid_and_in_range(random_affine):
  x, y = _spot(_draw(random_affine, _blob(14, 0), 200, max_rotation=20.0))
  np.testing.assert_allclose(np.hypot(x, y), 14, atol=0.05)
  _assert_fills(np.degrees(np.arctan2(y, x)), -20, 20, 0.2)


def check_scale_is_in_range(random_affine):
  drawn = _draw(random_affine, _blob(10, -10), 200, scale_range=(0.8, 1.2))
  x, y = _spot(drawn)
  _assert_fills(x / 10, 0.8, 1.2, 0.01)
  _assert_fills(-y / 10, 0.8, 1.2, 0.01)
  assert abs(np.corrcoef(x, y)[0, 1]) < 0.3, "the two scales are one draw"


def check_shear_is_in_range(random_affine):
  x, y = _spot(_draw(random_affine, _blob(0, 10), 200, max_shear=0.2))
  np.testing.assert_allclose(y, 10, atol=0.05)
  _assert_fills(x / 10, -0.2, 0.2, 0.01)


def check_translation_is_in_range(random_affine):
  drawn = _draw(random_affine, _blob(0, 0), 200, max_translation=6.0)
  x, y = _spot(drawn)
  _assert_fills(x, -6, 6, 0.05)
  _assert_fills(y, -6, 6, 0.05)
  assert abs(np.corrcoef(x, y)[0, 1]) < 0.3, "both axes share one draw"


def _shift_that_wraps(key, image, *, max_shift):
  offset = jax.random.randint(key, (2,), -max_shift, max_shift + 1)
  return jnp.roll(image, offset, (0, 1))


def _shift_too_short(key, image, *, max_shift):
  return augment.shift(key, image, max_shift=max_shift - 1)


def _shift_too_long(key, image, *, max_shift):
  return augment.shift(key, image, max_shift=max_shift + 1)


def _shift_without_the_last(key, image, *, max_shift):
  offset = jax.random.randint(key, (2,), -max_shift, max_shift)
  return augment._place(image, offset, image.shape[:2], (max_shift,) * 2)


def _shift_along_the_diagonal(key, image, *, max_shift):
  offset = jax.random.randint(key, (), -max_shift, max_shift + 1)
  return augment._place(
    image, (offset, offset), image.shape[:2], (max_shift,) * 2
  )


def _shift_by_two_draws(key, image, *, max_shift):
  """In range, every offset met, but not equally often."""
  half = max_shift // 2
  offset = jax.random.randint(key, (2, 2), -half, half + 1).sum(0)
  return augment._place(image, offset, image.shape[:2], (max_shift,) * 2)


def _place_without_the_last(key, image, *, canvas):
  canvas = canvas[0] - 1, canvas[1] - 1
  drawn = augment.pad_and_place(key, image, canvas=canvas)
  return jnp.pad(drawn, ((0, 1), (0, 1), (0, 0)))


def _place_in_the_middle(key, image, *, canvas):
  del key
  return augment.centre_pad(image, canvas=canvas)


def _affine_with(**changes):
  """`random_affine` with some of its options misread."""

  def random_affine(key, image, **options):
    for name, change in changes.items():
      if name in options:
        options[name] = change(options[name])
    return augment.random_affine(key, image, **options)

  return random_affine


def _affine_of_a_square(key, image, **options):
  """Turns in the [-1, 1] frame, where a wide image is a square."""
  height, width, _ = image.shape
  square = jax.image.resize(image, (height, height, 1), "linear")
  drawn = augment.random_affine(key, square, **options)
  return jax.image.resize(drawn, (height, width, 1), "linear")


def _affine_with_one_draw(key, image, **options):
  draw = jax.random.uniform(key)

  def uniform(key, shape, *, minval, maxval):
    del key, shape
    return minval + draw * (maxval - minval)

  with mock.patch.object(jax.random, "uniform", uniform):
    return augment.random_affine(key, image, **options)


def _edges_oracle(image, together=False):
  """Pixel by pixel: both Sobel derivatives, and how far from the median."""
  image = np.float64(image)
  padded = np.pad(image, ((1, 1), (1, 1), (0, 0)), mode="reflect")
  smooth, differ = (1, 2, 1), (-1, 0, 1)
  out = np.zeros(image.shape)
  for h, w, c in np.ndindex(*image.shape):
    for i, j in np.ndindex(3, 3):
      weight = smooth[i] * differ[j] + differ[i] * smooth[j]
      out[h, w, c] += weight * padded[h + i, w + j, c]
  groups = [slice(None)] if together else [*range(image.shape[2])]
  for group in groups:
    away = np.abs(out[..., group] - np.median(out[..., group]))
    spread = np.ptp(away)
    out[..., group] = (away - away.min()) / (spread if spread else 1.0)
  return out


def check_edges_match_oracle(edges):
  """Of channels with much contrast, with little, and with none."""
  image = np.random.default_rng(0).uniform(size=(5, 7, 3))
  image = jnp.float32(image * [1, 0.1, 0] + [0, 0.5, 0.3])
  got = np.asarray(edges(image))
  np.testing.assert_allclose(got, _edges_oracle(image), atol=1e-5)
  np.testing.assert_array_equal(got[..., 2], 0)


class AugmentTest(chex.TestCase):
  @parameterized.parameters(*_DTYPES)
  def test_every_shift_is_equally_likely(self, dtype):
    check_every_shift_is_equally_likely(augment.shift, dtype)

  @parameterized.parameters(*_DTYPES)
  def test_every_place_is_equally_likely(self, dtype):
    check_every_place_is_equally_likely(augment.pad_and_place, dtype)

  @parameterized.parameters(
    check_rotation_is_rigid_and_in_range,
    check_scale_is_in_range,
    check_shear_is_in_range,
    check_translation_is_in_range,
  )
  def test_affine(self, check):
    check(augment.random_affine)

  def test_edges(self):
    check_edges_match_oracle(augment.edges)

  @parameterized.named_parameters(
    ("wraps", check_every_shift_is_equally_likely, _shift_that_wraps),
    ("short", check_every_shift_is_equally_likely, _shift_too_short),
    ("long", check_every_shift_is_equally_likely, _shift_too_long),
    ("half_open", check_every_shift_is_equally_likely, _shift_without_the_last),
    (
      "diagonal",
      check_every_shift_is_equally_likely,
      _shift_along_the_diagonal,
    ),
    ("uneven", check_every_shift_is_equally_likely, _shift_by_two_draws),
    ("no_corner", check_every_place_is_equally_likely, _place_without_the_last),
    ("middle", check_every_place_is_equally_likely, _place_in_the_middle),
    (
      "radians",
      check_rotation_is_rigid_and_in_range,
      _affine_with(max_rotation=math.degrees),
    ),
    ("not_rigid", check_rotation_is_rigid_and_in_range, _affine_of_a_square),
    (
      "half_rotation",
      check_rotation_is_rigid_and_in_range,
      _affine_with(max_rotation=lambda value: value / 2),
    ),
    (
      "inverse_scale",
      check_scale_is_in_range,
      _affine_with(scale_range=lambda pair: (1 / pair[1], 1 / pair[0])),
    ),
    ("one_scale", check_scale_is_in_range, _affine_with_one_draw),
    (
      "degrees_of_shear",
      check_shear_is_in_range,
      _affine_with(max_shear=math.radians),
    ),
    (
      "grid_units",
      check_translation_is_in_range,
      _affine_with(max_translation=lambda value: value / 20),
    ),
    ("one_translation", check_translation_is_in_range, _affine_with_one_draw),
    (
      "channels_together",
      check_edges_match_oracle,
      functools.partial(_edges_oracle, together=True),
    ),
  )
  def test_broken_copy_fails(self, check, broken):
    with self.assertRaises(AssertionError):
      check(broken)

  @parameterized.parameters(
    ((4, 3), (4, 3), (0, 0)),
    ((4, 3), (7, 5), (1, 1)),
    ((2, 2), (40, 40), (19, 19)),
  )
  def test_centre_pad(self, size, canvas, top_left):
    image = _numbered(*size)
    got = augment.centre_pad(image, canvas=canvas)
    chex.assert_type(got, jnp.uint8)
    want = _placed(np.asarray(image), *top_left, canvas)
    np.testing.assert_array_equal(got, want)

  def test_default_canvas_is_40(self):
    image = _numbered(28, 28)
    drawn = _draw(augment.pad_and_place, image, 2)
    chex.assert_shape(drawn, (2, 40, 40, 1))
    sums = drawn.sum((1, 2, 3), dtype=np.int64)
    np.testing.assert_array_equal(sums, np.asarray(image).sum(dtype=np.int64))
    chex.assert_shape(augment.centre_pad(image), (40, 40, 1))

  @parameterized.parameters(
    (augment.shift, dict(max_shift=3)),
    (augment.pad_and_place, dict(canvas=(16, 16))),
    (augment.random_affine, dict(max_rotation=30.0)),
  )
  def test_key_decides(self, function, options):
    image = _numbered(8, 8, dtype=jnp.float32) / 64
    first, again = (_draw(function, image, 8, 0, **options) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert len(np.unique(first, axis=0)) > 1
    assert (first != _draw(function, image, 8, 1, **options)).any()

  @parameterized.parameters(0, 9)
  def test_extreme_shifts(self, max_shift):
    """Nothing moves, or the image may leave; the shape stays."""
    image = _numbered(4, 5)
    drawn = _draw(augment.shift, image, 50, max_shift=max_shift)
    if max_shift == 0:
      np.testing.assert_array_equal(drawn, np.stack([image] * 50))
    assert drawn.shape == (50, 4, 5, 1)

  @parameterized.parameters((28, 28, 1), (9, 14, 3))
  def test_affine_without_ranges_is_the_identity(self, *shape):
    image = jax.random.uniform(jax.random.key(0), shape)
    drawn = _draw(augment.random_affine, image, 3)
    np.testing.assert_array_equal(drawn, np.stack([image] * 3))

  def test_affine_stays_in_range(self):
    drawn = _draw(
      augment.random_affine,
      jnp.ones((16, 16, 1)),
      50,
      max_rotation=180.0,
      max_shear=0.5,
      scale_range=(0.5, 1.5),
      max_translation=3.0,
    )
    assert drawn.min() == 0.0 and drawn.max() == 1.0

  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.parameters(
    ("shift", dict(max_shift=2)),
    ("pad_and_place", dict(canvas=(9, 9))),
    ("random_affine", dict(max_rotation=30.0, max_translation=2.0)),
  )
  @pytest.mark.long_after_first
  def test_vmap_is_a_loop(self, name, options):
    function = getattr(augment, name)
    images = jax.random.uniform(jax.random.key(0), (3, 6, 7, 1))
    one = self.variant(lambda key, image: function(key, image, **options))
    keys = cases.keys(3)
    want = [one(key, image) for key, image in zip(keys, images, strict=True)]
    got = jax.vmap(one)(keys, images)
    chex.assert_trees_all_close(got, jnp.stack(want), atol=1e-5)

  @parameterized.parameters(
    (augment.shift, dict(max_shift=-1), "max_shift=-1"),
    (augment.pad_and_place, dict(canvas=(9, 3)), r"canvas=\(9, 3\)"),
    (augment.random_affine, dict(max_rotation=-1.0), "max_rotation=-1"),
    (augment.random_affine, dict(max_shear=-1.0), "max_shear=-1"),
    (augment.random_affine, dict(max_translation=-1.0), "max_translation=-1"),
    (augment.random_affine, dict(scale_range=(1.2, 0.8)), "scale_range"),
    (augment.random_affine, dict(scale_range=(0.0, 0.8)), "scale_range"),
  )
  def test_bad_options_are_refused(self, function, options, message):
    with self.assertRaisesRegex(ValueError, message):
      function(jax.random.key(0), jnp.zeros((4, 4, 1)), **options)

  def test_centre_pad_refuses_a_small_canvas(self):
    with self.assertRaisesRegex(ValueError, r"\(3, 9\).*at least"):
      augment.centre_pad(jnp.zeros((4, 4, 1)), canvas=(3, 9))


if __name__ == "__main__":
  absltest.main()
