"""Templates of points and their similarities, against matrices."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from capjax.data.sources import constellations
from kernels.matching import similarities

_TEMPLATES = similarities.templates(constellations.PATTERNS)
_POINTS = np.float64(_TEMPLATES.points)


def _matrix(point):
  """F of a template point, by which its position is F y."""
  x, y = np.float64(point)
  return np.array([[1, 0, x, y], [0, 1, y, -x]])


def _inputs(seed=0, num_points=5):
  """Assignments and points of an image."""
  random = np.random.default_rng(seed)
  size = len(_TEMPLATES.points)
  assignments = random.dirichlet(np.ones(size), num_points)
  return assignments, random.normal(size=(num_points, 2))


def _complex(points):
  return similarities.as_complex(jnp.asarray(points, jnp.float32))


def _posterior_oracle(assignments, points, precision):
  """Means and covariances of y, with 4x4 matrices, a point at a time."""
  means, covariances = [], []
  for members in np.asarray(_TEMPLATES.members):
    inverse, total = np.eye(4), np.zeros(4)
    for m, n in np.ndindex(*assignments.shape):
      matrix = _matrix(_TEMPLATES.points[n])
      weight = precision * assignments[m, n] * members[n]
      inverse += weight * matrix.T @ matrix
      total += weight * matrix.T @ points[m]
    covariances.append(np.linalg.inv(inverse))
    means.append(covariances[-1] @ total)
  return np.array(means), np.array(covariances)


def check_posterior_matches_oracle(posterior, precision=7.0, assignments=None):
  drawn, points = _inputs()
  assignments = drawn if assignments is None else assignments
  got = posterior(
    jnp.asarray(assignments, jnp.float32), _complex(points),
    _complex(_TEMPLATES.points), _TEMPLATES.members, jnp.float32(precision),
  )  # fmt: skip
  means, covariances = _posterior_oracle(assignments, points, precision)
  np.testing.assert_allclose(
    similarities.poses(got.offset, got.turn), means, atol=1e-4
  )
  owners = np.argmax(_TEMPLATES.members, axis=0)
  for n, k in enumerate(owners):
    matrix = _matrix(_TEMPLATES.points[n])
    spread = np.trace(matrix.T @ matrix @ covariances[k])
    np.testing.assert_allclose(got.spread[n], spread, rtol=1e-4)
  divergence = sum(
    0.5 * (np.trace(c) + y @ y - 4 - np.linalg.slogdet(c)[1])
    for y, c in zip(means, covariances, strict=True)
  )
  np.testing.assert_allclose(got.divergence, divergence, rtol=1e-4)


def _broken(fault, assignments, x, p, members, precision):
  """The posterior with an error in it."""
  if fault == "mirrored":
    x = x.conj()
  elif fault == "no_precision":
    precision = jnp.ones_like(precision)
  elif fault == "templates_mixed":
    members = members[::-1]
  out = similarities.posterior(assignments, x, p, members, precision)
  if fault == "spread_of_one_coordinate":
    out = out._replace(spread=out.spread / 2)
  elif fault == "half_divergence":
    out = out._replace(divergence=out.divergence / 2)
  return out


class PosteriorTest(chex.TestCase):
  @parameterized.parameters(0.5, 7.0, 300.0)
  def test_matches_oracle(self, precision):
    check_posterior_matches_oracle(similarities.posterior, precision)

  @parameterized.parameters(
    "mirrored", "no_precision", "templates_mixed", "spread_of_one_coordinate",
    "half_divergence",
  )  # fmt: skip
  def test_broken_copy_fails(self, fault):
    def broken(*arguments):
      return _broken(fault, *arguments)

    with self.assertRaises(AssertionError):
      check_posterior_matches_oracle(broken)

  @parameterized.parameters(1e4, 1e6)
  def test_few_points_and_a_high_precision(self, precision):
    """One point of a template, two of another, and none of the third."""
    assignments = np.eye(len(_TEMPLATES.points))[[0, 4, 5]]
    assignments = np.concatenate([assignments, np.zeros((2, len(_POINTS)))])
    check_posterior_matches_oracle(
      similarities.posterior, precision, assignments
    )

  @parameterized.parameters(True, False)
  def test_gradients(self, absent, step=1e-6):
    """Also where a template has no point."""
    assignments, points = _inputs()
    if absent:
      assignments[:, np.argmax(_TEMPLATES.members, axis=0) == 1] = 0
    with jax.enable_x64(True):
      x, p = (jnp.asarray(y @ [1, 1j]) for y in (points, _POINTS))
      assignments, precision = jnp.asarray(assignments), jnp.array(7.0)

      @jax.jit
      def total(assignments):
        posterior = similarities.posterior(
          assignments, x, p, _TEMPLATES.members, precision
        )
        spread = jnp.cos(jnp.arange(len(p))) @ posterior.spread
        moved = jnp.sum(posterior.offset.real - posterior.turn.imag)
        return spread + posterior.divergence + moved

      got = jax.grad(total)(assignments)
      steps = step * jnp.eye(assignments.size).reshape(-1, *assignments.shape)
      above = jax.vmap(lambda x: total(assignments + x))(steps)
      want = (above - total(assignments)).reshape(got.shape) / step
    np.testing.assert_allclose(got, want, atol=1e-3, rtol=1e-4)

  def test_without_points_it_is_the_prior(self):
    size = len(_TEMPLATES.points)
    got = similarities.posterior(
      jnp.zeros((0, size)), _complex(np.zeros((0, 2))),
      _complex(_TEMPLATES.points), _TEMPLATES.members, jnp.float32(9.0),
    )  # fmt: skip
    np.testing.assert_array_equal(got.offset, 0)
    np.testing.assert_array_equal(got.turn, 0)
    np.testing.assert_allclose(got.divergence, 0, atol=1e-6)

  def test_poses_place_points_as_complex_numbers_do(self):
    random = np.random.default_rng(1)
    offset, turn = (
      jax.lax.complex(*jnp.asarray(random.normal(size=(2, 1)), jnp.float32))
      for _ in range(2)
    )
    point = random.normal(size=2)
    placed = offset + turn * _complex(point[None])
    pose = similarities.poses(offset, turn)[0]
    want = _matrix(point) @ pose
    np.testing.assert_allclose([placed[0].real, placed[0].imag], want, 1e-5)


class TemplatesTest(chex.TestCase):
  def test_templates_are_centred_and_of_one_size(self):
    for members, pattern in zip(
      _TEMPLATES.members, constellations.PATTERNS, strict=True
    ):
      points = np.asarray(_TEMPLATES.points)[np.asarray(members) > 0]
      np.testing.assert_allclose(points.mean(0), 0, atol=1e-6)
      self.assertAlmostEqual(np.sum(points**2), len(pattern), delta=1e-5)
      turned = points @ (pattern - pattern.mean(0)).T
      np.testing.assert_allclose(turned, turned.T, atol=1e-5)

  @parameterized.parameters(np.nan, np.inf)
  def test_a_pattern_that_is_not_finite_is_no_template(self, number):
    pattern = np.array([[0.0, 1.0], [number, 2.0]])
    with self.assertRaisesRegex(ValueError, "pattern 0 holds .* not finite"):
      similarities.templates([pattern])

  def test_a_single_place_is_no_template(self):
    for pattern in (np.ones((3, 2)), [[3.3, 1.7]] * 7, [[0, 0], [1e-170, 0]]):
      with self.assertRaisesRegex(ValueError, "pattern 1 has equal points on"):
        similarities.templates([constellations.SQUARE, np.array(pattern)])


if __name__ == "__main__":
  absltest.main()
