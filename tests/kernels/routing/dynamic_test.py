"""Routing by agreement against the procedure as the paper prints it.

Every test runs `dynamic_routing`, and `transform_and_route` with chunks of
several sizes, of one parent, some or all at once, through the same checks.
Gradients, precision and extreme votes are in `dynamic_limits_test`.
"""

import functools

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import routing_forms
from absl.testing import absltest, parameterized

from kernels import numerics, routing

_SEEDS = (0, 1)


def _textbook(votes, *, num_iterations=3, bias=None, leaky=False, fault=None):
  """Procedure 1 with its logits in jnp, and ways to get it wrong."""
  bias = jnp.zeros(votes.shape[1:], votes.dtype) if bias is None else bias
  squash = {"no_squash": lambda s: s, "tanh": jnp.tanh}.get(
    fault, numerics.squash
  )
  steps = {"last_skipped": -1, "one_more": 1}.get(fault, 0) + num_iterations
  logits = jnp.zeros(votes.shape[:2], votes.dtype)
  poses = jnp.zeros(votes.shape[1:], votes.dtype)
  coefficients = jnp.zeros(votes.shape[:2], votes.dtype)
  for _ in range(steps):
    rivals = logits
    if leaky and fault != "not_leaky":
      rivals = jnp.pad(logits, ((0, 0), (1, 0)))
    axis = 0 if fault == "over_children" else 1
    coefficients = jax.nn.softmax(rivals, axis)
    if leaky and fault == "wrong_column_dropped":
      coefficients = coefficients[:, :-1]
    elif rivals.shape != logits.shape:
      coefficients = coefficients[:, 1:]
    if fault == "orphan_kept":
      coefficients /= jnp.sum(coefficients, 1, keepdims=True)
    inputs = jnp.einsum("ij,ijd->jd", coefficients, votes)
    if fault == "bias_after_squash":
      poses = squash(inputs) + bias
    elif fault == "bias_forgotten":
      poses = squash(inputs)
    else:
      poses = squash(inputs + bias)
    known = jax.lax.stop_gradient(poses) if fault == "detached" else poses
    agreement = jnp.einsum("ijd,jd->ij", votes, known)
    if fault == "disagreement":
      agreement = -agreement
    if fault == "only_last":
      logits = agreement
    elif fault == "position":
      logits += agreement + jnp.arange(votes.shape[0])[:, None] * jnp.eye(
        1, votes.shape[1]
      )
    elif fault == "parent_order":
      logits += agreement + jnp.arange(votes.shape[1])
    else:
      logits += agreement
  return routing.RoutingOutput(
    poses, numerics.safe_norm(poses), coefficients.astype(votes.dtype)
  )


def check_matches_oracle(route, seed=0):
  for num_iterations, leaky, bias in [
    (3, True, cases.bias(seed)),
    (3, False, cases.bias(seed)),
    (3, False, None),
    (1, False, cases.bias(seed)),
    (2, True, cases.bias(seed)),
    (4, True, None),
    (5, False, cases.bias(seed)),
  ]:
    options = dict(num_iterations=num_iterations, bias=bias, leaky=leaky)
    got = route(cases.votes(seed), **options)
    cases.assert_outputs_close(
      got, oracles.dynamic_routing(cases.votes(seed), **options)
    )


def check_children_permute(route, seed=0):
  order = np.random.default_rng(seed).permutation(cases.VOTES_SHAPE[0])
  want, got = route(cases.votes(seed)), route(cases.votes(seed)[order])
  cases.assert_outputs_close(
    got, want._replace(coefficients=want.coefficients[order])
  )


def check_parents_permute(route, seed=0):
  order = np.random.default_rng(seed).permutation(cases.VOTES_SHAPE[1])
  votes, bias = cases.votes(seed), cases.bias(seed)
  want = route(votes, bias=bias)
  got = route(votes[:, order], bias=bias[order])
  cases.assert_outputs_close(
    got,
    (
      want.poses[order],
      want.activations[order],
      want.coefficients[:, order],
    ),
  )


