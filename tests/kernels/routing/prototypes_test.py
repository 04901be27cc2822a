"""Routing by prototypes against its equations as loops, in float64 NumPy.

What it shares with all routings is in `all_routings_test`.
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
from kernels.routing import linear_votes, prototypes

_SPACE = 3
_route = jax.jit(prototypes.prototype_routing)


def _arguments(seed=0, shape=cases.VOTES_SHAPE, dtype=jnp.float32):
  random = np.random.default_rng(seed + 100)
  return {
    "embeddings": jnp.array(random.normal(size=(shape[0], _SPACE)), dtype),
    "prototypes": jnp.array(random.normal(size=(shape[1], _SPACE)), dtype),
    "bias": jnp.array(random.normal(size=shape[1:]) / 2, dtype),
  }


def _oracle(votes, embeddings, prototypes, bias):
  num_parts, num_parents, _ = votes.shape
  c = np.zeros((num_parts, num_parents))
  for i in range(num_parts):
    c[i] = oracles.softmax(
      np.array([-sum((embeddings[i] - q) ** 2) for q in prototypes])
    )
  v = np.array(
    [
      oracles.squash(
        bias[j] + sum(c[i, j] * votes[i, j] for i in range(len(c)))
      )
      for j in range(num_parents)
    ]
  )
  return v, np.linalg.norm(v, axis=1), c


def check_matches_oracle(route, seed=0):
  votes, arguments = cases.votes(seed), _arguments(seed)
  want = _oracle(np.float64(votes), **jax.tree.map(np.float64, arguments))
  cases.assert_outputs_close(route(votes, **arguments), want)


def _textbook(votes, embeddings, prototypes, bias, *, fault=None):
  steps = embeddings[:, None] - prototypes
  distances = jnp.sum(jnp.square(steps), axis=2)
  if fault == "not_squared":
    distances = jnp.sqrt(distances)
  if fault == "dot_product":
    distances = -embeddings @ prototypes.T
  if fault == "farthest":
    distances = -distances
  axis = 0 if fault == "over_children" else 1
  coefficients = jax.nn.softmax(-distances, axis=axis)
  total = jnp.einsum("ij,ijd->jd", coefficients, votes)
  poses = numerics.squash(total if fault == "no_bias" else total + bias)
  return poses, jnp.linalg.norm(poses, axis=1), coefficients


@pytest.mark.parametrize("seed", [0, 1])
def test_matches_oracle(seed):
  check_matches_oracle(_route, seed)


def test_textbook_form_is_right():
  check_matches_oracle(_textbook)


@pytest.mark.parametrize(
  "fault",
  ["not_squared", "dot_product", "farthest", "over_children", "no_bias"],
)
def test_broken_copy_fails(fault):
  with pytest.raises(AssertionError):
    check_matches_oracle(functools.partial(_textbook, fault=fault))


def test_gradients_and_factors():
  factors = linear_votes.LinearVotes(
    cases.votes(0, (7, 3)), cases.votes(1, (7, 4, 3, 5))
  )
  votes = jnp.einsum("ic,ijcd->ijd", *factors, precision="highest")
  cases.assert_outputs_close(
    _route(factors, **_arguments()), _route(votes, **_arguments())
  )
  with jax.enable_x64(True):
    shape = (4, 3, 3)
    given = _arguments(0, shape, jnp.float64)

    def route(votes, given):
      return _route(votes, **given)

    votes = cases.votes(0, shape, jnp.float64)
    check_grads(route, (votes, given), order=1, modes=("fwd", "rev"))
