"""Routing on a grid against algorithm 1 of DeepCaps, as loops in float64."""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax.test_util import check_grads

from kernels import numerics
from kernels.routing import grid

_SHAPE = 4, 2, 3, 3, 5  # I H W J D
_route = jax.jit(
  grid.grid_routing, static_argnames=("num_iterations", "gradient")
)


def _arguments(seed=0, dtype=jnp.float32):
  return cases.votes(seed, _SHAPE, dtype), cases.bias(seed, _SHAPE[2:], dtype)


def _oracle(votes, bias, num_iterations):
  votes, bias = np.float64(votes), np.float64(bias)
  num_parts, height, width, num_objects, _ = votes.shape
  b = np.zeros(votes.shape[:4])
  for _ in range(num_iterations):
    k = np.zeros_like(b)
    for s in range(num_parts):
      total = sum(
        np.exp(b[s, x, y, z])
        for x in range(height)
        for y in range(width)
        for z in range(num_objects)
      )
      k[s] = np.exp(b[s]) / total
    v = np.zeros(votes.shape[1:])
    for p in range(height):
      for q in range(width):
        for r in range(num_objects):
          total = np.copy(bias[r])
          for s in range(num_parts):
            total += k[s, p, q, r] * votes[s, p, q, r]
          v[p, q, r] = oracles.squash(total)
          for s in range(num_parts):
            b[s, p, q, r] += v[p, q, r] @ votes[s, p, q, r]
  return v, np.linalg.norm(v, axis=-1), k


def check_matches_oracle(route, seed=0, num_iterations=3):
  votes, bias = _arguments(seed)
  votes *= 3
  got = route(votes, bias=bias, num_iterations=num_iterations)
  cases.assert_outputs_close(got, _oracle(votes, bias, num_iterations))


def _textbook(votes, bias, num_iterations, *, fault=None):
  axes = {"positions_alone": (1, 2), "parents_alone": 3}.get(fault, (1, 2, 3))
  logits = jnp.zeros(votes.shape[:4])
  for _ in range(num_iterations):
    k = jax.nn.softmax(logits, axes)
    total = jnp.einsum("ihwj,ihwjd->hwjd", k, votes)
    v = numerics.squash(total if fault == "no_bias" else total + bias)
    gain = jnp.einsum("ihwjd,hwjd->ihwj", votes, v)
    logits = gain if fault == "forgets" else logits + gain
  return v, jnp.linalg.norm(v, axis=-1), k


@pytest.mark.parametrize("num_iterations", [1, 2, 3])
def test_matches_oracle(num_iterations):
  check_matches_oracle(_route, num_iterations=num_iterations)


def test_textbook_form_is_right():
  check_matches_oracle(_textbook)


@pytest.mark.parametrize(
  "fault", ["positions_alone", "parents_alone", "no_bias", "forgets"]
)
def test_broken_copy_fails(fault):
  with pytest.raises(AssertionError):
    check_matches_oracle(functools.partial(_textbook, fault=fault))


def test_shares_of_a_type_sum_to_one_over_the_grid():
  shares = _route(_arguments()[0]).coefficients
  np.testing.assert_allclose(np.sum(shares, axis=(1, 2, 3)), 1, atol=1e-5)


def test_positions_permute():
  votes, bias = _arguments()
  want, got = _route(votes, bias=bias), _route(votes[:, ::-1], bias=bias)
  np.testing.assert_allclose(got.poses, want.poses[::-1], atol=1e-6)


def test_gradients_are_those_of_differences():
  with jax.enable_x64(True):
    arguments = _arguments(dtype=jnp.float64)
    check_grads(
      lambda votes, bias: _route(votes, bias=bias),
      arguments,
      order=1,
      modes=("fwd", "rev"),
    )


def test_the_gradient_of_the_last_iteration_is_another():
  def energy(votes, gradient):
    return jnp.sum(jnp.cos(_route(votes, gradient=gradient).poses))

  votes, _ = _arguments()
  one, other = (jax.grad(energy)(votes, x) for x in ("all", "last"))
  assert np.max(np.abs(one - other)) > 1e-4


@pytest.mark.parametrize(
  ("options", "words"),
  [
    (dict(num_iterations=0), "num_iterations is 0; give at least 1"),
    (dict(gradient="none"), "gradient is 'none'; give 'all' or"),
  ],
)
def test_options_that_do_not_fit_are_refused(options, words):
  with pytest.raises(ValueError, match=words):
    grid.grid_routing(_arguments()[0], **options)