def check_coefficients_sum_to_one(route, seed=0):
  for num_iterations in (1, 3):
    got = route(cases.votes(seed), num_iterations=num_iterations).coefficients
    np.testing.assert_array_less(-1e-30, got)
    np.testing.assert_allclose(np.sum(got, axis=1), 1, atol=1e-5)


def check_orphan_is_a_logit_of_zero(route, seed=0):
  """The second iteration's logits are the votes times the first's outputs."""
  votes = cases.votes(seed)
  first = route(votes, num_iterations=1, leaky=True)
  got = route(votes, num_iterations=2, leaky=True).coefficients
  logits = np.einsum("ijd,jd->ij", votes, first.poses)
  weights = np.exp(np.pad(logits, ((0, 0), (1, 0))))
  want = weights / np.sum(weights, axis=1, keepdims=True)
  np.testing.assert_allclose(got, want[:, 1:], atol=1e-5)
  np.testing.assert_array_less(np.sum(got, axis=1), 1)


def check_rotation_passes_through(route, seed=0):
  matrix = jax.random.normal(
    jax.random.key(seed), (cases.VOTES_SHAPE[2], cases.VOTES_SHAPE[2])
  )
  rotation, _ = jnp.linalg.qr(matrix)
  votes, bias = cases.votes(seed), cases.bias(seed)
  want = route(votes, bias=bias)
  got = route(votes @ rotation, bias=bias @ rotation)
  cases.assert_outputs_close(got, want._replace(poses=want.poses @ rotation))


def check_one_iteration_is_uniform(route, seed=0):
  votes = cases.votes(seed)
  for leaky in (False, True):
    share = 1 / (votes.shape[1] + leaky)
    got = route(votes, num_iterations=1, leaky=leaky)
    np.testing.assert_allclose(got.coefficients, share, rtol=1e-6)
    want = numerics.squash(share * jnp.sum(votes, axis=0))
    np.testing.assert_allclose(got.poses, want, atol=1e-5)


def check_agreement_wins(route, seed=0):
  """All but one part vote alike for the first parent, at random elsewhere."""
  common = cases.votes(seed + 1, cases.VOTES_SHAPE[2:])
  votes = cases.votes(seed).at[:-1, 0].set(common)
  shares = [
    np.mean(route(votes, num_iterations=n).coefficients[:-1, 0])
    for n in (1, 3, 5)
  ]
  np.testing.assert_array_less(shares[:-1], shares[1:])
  np.testing.assert_array_less(0.5, shares[-1])


def check_bias_is_a_vote(route, seed=0):
  """A bias adds to the total input what the squash then shrinks."""
  votes, bias = cases.votes(seed), cases.bias(seed)
  got = route(votes, num_iterations=1, bias=bias)
  want = route(
    votes + cases.VOTES_SHAPE[1] / cases.VOTES_SHAPE[0] * bias, num_iterations=1
  )
  np.testing.assert_allclose(got.poses, want.poses, atol=1e-5)


_TEXTBOOK_ENERGY = routing_forms.energy(_textbook)


def check_gradient_is_the_textbook_one(energy, seed=0):
  """Of every output, through every iteration, for votes and bias."""
  for leaky in (True, False):
    _, want = _TEXTBOOK_ENERGY(cases.votes(seed), cases.bias(seed), leaky)
    _, got = energy(cases.votes(seed), cases.bias(seed), leaky)
    chex.assert_trees_all_close(got, want, atol=1e-4)


_CHECKS = (
  check_matches_oracle,
  check_children_permute,
  check_parents_permute,
  check_coefficients_sum_to_one,
  check_orphan_is_a_logit_of_zero,
  check_rotation_passes_through,
  check_one_iteration_is_uniform,
  check_agreement_wins,
  check_bias_is_a_vote,
)


