"""Controls of routing against loops in float64 NumPy.

What they share with all routings is in `all_routings_test`.
"""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax.test_util import check_grads

from kernels import numerics
from kernels.routing import controls, linear_votes

_top1 = jax.jit(controls.top1_routing, static_argnames="num_iterations")
_uniform = jax.jit(controls.uniform_routing)
_ROUTES = {"uniform": _uniform, "top1": _top1}


def _oracle(name, votes, bias, num_iterations=3):
  votes, bias = np.float64(votes), np.float64(bias)
  num_parts, num_parents, pose_size = votes.shape
  c = np.full((num_parts, num_parents), 1 / num_parents)
  consensus = np.zeros((num_parents, pose_size))
  for r in range(1 if name == "uniform" else num_iterations):
    if r:
      c = np.zeros((num_parts, num_parents))
      for i in range(num_parts):
        scores = [votes[i, j] @ consensus[j] for j in range(num_parents)]
        c[i, scores.index(max(scores))] = 1.0
    v = np.zeros((num_parents, pose_size))
    for j in range(num_parents):
      s = bias[j] + sum(c[i, j] * votes[i, j] for i in range(num_parts))
      v[j] = oracles.squash(s)
    consensus = consensus + v
  return v, np.linalg.norm(v, axis=1), c


def check_matches_oracle(name, route, seed=0, **options):
  votes, bias = cases.votes(seed), cases.bias(seed)
  want = _oracle(name, votes, bias, **options)
  cases.assert_outputs_close(route(votes, bias=bias, **options), want)


def _textbook_top1(votes, bias, *, fault=None):
  coefficients = jnp.full(votes.shape[:2], 1 / votes.shape[1])
  consensus = jnp.zeros(votes.shape[1:])
  for r in range(3):
    if r:
      scores = jnp.einsum("ijd,jd->ij", votes, consensus)
      if fault == "worst":
        scores = -scores
      axis = 0 if fault == "over_children" else 1
      best = jnp.max(scores, axis, keepdims=True)
      coefficients = jnp.float32(scores == best)
    total = jnp.einsum("ij,ijd->jd", coefficients, votes)
    poses = numerics.squash(total if fault == "no_bias" else total + bias)
    consensus = poses if fault == "forgets" else consensus + poses
  return poses, jnp.linalg.norm(poses, axis=1), coefficients


def _textbook_uniform(votes, bias, *, fault=None):
  num_parts, num_parents, _ = votes.shape
  share = 1 / (num_parts if fault == "over_children" else num_parents)
  total = share * jnp.sum(votes, axis=0)
  poses = numerics.squash(total if fault == "no_bias" else total + bias)
  coefficients = jnp.full((num_parts, num_parents), share)
  return poses, jnp.linalg.norm(poses, axis=1), coefficients


_TEXTBOOKS = {"uniform": _textbook_uniform, "top1": _textbook_top1}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", _ROUTES)
def test_matches_oracle(name, seed):
  check_matches_oracle(name, _ROUTES[name], seed)


@pytest.mark.parametrize("num_iterations", [1, 2])
def test_iterations(num_iterations):
  check_matches_oracle("top1", _top1, num_iterations=num_iterations)


@pytest.mark.parametrize("name", _ROUTES)
def test_textbook_form_is_right(name):
  check_matches_oracle(name, _TEXTBOOKS[name])


@pytest.mark.parametrize(
  ("name", "fault"),
  [
    ("uniform", "over_children"),
    ("uniform", "no_bias"),
    ("top1", "over_children"),
    ("top1", "worst"),
    ("top1", "no_bias"),
    ("top1", "forgets"),
  ],
)
def test_broken_copy_fails(name, fault):
  broken = functools.partial(_TEXTBOOKS[name], fault=fault)
  with pytest.raises(AssertionError):
    # Seeds of which some tell the sum of outputs from the last output.
    for seed in range(20):
      check_matches_oracle(name, broken, seed)


@pytest.mark.parametrize("name", _ROUTES)
def test_gradients_and_factors(name):
  """Votes as two factors give the same; gradients are those of differences."""
  factors = linear_votes.LinearVotes(
    cases.votes(0, (7, 3)), cases.votes(1, (7, 4, 3, 5))
  )
  votes = jnp.einsum("ic,ijcd->ijd", *factors, precision="highest")
  cases.assert_outputs_close(
    _ROUTES[name](factors, bias=cases.bias()),
    _oracle(name, votes, cases.bias()),
  )
  with jax.enable_x64(True):
    arguments = cases.votes(0, (4, 3, 3), jnp.float64), jnp.ones((3, 3)) / 4

    def route(votes, bias):
      return _ROUTES[name](votes, bias=bias)

    check_grads(route, arguments, order=1, modes=("fwd", "rev"))


def test_iterations_and_gradients_that_do_not_fit_are_refused():
  with pytest.raises(ValueError, match="num_iterations is 0; give at least 1"):
    controls.top1_routing(cases.votes(), num_iterations=0)
  with pytest.raises(ValueError, match="gradient is 'none'; give 'all' or"):
    linear_votes.require_iterations(1, gradient="none")
