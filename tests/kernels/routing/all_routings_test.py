"""Every routing through the same properties, and broken copies that fail them.

What is a routing's own, its equations above all, is in the test of its module.
"""

import functools

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import routing_rows
from absl.testing import absltest, parameterized
from jax.test_util import check_grads

from kernels import routing

_SEEDS = (0, 1)
_SHAPE = cases.VOTES_SHAPE
_OUTPUTS = routing.RoutingOutput._fields
_ROWS = routing_rows.PROPERTIES


def _weights(seed=0, num_parts=_SHAPE[0], dtype=jnp.float32):
  random = np.random.default_rng(seed + 100)
  return jnp.array(random.uniform(0.2, 1.0, num_parts), dtype)


def _close(got, want, fields=_OUTPUTS, atol=2e-5):
  for name in fields:
    one, other = (getattr(x, name) for x in (got, want))
    np.testing.assert_allclose(one, other, atol=atol, err_msg=name)


def check_coefficients_are_shares(route, row, seed=0):
  del row
  for scale in (0.01, 1.0, 100.0):
    got = route(scale * cases.votes(seed), _weights(seed)).coefficients
    np.testing.assert_array_less(-1e-30, got)
    np.testing.assert_allclose(np.sum(got, axis=1), 1, atol=1e-5)


def check_activations_are_probabilities(route, row, seed=0):
  del row
  for scale in (0.01, 1.0, 100.0):
    got = route(scale * cases.votes(seed), _weights(seed)).activations
    np.testing.assert_array_less(-1e-30, got)
    np.testing.assert_array_less(got, 1 + 1e-6)


def check_children_permute(route, row, seed=0):
  del row
  order = np.random.default_rng(seed).permutation(_SHAPE[0])
  votes, weights = cases.votes(seed), _weights(seed)
  want = route(votes, weights)
  got = route(votes[order], weights[order])
  _close(got, want._replace(coefficients=want.coefficients[order]))


def check_parents_permute(route, row, seed=0):
  del row
  order = np.random.default_rng(seed).permutation(_SHAPE[1])
  votes, weights = cases.votes(seed), _weights(seed)
  want = route(votes, weights)
  want = routing.RoutingOutput(
    want.poses[order], want.activations[order], want.coefficients[:, order]
  )
  _close(route(votes[:, order], weights), want)


def check_absent_children_change_nothing(route, row, seed=0):
  """Zeros at the end of the weights, against votes that are not there."""
  del row
  votes, weights = cases.votes(seed), _weights(seed).at[-2:].set(0.0)
  want = route(votes[:-2], weights[:-2])
  got = route(votes, weights)
  _close(got._replace(coefficients=got.coefficients[:-2]), want)


def check_children_split(route, row, seed=0):
  """The last part, and a copy in place of the first, at half its weight."""
  del row
  votes, weights = cases.votes(seed), _weights(seed)
  want = route(votes[1:], weights[1:])
  got = route(
    votes.at[0].set(votes[-1]),
    weights.at[0].set(weights[-1] / 2).at[-1].divide(2),
  )
  _close(got._replace(coefficients=got.coefficients[1:]), want)


def check_turn_passes_through(route, row, seed=0):
  matrix = np.float32(row.turn(np.random.default_rng(seed)))
  votes, weights = cases.votes(seed), _weights(seed)
  want = route(votes, weights)
  want = want._replace(poses=want.poses @ matrix)
  _close(route(votes @ matrix, weights), want, ("poses", *row.turned))


def check_agreement_wins(route, row, seed=0):
  """The votes for the first parent agree, the others are noise as long."""
  common = cases.votes(seed + 1, _SHAPE[2:])
  common *= np.sqrt(len(common)) / np.linalg.norm(common)
  votes = cases.votes(seed).at[:, 0].multiply(0.1).at[:, 0].add(common)
  got = route(votes, jnp.ones(_SHAPE[0]))
  if "activations" in row.rewarded:
    np.testing.assert_array_less(got.activations[1:], got.activations[0])
  if "coefficients" in row.rewarded:
    np.testing.assert_array_less(0.5, np.mean(got.coefficients[:, 0]))


