"""Affine maps between pictures, against maps that are known."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from capjax.evaluation import alignment
from kernels import geometry, rendering

_SIZE = (11, 11)
_align = jax.jit(alignment.align)
_warp = jax.jit(lambda picture, pose: rendering.warp(picture, pose, _SIZE))


def _blob():
  """A picture without symmetries, black at its border."""
  x, y = np.meshgrid(np.linspace(-1, 1, 11), np.linspace(-1, 1, 11))
  stroke = np.exp(-(((x - 0.1) / 0.5) ** 2) - ((y + 0.2) / 0.15) ** 2)
  dot = 0.8 * np.exp(-(((x + 0.3) / 0.15) ** 2) - ((y - 0.4) / 0.25) ** 2)
  return jnp.float32(np.pad((stroke + dot)[1:-1, 1:-1], 1))[..., None]


def _moved(pose):
  return _warp(_blob(), jnp.float32(pose))


def _noise():
  return jnp.float32(np.random.default_rng(0).random((*_SIZE, 1)))


def _residual(pose, target):
  """By warps alone, in float64."""
  shares = []
  for picture, wanted, there in (
    (_blob(), target, pose),
    (target, _blob(), np.linalg.inv(np.float64(pose))),
  ):
    drawn = _warp(picture, jnp.float32(there))
    squares = [
      np.sum(np.square(np.float64(x))) for x in (drawn - wanted, wanted)
    ]
    shares.append(squares[0] / squares[1])
  return np.mean(shares)


class AlignmentTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ("itself", geometry.affine_matrix(1, 1, 0.0, 0.0, 0.0, 0.0)),
    ("turned", geometry.affine_matrix(1, 1, 2.0, 0.0, 0.0, 0.0)),
    ("moved", geometry.affine_matrix(0.9, 0.8, -0.7, 0.1, 0.1, -0.1)),
    ("mirrored", geometry.affine_matrix(-0.9, 1, 1.0, 0.0, 0.0, 0.1)),
  )
  def test_a_map_is_found_again(self, pose):
    found = _align(_blob(), _moved(pose))
    # Drawn there and back, a picture is interpolated twice.
    assert found.residual < 0.08
    np.testing.assert_allclose(found.pose, pose, atol=0.1)

  def test_what_is_left_is_that_of_the_map_both_ways(self):
    target = _noise()
    found = _align(_blob(), target)
    want = _residual(found.pose, target)
    np.testing.assert_allclose(found.residual, want, rtol=1e-4)
    # No affine map of two strokes is noise.
    assert 0.3 < want < 1

  def test_no_other_map_near_is_better(self):
    target = _moved(geometry.affine_matrix(1, 0.7, 0.5, 0.0, 0.2, 0.1))
    target = jnp.square(target)  # which no map of the blob is
    found = _align(_blob(), target)
    moves = 0.1 * np.random.default_rng(2).normal(size=(50, 2, 3))
    for move in moves:
      near = found.pose + np.pad(move, ((0, 1), (0, 0)))
      assert _residual(near, target) > found.residual - 1e-3

  def test_whole_numbers_are_refused_by_name(self):
    align = inspect.unwrap(alignment.align)  # annotations are checked in tests
    whole = jnp.ones((*_SIZE, 1), int)
    with self.assertRaisesRegex(TypeError, "picture holds int(32|64);"):
      align(whole, _blob())
    with self.assertRaisesRegex(TypeError, "target holds int(32|64);"):
      align(_blob(), whole)

  def test_black_pictures_are_no_trouble(self):
    black = jnp.zeros((*_SIZE, 1))
    # Its ink reaches the border.
    full = jax.random.uniform(jax.random.key(0), (*_SIZE, 1))
    for picture in (_blob(), full):
      for found in (_align(black, picture), _align(picture, black)):
        np.testing.assert_allclose(found.residual, 0.5, rtol=1e-4)
        assert np.isfinite(found.pose).all()
    np.testing.assert_array_equal(_align(black, black).residual, 0)


if __name__ == "__main__":
  absltest.main()
