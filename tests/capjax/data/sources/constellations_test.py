"""Constellations: what is drawn, and how often."""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from capjax import data
from capjax.data.sources import constellations

_MIDDLE, _EXTENT = 8.121320343559642, 20.121320343559642


@functools.cache
def _many(count=2000, **options):
  keys = jax.random.split(jax.random.key(0), count)
  drawn = jax.jit(jax.vmap(lambda key: constellations.sample(key, **options)))(
    keys
  )
  return jax.tree.map(np.asarray, drawn)


def _of_object(drawn, k):
  """[B P 2], the points of an object in the order of the image, unscaled."""
  rows = [
    points[objects == k]
    for points, objects in zip(drawn.points, drawn.objects, strict=True)
  ]
  return _MIDDLE + _EXTENT * np.stack(rows)


def _shape(points):
  """The distances among points, in order."""
  between = np.linalg.norm(points[:, :, None] - points[:, None], axis=-1)
  rows, columns = np.triu_indices(points.shape[1], 1)
  return np.sort(between[:, rows, columns], axis=1)


class ConstellationsTest(chex.TestCase):
  def test_objects_are_moved_patterns(self):
    drawn = _many(drop=0.0)
    for k, pattern in enumerate(constellations.PATTERNS):
      distances = _shape(_of_object(drawn, k))
      scale = distances.sum(1) / _shape(pattern[None]).sum()
      np.testing.assert_allclose(
        distances, scale[:, None] * _shape(pattern[None]), rtol=1e-3, atol=1e-3
      )
      self.assertBetween(scale.min(), 1 - 1e-3, 1.02)
      self.assertBetween(scale.max(), 3.98, 4 + 1e-3)
      self.assertAlmostEqual(scale.mean(), 2.5, delta=0.1)

  def test_moves_are_smaller_for_larger_objects(self):
    drawn = _many(drop=0.0)
    points = _of_object(drawn, 1)
    pattern = constellations.TRIANGLE
    scale = _shape(points).sum(1) / _shape(pattern[None]).sum()
    # The pattern's middle is 3.07 from the origin that it is turned about.
    radius = np.linalg.norm(pattern.mean(0)) * scale
    reach = np.linalg.norm(points.mean(1), axis=-1)
    np.testing.assert_array_less(reach, 24 * 2**0.5 / scale + radius + 1e-3)
    self.assertGreater(np.max(reach[scale < 1.5]), 25)

  def test_angles_are_within_a_quarter_turn(self):
    points = _of_object(_many(drop=0.0), 1)
    between = np.linalg.norm(points[:, :, None] - points[:, None], axis=-1)
    # The tip of the triangle is the farthest from the others; it points left.
    tip = np.argmax(between.sum(-1), axis=1)
    rows = np.arange(len(points))
    across = points.mean(1) - points[rows, tip]
    angles = np.degrees(np.arctan2(across[:, 1], across[:, 0]))
    self.assertBetween(angles.min(), -90.01, -89)
    self.assertBetween(angles.max(), 89, 90.01)
    counts, _ = np.histogram(angles, 6, (-90, 90))
    np.testing.assert_allclose(counts, len(angles) / 6, rtol=0.25)

  def test_points_fill_the_frame(self):
    points = _many(drop=0.0).points
    self.assertBetween(points.min(), -1.0, -0.9)
    self.assertBetween(points.max(), 0.85, 1.0)

  def test_whole_objects_are_dropped(self):
    drawn = _many()
    for k in range(3):
      rows = np.stack(
        [d[o == k] for d, o in zip(drawn.presence, drawn.objects, strict=True)]
      )
      np.testing.assert_array_equal(rows, rows[:, :1].repeat(rows.shape[1], 1))
      self.assertAlmostEqual(rows[:, 0].mean(), 0.5, delta=0.06)
    np.testing.assert_array_equal(drawn.points[drawn.presence == 0], 0)
    self.assertEqual(_many(drop=1.0).presence.max(), 0)
    self.assertEqual(_many(drop=0.0).presence.min(), 1)

  def test_points_are_shuffled(self):
    objects = _many(drop=0.0).objects
    # At each place each object as often as it has points.
    shares = np.stack([np.mean(objects == k, axis=0) for k in range(3)])
    want = np.broadcast_to(np.array([[4], [3], [4]]) / 11, shares.shape)
    np.testing.assert_allclose(shares, want, atol=0.06)

  def test_noise_is_of_the_pattern(self):
    """It grows with the object that it is of."""
    noise = 0.05
    clean, noisy = _many(drop=0.0), _many(drop=0.0, noise=noise)
    moved = _of_object(noisy, 0) - _of_object(clean, 0)
    scale = _shape(_of_object(clean, 0)).sum(1)
    scale /= _shape(constellations.SQUARE[None]).sum()
    self.assertAlmostEqual(
      np.std(moved / scale[:, None, None]), noise, delta=0.003
    )
    small, large = moved[scale < 2], moved[scale > 3]
    self.assertGreater(np.std(large), 1.8 * np.std(small))

  def test_key_decides(self):
    one, other = (
      constellations.sample(jax.random.key(seed)) for seed in (0, 1)
    )
    again = constellations.sample(jax.random.key(0))
    chex.assert_trees_all_equal(one, again)
    self.assertGreater(np.abs(one.points - other.points).max(), 0)

  @parameterized.parameters(
    ({"noise": -0.1}, "noise is -0.1; give a finite number, 0 or"),
    ({"noise": math.nan}, "noise is nan"),
    ({"patterns": ()}, "patterns is empty"),
    ({"drop": 1.1}, "drop is 1.1; give a number from 0 to 1"),
  )
  def test_bad_options_are_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      constellations.sample(jax.random.key(0), **options)


class DatasetTest(parameterized.TestCase):
  def test_splits_number_different_constellations(self):
    train, test = (
      data.load("constellations", split) for split in ("train", "test")
    )
    self.assertEmpty(set(train.labels) & set(test.labels))
    self.assertLen(set(train.labels), len(train.labels))
    self.assertLen(train.images, len(train.labels))
    self.assertEqual(train.num_classes, 2)
    # An eighth has no object, and is left out.
    self.assertAlmostEqual(len(test.labels) / 2000, 7 / 8, delta=0.03)
    drawn = jax.jit(jax.vmap(constellations.numbered))(test.labels)
    self.assertEqual(np.max(drawn.presence, axis=1).min(), 1)
    one, other = (
      constellations.numbered(jnp.asarray(x.labels[0])) for x in (train, test)
    )
    self.assertGreater(np.abs(one.points - other.points).max(), 0)
    chex.assert_trees_all_equal(
      one, constellations.numbered(jnp.asarray(train.labels[0]))
    )


if __name__ == "__main__":
  absltest.main()