def check_bfloat16_is_kept(route, row, seed=0):
  del row
  got = route(cases.votes(seed), _weights(seed))
  half = (x.astype(jnp.bfloat16) for x in (cases.votes(seed), _weights(seed)))
  rounded = route(*half)
  chex.assert_type(list(rounded), jnp.bfloat16)
  _close(jax.tree.map(jnp.float32, rounded), got, atol=0.05)


_CHECKS = (
  check_coefficients_are_shares,
  check_activations_are_probabilities,
  check_children_permute,
  check_parents_permute,
  check_absent_children_change_nothing,
  check_children_split,
  check_turn_passes_through,
  check_agreement_wins,
  check_bfloat16_is_kept,
)


def check_jit_changes_nothing(route):
  _close(
    jax.jit(route)(cases.votes(), _weights()), route(cases.votes(), _weights())
  )


def check_vmap_is_a_loop(route):
  votes = cases.votes(0, (3, *_SHAPE))
  weights = jnp.stack([_weights(seed) for seed in range(3)])
  want = list(map(jax.jit(route), votes, weights))
  want = jax.tree.map(lambda *leaves: jnp.stack(leaves), *want)
  _close(jax.jit(jax.vmap(route))(votes, weights), want)


def check_degenerate_votes_are_finite(route):
  @jax.jit
  @functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
  def energy(votes, weights):
    outputs = route(votes, weights)
    return sum(jnp.sum(jnp.cos(x)) for x in outputs), outputs

  signs = (-1) ** jnp.arange(7.0)[:, None, None]
  for votes in (
    jnp.zeros(_SHAPE),
    1e-25 * cases.votes(),
    1e3 * cases.votes(),
    jnp.broadcast_to(cases.votes(0, _SHAPE[2:]), _SHAPE),
    -1e3 * jnp.ones(_SHAPE),
    signs * cases.votes(0, _SHAPE[1:]),
    cases.votes(0, (1, *_SHAPE[1:])),
  ):
    for weights in (jnp.ones(len(votes)), jnp.zeros(len(votes))):
      (_, outputs), gradients = energy(votes, weights)
      chex.assert_tree_all_finite((outputs, gradients))
      np.testing.assert_allclose(
        np.sum(outputs.coefficients, axis=1), 1, atol=1e-5
      )
      np.testing.assert_array_less(outputs.activations, 1 + 1e-6)


def check_gradients(route):
  with jax.enable_x64(True):
    votes = cases.votes(0, (4, 3, 3), jnp.float64)
    weights = _weights(0, 4, jnp.float64)
    check_grads(jax.jit(route), (votes, weights), order=1, modes=("fwd", "rev"))


def check_products_are_not_rounded(route):
  votes, weights = cases.votes(0, (3, *_SHAPE)), jnp.ones((3, _SHAPE[0]))
  cases.assert_products_are_not_rounded(jax.vmap(route), votes, weights)


_TRANSFORMED_CHECKS = (
  check_jit_changes_nothing,
  check_vmap_is_a_loop,
  check_degenerate_votes_are_finite,
  check_gradients,
  check_products_are_not_rounded,
)

_compiled = functools.cache(jax.jit)


def _cases(*tests):
  """Every routing with every test, beginning with a check, that it may fail."""
  for name, row in _ROWS.items():
    for check, *rest in tests:
      if check is check_children_split and not row.splits:
        continue
      if check is check_agreement_wins and not row.rewarded:
        continue
      yield name, check, *rest


