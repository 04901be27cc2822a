"""Balanced routing against Sinkhorn's algorithm as a loop, in float64 NumPy.

What it shares with all routings is in `all_routings_test`.
"""

import functools

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax.test_util import check_grads

from kernels import numerics
from kernels.routing import dynamic_routing, linear_votes, sinkhorn

_route = jax.jit(
  sinkhorn.sinkhorn_routing,
  static_argnames=("num_iterations", "num_sweeps", "temperature", "gradient"),
)


def _activations(seed=0, num_parts=cases.VOTES_SHAPE[0], dtype=jnp.float32):
  random = np.random.default_rng(seed + 50)
  return jnp.array(random.uniform(0.2, 1, num_parts), dtype)


def _oracle(votes, masses, bias, num_iterations=3, num_sweeps=5, temperature=1):
  votes, masses, bias = map(np.float64, (votes, masses, bias))
  num_parts, num_parents, _ = votes.shape
  c = np.full((num_parts, num_parents), 1 / num_parents)
  consensus = np.zeros(votes.shape[1:])
  for r in range(num_iterations):
    if r:
      plan = np.zeros_like(c)
      for i in range(num_parts):
        for j in range(num_parents):
          plan[i, j] = np.exp(votes[i, j] @ consensus[j] / temperature)
      for _ in range(num_sweeps):
        for i in range(num_parts):
          plan[i] *= masses[i] / sum(plan[i])
        for j in range(num_parents):
          plan[:, j] *= sum(masses) / num_parents / sum(plan[:, j])
      c = np.array([row / sum(row) for row in plan])
    v = np.array(
      [
        oracles.squash(
          bias[j] + sum(c[i, j] * votes[i, j] for i in range(len(c)))
        )
        for j in range(num_parents)
      ]
    )
    consensus = consensus + v
  return v, np.linalg.norm(v, axis=1), c


def check_matches_oracle(route, seed=0, **options):
  arguments = cases.votes(seed), _activations(seed), cases.bias(seed)
  votes, activations, bias = arguments
  got = route(votes, activations=activations, bias=bias, **options)
  cases.assert_outputs_close(got, _oracle(*arguments, **options))


def _textbook(votes, activations, bias, *, gradient="all", fault=None):
  coefficients = jnp.full(votes.shape[:2], 1 / votes.shape[1])
  consensus = jnp.zeros(votes.shape[1:])
  for r in range(3):
    if r:
      scores = jnp.einsum("ijd,jd->ij", votes, consensus)
      plan = jnp.exp(-scores if fault == "disagreement" else scores)
      for _ in range(4 if fault == "one_sweep_less" else 5):
        plan /= jnp.sum(plan, axis=1, keepdims=True)
        if fault != "equal_masses":
          plan *= activations[:, None]
        if fault != "unbalanced":
          plan /= jnp.sum(plan, axis=0)
      coefficients = plan
      if fault != "columns_last":
        coefficients = plan / jnp.sum(plan, axis=1, keepdims=True)
      if gradient == "last":
        coefficients = jax.lax.stop_gradient(coefficients)
    total = jnp.einsum("ij,ijd->jd", coefficients, votes)
    poses = numerics.squash(total if fault == "no_bias" else total + bias)
    consensus = poses if fault == "forgets" else consensus + poses
  return poses, jnp.linalg.norm(poses, axis=1), coefficients


@pytest.mark.parametrize("seed", [0, 1])
def test_matches_oracle(seed):
  check_matches_oracle(_route, seed)


@pytest.mark.parametrize(
  "options",
  [
    {"num_iterations": 1},
    {"num_iterations": 2, "num_sweeps": 0},
    {"num_iterations": 2, "num_sweeps": 1, "temperature": 0.5},
  ],
)
def test_options(options):
  check_matches_oracle(sinkhorn.sinkhorn_routing, **options)


def test_textbook_form_is_right():
  check_matches_oracle(_textbook)


@pytest.mark.parametrize(
  "fault",
  [
    "disagreement",
    "one_sweep_less",
    "equal_masses",
    "unbalanced",
    "columns_last",
    "no_bias",
    "forgets",
  ],
)
def test_broken_copy_fails(fault):
  with pytest.raises(AssertionError):
    check_matches_oracle(functools.partial(_textbook, fault=fault))


@pytest.mark.long
def test_every_parent_takes_the_same_mass():
  activations = _activations()
  _, _, shares = _route(cases.votes(), activations=activations, num_sweeps=200)
  masses = activations @ shares
  np.testing.assert_allclose(masses, np.sum(activations) / 4, rtol=1e-4)
  np.testing.assert_allclose(np.sum(shares, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("gradient", ["all", "last"])
@pytest.mark.long_after_first
def test_gradients_are_the_textbook_ones(gradient):
  def energy(route):
    def of(votes, activations, bias):
      found = route(
        votes, activations=activations, bias=bias, gradient=gradient
      )
      return sum(jnp.sum(jnp.cos(x)) for x in found)

    return jax.jit(jax.grad(of, (0, 1, 2)))

  arguments = cases.votes(), _activations(), cases.bias()
  got = energy(sinkhorn.sinkhorn_routing)(*arguments)
  want = energy(_textbook)(*arguments)
  chex.assert_trees_all_close(got, want, atol=2e-5)
  other = {"all": "last", "last": "all"}[gradient]
  broken = energy(functools.partial(_with, other))(*arguments)
  with pytest.raises(AssertionError):
    chex.assert_trees_all_close(broken, want, atol=2e-5)


def _with(other, votes, *, gradient, **arguments):
  """The gradient that was not asked for."""
  del gradient
  return sinkhorn.sinkhorn_routing(votes, gradient=other, **arguments)


def test_gradients_are_those_of_differences():
  with jax.enable_x64(True):
    arguments = (
      cases.votes(0, (4, 3, 3), jnp.float64),
      _activations(0, 4, jnp.float64),
    )

    def route(votes, activations):
      return _route(votes, activations=activations)

    check_grads(route, arguments, order=1, modes=("fwd", "rev"))


def test_factors_make_the_votes():
  factors = linear_votes.LinearVotes(
    cases.votes(0, (7, 3)), cases.votes(1, (7, 4, 3, 5))
  )
  votes = jnp.einsum("ic,ijcd->ijd", *factors, precision="highest")
  want = _route(votes, activations=_activations())
  got = _route(factors, activations=_activations())
  cases.assert_outputs_close(got, want, atol=1e-4)


def test_options_out_of_range_are_refused():
  for options, words in (
    ({"temperature": 0.0}, "temperature is 0.0; give"),
    ({"num_sweeps": -1}, "num_sweeps is -1; give at least 0"),
    ({"num_iterations": 0}, "num_iterations is 0; give at least 1"),
    ({"gradient": "first"}, "gradient is 'first'; give 'all' or 'last'"),
  ):
    with pytest.raises(ValueError, match=words):
      sinkhorn.sinkhorn_routing(cases.votes(), **options)


def test_without_sweeps_or_compilation_it_is_dynamic_routing():
  votes = cases.votes()
  with jax.disable_jit():
    output = sinkhorn.sinkhorn_routing(votes, num_sweeps=0)
  chex.assert_trees_all_close(output, dynamic_routing(votes), rtol=1e-5)
