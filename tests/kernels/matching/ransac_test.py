"""Templates found by pairs of points, where the answer is known."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import widths
from absl.testing import absltest, parameterized

from capjax.data.sources import constellations
from capjax.evaluation import segmentation
from kernels.matching import ransac, similarities

_TEMPLATES = similarities.templates(constellations.PATTERNS)
_match = functools.partial(ransac.match, template=_TEMPLATES)


@functools.cache
def _drawn(noise=0.0, count=100):
  keys = jax.random.split(jax.random.key(0), count)
  draw = functools.partial(constellations.sample, noise=noise)
  drawn = jax.jit(jax.vmap(draw))(keys)
  return jax.tree.map(np.asarray, drawn)


@functools.cache
def _run(tolerance):
  return jax.jit(jax.vmap(functools.partial(_match, tolerance=tolerance)))


def _placed(poses):
  """[K N 2], where similarities put all template points."""
  x, y = np.asarray(_TEMPLATES.points).T
  tx, ty, cos, sin = np.asarray(poses)[:, :, None].swapaxes(0, 1)
  return np.stack([tx + x * cos + y * sin, ty + y * cos - x * sin], axis=-1)


class RansacTest(chex.TestCase):
  @widths.samples_of_float32
  def test_without_noise_everything_is_found(self):
    drawn = _drawn()
    found = _run(0.1)(drawn.points, drawn.presence)
    scores = segmentation.score(
      np.asarray(found.objects), drawn.objects, drawn.presence
    )
    self.assertGreater(scores.accuracy, 0.99)
    self.assertGreater(scores.perfect, 0.98)
    np.testing.assert_array_equal(
      np.asarray(found.objects)[drawn.presence == 0], -1
    )

  def test_the_first_two_points_of_a_template_may_be_one(self):
    pattern = np.array([[0.0, 0], [0, 0], [1, 0], [1, 1]])
    for shift in range(4):
      points = np.roll(pattern, shift, axis=0)
      template = similarities.templates([points])
      found = ransac.match(
        jnp.float32(points), jnp.ones(4), template=template, tolerance=0.1
      )
      np.testing.assert_array_equal(found.objects, 0)
      np.testing.assert_allclose(found.scores, 4, rtol=1e-4)

  def test_poses_put_templates_on_the_points(self):
    drawn = _drawn()
    found = _run(0.1)(drawn.points, drawn.presence)
    sizes = np.asarray(_TEMPLATES.members).sum(1)
    for n in range(10):
      there = drawn.presence[n] > 0
      used = np.asarray(found.scores[n]) > 0
      self.assertEqual(sizes[used].sum(), there.sum())
      for k in np.flatnonzero(used):
        members = np.asarray(_TEMPLATES.members[k]) > 0
        placed = _placed(found.poses[n])[k][members]
        distances = np.linalg.norm(
          placed[:, None] - drawn.points[n][there], axis=-1
        )
        np.testing.assert_allclose(distances.min(1), 0, atol=0.02)
        # Each is nearly on its place, and counts for nearly 1.
        self.assertAlmostEqual(found.scores[n][k], sizes[k], delta=0.1)

  @pytest.mark.long
  def test_noise_asks_for_tolerance(self):
    drawn = _drawn(noise=0.1)
    strict, loose = (
      segmentation.score(
        np.asarray(_run(tolerance)(drawn.points, drawn.presence).objects),
        drawn.objects,
        drawn.presence,
      )
      for tolerance in (0.02, 0.3)
    )
    self.assertGreater(loose.accuracy, strict.accuracy + 0.1)

  def test_no_point_serves_two_places(self):
    """A triangle's three corners are no square, however loose the match."""
    pattern = constellations.TRIANGLE / 4 - 0.5
    points = np.zeros((11, 2), np.float32)
    points[:3] = pattern
    presence = np.float32(np.arange(11) < 3)
    found = _match(jnp.asarray(points), jnp.asarray(presence), tolerance=5.0)
    np.testing.assert_array_equal(found.scores > 0, [False, True, False])
    np.testing.assert_array_equal(found.objects[:3], 1)

  def test_score_falls_with_the_square_of_the_distance(self):
    points = np.zeros((11, 2), np.float32)
    points[:4] = constellations.SQUARE / 4 - 0.5
    points[3] += 0.02
    presence = np.float32(np.arange(11) < 4)
    tolerance = 0.3
    found = _match(
      jnp.asarray(points), jnp.asarray(presence), tolerance=tolerance
    )
    # Two corners lie exactly; which two decides how far off the others are.
    best = 0.0
    corners = np.asarray(_TEMPLATES.points)[:4]
    x, p = (a[:, 0] + 1j * a[:, 1] for a in (points[:4], corners))
    for i, j in np.argwhere(~np.eye(4, dtype=bool)):
      turn = (x[j] - x[i]) / (p[1] - p[0])
      placed = x[i] + turn * (p - p[0])
      off = np.abs(x[:, None] - placed) / np.abs(turn)
      fit = np.maximum(0, 1 - (off / tolerance) ** 2)
      if (fit.max(0) > 0).all() and (fit.max(1) > 0).all():
        best = max(best, min(fit.max(0).sum(), fit.max(1).sum()))
    self.assertBetween(best, 3, 3.999)
    np.testing.assert_allclose(found.scores[0], best, atol=1e-3)

  @parameterized.parameters("empty", "one", "same", "line")
  def test_is_finite(self, kind):
    points, presence = np.zeros((11, 2), np.float32), np.zeros(11, np.float32)
    presence[:] = {"empty": 0, "one": np.arange(11) == 2}.get(kind, 1)
    if kind == "line":
      points[:, 0] = np.linspace(-1, 1, 11)
    found = jax.jit(_match)(jnp.asarray(points), jnp.asarray(presence))
    chex.assert_tree_all_finite(found)
    np.testing.assert_array_equal(found.scores, 0)
    np.testing.assert_array_equal(found.objects, -1)

  def test_absent_points_may_be_anything(self):
    drawn = jax.tree.map(lambda x: jnp.asarray(x[0]), _drawn())
    points, presence = drawn.points, drawn.presence
    self.assertLess(float(jnp.min(presence)), 1)
    want = _match(points, presence)
    for filling in (jnp.nan, jnp.inf, 0.5):
      filled = jnp.where(presence[:, None] > 0, points, filling)
      chex.assert_trees_all_equal(_match(filled, presence), want)
    with self.assertRaisesRegex(ValueError, "points has NaN or infinite"):
      _match(points.at[int(jnp.argmax(presence)), 0].set(jnp.nan), presence)
    wrong = jnp.full_like(points, jnp.nan)
    with self.assertRaisesRegex(ValueError, "give finite numbers"):
      jax.jit(lambda: _match(wrong, presence))()

  @parameterized.parameters(0, 1)
  def test_fewer_than_two_points_find_nothing(self, count):
    found = _match(jnp.zeros((count, 2)), jnp.ones(count))
    np.testing.assert_array_equal(found.objects, [-1] * count)
    np.testing.assert_array_equal(found.poses, np.zeros((3, 4)))
    np.testing.assert_array_equal(found.scores, [0, 0, 0])

  @parameterized.parameters(False, True)
  def test_as_many_points_of_the_image_as_of_the_template(self, is_whole):
    """The last two points of the template are nearer than the tolerance."""
    template = similarities.templates(
      [np.array([[0.0, 0.0], [4.0, 0.0], [4.3, 0.0]])]
    )
    points = np.asarray(template.points)
    if is_whole:
      placed = points + np.array([[0, 0], [0, 0], [0.3, 0]])
      apart = np.abs(placed[:, None, 0] - points[None, :, 0])
      fit = np.maximum(0, 1 - (apart / 0.5) ** 2)
      of_template, of_image = fit.max(0).sum(), fit.max(1).sum()
      self.assertGreater(of_template, of_image + 0.1)
      want = of_image  # the smaller sum
    else:
      placed, want = points[:2], 0  # though each template point has one near it
    found = ransac.match(
      jnp.asarray(placed, jnp.float32),
      jnp.ones(len(placed)),
      template,
      tolerance=0.5,
    )
    np.testing.assert_allclose(found.scores, [want], rtol=1e-5)

  def test_tolerance_must_be_positive(self):
    with self.assertRaisesRegex(ValueError, "tolerance is 0"):
      _match(jnp.zeros((11, 2)), jnp.zeros(11), tolerance=0.0)


if __name__ == "__main__":
  absltest.main()