class RoutingTest(chex.TestCase):
  @parameterized.product(
    form=tuple(routing_forms.FORMS), check=_CHECKS, seed=_SEEDS
  )
  def test_property(self, form, check, seed):
    check(routing_forms.ROUTES[form], seed=seed)

  def test_textbook_form_is_right(self):
    check_matches_oracle(routing_forms.compiled(_textbook))

  @parameterized.product(form=tuple(routing_forms.FORMS), seed=_SEEDS)
  @pytest.mark.long_after_first
  def test_gradient_is_the_textbook_one(self, form, seed):
    check_gradient_is_the_textbook_one(routing_forms.ENERGIES[form], seed)

  @parameterized.parameters(
    (check_matches_oracle, "over_children"),
    (check_matches_oracle, "only_last"),
    (check_matches_oracle, "no_squash"),
    (check_matches_oracle, "bias_after_squash"),
    (check_matches_oracle, "orphan_kept"),
    (check_matches_oracle, "wrong_column_dropped"),
    (check_matches_oracle, "last_skipped"),
    (check_children_permute, "position"),
    (check_parents_permute, "parent_order"),
    (check_coefficients_sum_to_one, "over_children"),
    (check_orphan_is_a_logit_of_zero, "not_leaky"),
    (check_orphan_is_a_logit_of_zero, "wrong_column_dropped"),
    (check_rotation_passes_through, "tanh"),
    (check_one_iteration_is_uniform, "over_children"),
    (check_one_iteration_is_uniform, "one_more"),
    (check_agreement_wins, "disagreement"),
    (check_agreement_wins, "over_children"),
    (check_bias_is_a_vote, "bias_after_squash"),
    (check_bias_is_a_vote, "bias_forgotten"),
    (check_gradient_is_the_textbook_one, "detached"),
    (check_gradient_is_the_textbook_one, "only_last"),
  )
  @pytest.mark.long_after_first
  def test_broken_copy_fails(self, check, fault):
    broken = functools.partial(_textbook, fault=fault)
    gradient = check is check_gradient_is_the_textbook_one
    broken = (
      routing_forms.energy(broken)
      if gradient
      else routing_forms.compiled(broken)
    )
    with self.assertRaises(AssertionError):
      check(broken)

  @parameterized.product(
    shape=[(1, 1, 1), (1, 4, 3), (6, 1, 3), (5, 3, 1)],
    form=tuple(routing_forms.FORMS),
  )
  def test_small_shapes_match_oracle(self, shape, form):
    votes, bias = cases.votes(0, shape), cases.bias(0, shape)
    got = routing_forms.ROUTES[form](votes, bias=bias, leaky=True)
    cases.assert_outputs_close(
      got, oracles.dynamic_routing(votes, bias=bias, leaky=True)
    )

  @parameterized.parameters(1, 2, 7, 100)
  def test_transforms_make_the_votes(self, chunk_size, seed=0):
    keys = jax.random.split(jax.random.key(seed))
    poses = jax.random.normal(keys[0], (7, 3))
    transforms = jax.random.normal(keys[1], (7, 4, 3, 5))
    votes = np.zeros(cases.VOTES_SHAPE)
    for i in range(7):
      for j in range(4):
        votes[i, j] = np.float64(poses[i]) @ np.float64(transforms[i, j])
    options = dict(bias=cases.bias(seed), leaky=True)
    route = functools.partial(
      routing.transform_and_route, chunk_size=chunk_size, **options
    )
    cases.assert_outputs_close(
      jax.jit(route)(poses, transforms),
      oracles.dynamic_routing(votes, **options),
    )

  def test_defaults(self):
    votes = cases.votes()
    want = oracles.dynamic_routing(
      votes, num_iterations=3, bias=None, leaky=False
    )
    cases.assert_outputs_close(routing.dynamic_routing(votes), want)
    cases.assert_outputs_close(
      routing.transform_and_route(jnp.ones((7, 1)), votes[:, :, None]), want
    )

  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.parameters(*routing_forms.FORMS)
  @pytest.mark.long_after_first
  def test_vmap_is_a_loop(self, form):
    route = self.variant(routing_forms.FORMS[form])
    votes = cases.votes(0, (2, *cases.VOTES_SHAPE))
    want = [route(example) for example in votes]
    want = jax.tree.map(lambda *leaves: jnp.stack(leaves), *want)
    chex.assert_trees_all_close(jax.vmap(route)(votes), want, atol=1e-6)


if __name__ == "__main__":
  absltest.main()
