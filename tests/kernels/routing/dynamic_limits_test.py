"""Routing by agreement at its limits: gradients, precision, extreme votes."""

import inspect

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import routing_forms
from absl.testing import absltest, parameterized
from jax.test_util import check_grads

from kernels import routing


class RoutingLimitsTest(chex.TestCase):
  @parameterized.parameters(False, True)
  def test_gradients_of_votes_and_bias(self, leaky):
    with jax.enable_x64(True):
      votes = cases.votes(0, (4, 3, 2), jnp.float64)
      bias = cases.bias(0, (4, 3, 2), jnp.float64)
      route = jax.jit(
        lambda votes, bias: routing.dynamic_routing(
          votes, bias=bias, leaky=leaky
        )
      )
      check_grads(route, (votes, bias), order=1, modes=("fwd", "rev"))

  @parameterized.parameters(1, 2, 3)
  def test_gradients_of_poses_and_transforms(self, parents_at_once, seed=0):
    with jax.enable_x64(True):
      keys = jax.random.split(jax.random.key(seed))
      poses = jax.random.normal(keys[0], (5, 2), jnp.float64)
      transforms = jax.random.normal(keys[1], (5, 3, 2, 4), jnp.float64)
      bias = cases.bias(seed, (5, 3, 4), jnp.float64)
      route = jax.jit(
        lambda poses, transforms, bias: routing.transform_and_route(
          poses,
          transforms,
          bias=bias,
          chunk_size=2,
          parents_at_once=parents_at_once,
        )
      )
      arguments = (poses, transforms, bias)
      check_grads(route, arguments, order=1, modes=("fwd", "rev"))

  @parameterized.product(form=tuple(routing_forms.FORMS), seed=[0])
  def test_bfloat16_rounds_only_inputs_and_outputs(self, form, seed):
    votes = cases.votes(seed, (300, 4, 5)).astype(jnp.bfloat16)
    got = routing_forms.ROUTES[form](votes)
    chex.assert_type(list(got), jnp.bfloat16)
    want = oracles.dynamic_routing(votes)
    # Half of the spacing of numbers below 1 is 2^-9.
    got = jax.tree.map(lambda x: x.astype(jnp.float32), got)
    cases.assert_outputs_close(got, want, atol=1.01 * 2**-9)
    chex.assert_type(
      list(routing_forms.ROUTES[form](cases.votes(seed))), jnp.float32
    )

  @parameterized.product(
    case=[
      ("zero_votes", jnp.zeros(cases.VOTES_SHAPE)),
      ("one_child", cases.votes(0, (1, 4, 5))),
      ("one_parent", cases.votes(0, (7, 1, 5))),
      ("one_dimension", cases.votes(0, (7, 4, 1))),
      (
        "coincident_votes",
        jnp.broadcast_to(cases.votes(0, (5,)), cases.VOTES_SHAPE),
      ),
      (
        "opposite_votes",
        cases.votes(0, (4, 5)) * (-1) ** jnp.arange(7.0)[:, None, None],
      ),
      ("large_votes", 1e4 * cases.votes()),
      ("large_coincident_votes", jnp.full(cases.VOTES_SHAPE, -1e4)),
      ("small_votes", 1e-6 * cases.votes()),
      ("tiny_votes", 1e-25 * cases.votes()),
    ],
    leaky=[False, True],
    form=tuple(routing_forms.FORMS),
  )
  @pytest.mark.long_after_first
  def test_degenerate_votes_are_finite(self, case, leaky, form):
    _, votes = case
    for bias in (
      jnp.zeros(votes.shape[1:]),
      cases.bias(0, votes.shape),
    ):
      (_, outputs), gradients = routing_forms.ENERGIES[form](votes, bias, leaky)
      chex.assert_tree_all_finite((outputs, gradients))
      total = np.sum(outputs.coefficients, axis=1)
      np.testing.assert_array_less(total, 1 + 1e-5)
      if not leaky:
        np.testing.assert_allclose(total, 1, atol=1e-5)

  @parameterized.parameters(*routing_forms.FORMS)
  def test_new_values_do_not_recompile(self, form):
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def route(votes, bias):
      return routing_forms.FORMS[form](votes, bias=bias)

    for seed in range(3):
      route(cases.votes(seed), cases.bias(seed))

  def test_votes_are_not_stored(self):
    """Not even for the gradient, where the plain form keeps several copies."""
    batch, num_parts, num_parents, part_size, pose_size = 64, 512, 10, 8, 16
    poses = jax.ShapeDtypeStruct((batch, num_parts, part_size), jnp.float32)
    transforms = jax.ShapeDtypeStruct(
      (num_parts, num_parents, part_size, pose_size), jnp.float32
    )
    votes = 4 * batch * num_parts * num_parents * pose_size

    def temporary_bytes(route):
      def energy(poses, transforms):
        output = jax.vmap(route, (0, None))(poses, transforms)
        return jnp.sum(jnp.square(output.poses))

      gradient = jax.jit(jax.grad(energy, (0, 1))).lower(poses, transforms)
      return gradient.compile().memory_analysis().temp_size_in_bytes

    def plain(poses, transforms):
      votes = jnp.einsum("ic,ijcd->ijd", poses, transforms)
      return routing.dynamic_routing(votes)

    self.assertLess(temporary_bytes(routing.transform_and_route), votes)
    self.assertGreater(temporary_bytes(plain), 2 * votes)

  @parameterized.parameters(0, -1)
  def test_too_few_iterations_are_refused(self, num_iterations):
    for route in routing_forms.FORMS.values():
      with self.assertRaisesRegex(ValueError, f"num_iter.* {num_iterations};"):
        route(cases.votes(), num_iterations=num_iterations)

  @parameterized.parameters(0, -1)
  def test_empty_chunks_are_refused(self, chunk_size):
    with self.assertRaisesRegex(ValueError, f"chunk_size is {chunk_size};"):
      routing_forms.through_transforms(cases.votes(), chunk_size=chunk_size)

  def test_wrong_shapes_are_refused(self):
    route = inspect.unwrap(routing.dynamic_routing)
    with self.assertRaisesRegex(ValueError, r"votes is \[1 7 4 5\]"):
      route(cases.votes()[None])
    route = inspect.unwrap(routing.transform_and_route)
    transforms = jnp.ones((7, 4, 2, 5))
    with self.assertRaisesRegex(ValueError, "give"):
      route(jnp.ones((3, 7, 2)), transforms)
    with self.assertRaisesRegex(ValueError, "give"):
      route(jnp.ones((1, 2)), transforms)


if __name__ == "__main__":
  absltest.main()