def _broken(route, fault):
  """A routing with a fault in what it is given or in what it returns."""

  def broken(votes, weights):
    num_parts, num_parents, _ = votes.shape
    if fault == "sees_rank":
      votes = votes.at[:, :, 0].add(jnp.arange(num_parts)[:, None] / 2)
    elif fault == "knows_parents":
      votes = votes.at[:, :, 0].add(jnp.arange(num_parents) / 2)
    elif fault == "ignores_weights":
      weights = jnp.ones_like(weights)
    elif fault == "squares_weights":
      weights = jnp.square(weights)
    elif fault == "knows_axes":
      votes *= 1 + jnp.arange(votes.shape[2])
    elif fault == "sees_the_trace":
      votes *= 1 + isinstance(votes, jax.core.Tracer)
    elif fault == "unit_votes":
      votes /= jnp.linalg.norm(votes, axis=2, keepdims=True)
    elif fault == "detached":
      votes = jax.lax.stop_gradient(votes)
    poses, activations, coefficients = route(votes, weights)
    if fault == "over_children":
      coefficients /= jnp.sum(coefficients, axis=0)
    elif fault == "not_squashed":
      activations += 1
    elif fault == "rounds":
      poses = poses @ jnp.eye(poses.shape[1])
    elif fault == "signed":
      activations -= 1
    elif fault == "widens":
      activations = activations.astype(jnp.float32)
    elif fault == "first_is_last":
      activations, coefficients = activations[::-1], coefficients[:, ::-1]
    return routing.RoutingOutput(poses, activations, coefficients)

  if fault != "shares_the_batch":
    return broken
  alone = jax.custom_batching.custom_vmap(broken)

  @alone.def_vmap
  def _(axis_size, in_batched, votes, weights):
    del axis_size, in_batched
    outputs = jax.vmap(broken)(votes, weights)
    outputs = jax.tree.map(lambda x: x + jnp.mean(x, axis=0), outputs)
    return outputs, jax.tree.map(lambda _: True, outputs)

  return alone


class RoutingsTest(parameterized.TestCase):
  @parameterized.parameters(
    *_cases(*((check, seed) for check in _CHECKS for seed in _SEEDS))
  )
  def test_property(self, name, check, seed):
    row = _ROWS[name]
    check(_compiled(row.route), row, seed)

  @parameterized.product(name=tuple(_ROWS), check=_TRANSFORMED_CHECKS)
  @pytest.mark.long_after_first
  def test_transformed(self, name, check):
    check(_ROWS[name].route)

  @parameterized.parameters(
    *_cases(
      (check_coefficients_are_shares, "over_children"),
      (check_activations_are_probabilities, "not_squashed"),
      (check_activations_are_probabilities, "signed"),
      (check_children_permute, "sees_rank"),
      (check_parents_permute, "knows_parents"),
      (check_absent_children_change_nothing, "ignores_weights"),
      (check_children_split, "squares_weights"),
      (check_turn_passes_through, "knows_axes"),
      (check_agreement_wins, "first_is_last"),
      (check_bfloat16_is_kept, "widens"),
    )
  )
  def test_broken_copy_fails(self, name, check, fault):
    row = _ROWS[name]
    with self.assertRaises(AssertionError):
      check(_broken(_compiled(row.route), fault), row)

  @parameterized.parameters(
    (check_jit_changes_nothing, "sees_the_trace"),
    (check_vmap_is_a_loop, "shares_the_batch"),
    (check_degenerate_votes_are_finite, "unit_votes"),
    (check_gradients, "detached"),
    (check_products_are_not_rounded, "rounds"),
  )
  def test_broken_copy_fails_transformed(self, check, fault):
    with self.assertRaises(AssertionError):
      check(_broken(_ROWS["dynamic"].route, fault))

  def test_rotations_do_not_pass_through_where_the_table_says_so(self):
    for name in ("inverted_attention", "variational"):
      row = _ROWS[name]._replace(turn=routing_rows.rotation)
      with self.assertRaises(AssertionError):
        check_turn_passes_through(_compiled(row.route), row)


if __name__ == "__main__":
  absltest.main()
