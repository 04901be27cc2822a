"""Tests of the likelihood of parts under votes, objects summed out."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.test_util import check_grads

from kernels.matching import vote_mixture

_DUMMY = 1e-2  # weight and density of the dummy, each


def _inputs(seed=0, votes=3, parts=4, size=2, dtype=jnp.float32):
  random = np.random.default_rng(seed)
  return tuple(
    jnp.array(x, dtype)
    for x in (
      random.normal(size=(parts, size)),
      random.uniform(size=parts),
      random.normal(size=(votes, parts, size)),
      random.uniform(0.2, 2, size=(votes, parts)),
      np.log(random.uniform(0.1, 1, size=(votes, parts))),
    )
  )


def _oracle(
  parts, presence, votes, scales, log_weights, normalise="none",
  dummy_weight=_DUMMY, dummy_density=_DUMMY,
):  # fmt: skip
  parts, presence, votes, scales, log_weights = (
    np.float64(x) for x in (parts, presence, votes, scales, log_weights)
  )
  weights = np.exp(log_weights)
  num_votes, num_parts, size = votes.shape
  total, posterior = 0.0, np.zeros((num_votes, num_parts))
  rest = np.zeros(num_parts)
  winner = np.zeros(num_parts, int)
  for m in range(num_parts):
    scale_of = {
      "none": 1.0,
      "votes": sum(weights[:, m]) + dummy_weight,
      "all": np.sum(weights),
    }[normalise]
    dummy = (
      dummy_weight * dummy_density / (scale_of if normalise == "votes" else 1.0)
    )
    summands = []
    for k in range(num_votes):
      density = 1.0
      for d in range(size):
        error = (parts[m, d] - votes[k, m, d]) / scales[k, m]
        density *= np.exp(-0.5 * error**2)
        density /= scales[k, m] * np.sqrt(2 * np.pi)
      summands.append(weights[k, m] / scale_of * density)
    evidence = sum(summands) + dummy
    total += presence[m] * np.log(evidence)
    posterior[:, m] = np.array(summands) / evidence
    rest[m] = dummy / evidence
    winner[m] = summands.index(max(summands))
  return total, posterior, rest, winner


class ExplainPartsTest(parameterized.TestCase):
  @parameterized.product(seed=[0, 1], normalise=["none", "votes", "all"])
  def test_loops_agree(self, seed, normalise):
    inputs = _inputs(seed)
    got = vote_mixture.explain_parts(*inputs, normalise=normalise)
    for x, y in zip(got, _oracle(*inputs, normalise), strict=True):
      np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)

  @parameterized.parameters("none", "votes", "all")
  def test_the_dummy_has_a_weight_and_a_density(self, normalise):
    got = vote_mixture.explain_parts(
      *_inputs(),
      normalise=normalise,
      dummy_log_weight=np.log(0.3),
      dummy_log_density=np.log(0.02),
    )
    for x, y in zip(
      got, _oracle(*_inputs(), normalise, 0.3, 0.02), strict=True
    ):
      np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)

  def test_the_nearest_vote_wins_where_no_posterior_is_a_float(self):
    votes = jnp.array([[[0.0]], [[5.0]], [[2.0]]])
    got = vote_mixture.explain_parts(
      jnp.array([[3.0]]),
      jnp.ones(1),
      votes,
      jnp.full((3, 1), 0.02),
      jnp.zeros((3, 1)),
    )
    np.testing.assert_array_equal(got.posterior, 0)
    self.assertEqual(got.winner, 2)

  def test_posteriors_sum_to_one(self):
    got = vote_mixture.explain_parts(*_inputs())
    total = jnp.sum(got.posterior, axis=0) + got.dummy
    np.testing.assert_allclose(total, 1, rtol=1e-5)

  def test_density_has_unit_mass(self):
    """Of one part in the plane, without a dummy and with weights of sum 1."""
    _, _, votes, scales, weights = _inputs(parts=1)
    weights = jax.nn.log_softmax(weights, axis=0)
    grid = jnp.linspace(-12, 12, 401)
    points = jnp.stack(jnp.meshgrid(grid, grid), -1).reshape(-1, 1, 2)

    def log_prob(point):
      return vote_mixture.explain_parts(
        point, jnp.ones(1), votes, scales, weights, dummy_log_density=-1e4
      ).log_prob

    step = grid[1] - grid[0]
    mass = jnp.sum(jnp.exp(jax.vmap(log_prob)(points))) * step**2
    np.testing.assert_allclose(mass, 1, rtol=1e-3)

  def test_moving_parts_and_votes_changes_nothing(self):
    parts, presence, votes, *rest = _inputs()
    move = jnp.array([3.0, -1.0])
    here = vote_mixture.explain_parts(parts, presence, votes, *rest)
    there = vote_mixture.explain_parts(
      parts + move, presence, votes + move, *rest
    )
    np.testing.assert_allclose(here.log_prob, there.log_prob, rtol=1e-4)
    # A test that moves the parts alone must see a difference.
    broken = vote_mixture.explain_parts(parts + move, presence, votes, *rest)
    self.assertGreater(abs(here.log_prob - broken.log_prob), 1)

  def test_order_of_votes_does_not_matter(self):
    parts, presence, *of_votes = _inputs()
    order = jnp.array([2, 0, 1])
    got = vote_mixture.explain_parts(
      parts, presence, *(x[order] for x in of_votes)
    )
    expected = vote_mixture.explain_parts(parts, presence, *of_votes)
    np.testing.assert_allclose(got.log_prob, expected.log_prob, rtol=1e-5)
    np.testing.assert_allclose(
      got.posterior, expected.posterior[order], rtol=1e-4
    )

  def test_absent_parts_do_not_count(self):
    parts, presence, *of_votes = _inputs()
    presence = presence.at[1].set(0)

    def log_prob(parts):
      return vote_mixture.explain_parts(parts, presence, *of_votes).log_prob

    np.testing.assert_array_equal(jax.grad(log_prob)(parts)[1], 0)

  def test_gradients(self):
    with jax.enable_x64(True):
      inputs = _inputs(dtype=jnp.float64)
      for normalise in ("none", "votes", "all"):
        explain = functools.partial(
          vote_mixture.explain_parts, normalise=normalise
        )
        log_prob = jax.jit(lambda *x, f=explain: f(*x).log_prob)
        check_grads(log_prob, inputs, order=2, modes=("fwd", "rev"))

  @parameterized.parameters(jnp.float32, jnp.bfloat16)
  def test_far_votes_and_tiny_scales_stay_finite(self, dtype):
    parts, presence, votes, scales, weights = _inputs(dtype=dtype)
    for inputs in (
      (parts, presence, votes + 1e3, scales * 1e-2, weights),
      (parts, 0 * presence, votes, scales, weights - 1e3),
      (parts, presence, votes, scales * 1e-25, weights),
      (parts, presence, votes, scales * 0, weights),
    ):
      gradients = jax.grad(
        lambda *x: vote_mixture.explain_parts(*x).log_prob.astype(jnp.float32),
        range(5),
      )(*inputs)
      for x in (*vote_mixture.explain_parts(*inputs), *gradients):
        self.assertTrue(np.isfinite(np.float32(x)).all())

  def test_differences_of_bfloat16_are_not_rounded(self):
    inputs = _inputs(dtype=jnp.bfloat16)
    got = vote_mixture.explain_parts(*inputs)
    np.testing.assert_allclose(got.log_prob, _oracle(*inputs)[0], rtol=1e-5)

  def test_an_unknown_normalisation_is_refused(self):
    with self.assertRaisesRegex(ValueError, "normalise is 'parts'"):
      inspect.unwrap(vote_mixture.explain_parts)(*_inputs(), normalise="parts")


if __name__ == "__main__":
  absltest.main()
