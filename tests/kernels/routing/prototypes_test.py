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


def _shared_oracle(votes, prototypes, bias):
  c = np.zeros((len(votes), len(prototypes)))
  for i, u in enumerate(votes):
    lengths = [np.linalg.norm(u) * np.linalg.norm(q) for q in prototypes]
    c[i] = oracles.softmax(10 * prototypes @ u / np.array(lengths))
  totals = [sum(c[i, j] * u for i, u in enumerate(votes)) for j in range(4)]
  v = np.array(
    [oracles.squash(x + b) for x, b in zip(totals, bias, strict=True)]
  )
  return v, np.linalg.norm(v, axis=1), c


def _shared_arguments(seed=0, dtype=jnp.float32):
  random = np.random.default_rng(seed + 200)
  shapes = {"votes": (7, 5), "prototypes": (4, 5), "bias": (4, 5)}
  return {
    name: jnp.array(random.normal(size=shape) / 2, dtype)
    for name, shape in shapes.items()
  }


def check_shared_matches_oracle(route, seed=0):
  arguments = _shared_arguments(seed)
  want = _shared_oracle(**jax.tree.map(np.float64, arguments))
  cases.assert_outputs_close(route(**arguments), want)


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


def _shared_textbook(votes, prototypes, bias, *, fault=None):
  lengths = jnp.linalg.norm(votes, axis=1)[:, None]
  cosines = votes @ prototypes.T / jnp.linalg.norm(prototypes, axis=1)
  if fault != "lengths_count":
    cosines = cosines / lengths
  axis = 0 if fault == "over_children" else 1
  coefficients = jax.nn.softmax(10 * cosines, axis=axis)
  units = votes / lengths if fault == "units_summed" else votes
  total = jnp.einsum("ij,id->jd", coefficients, units)
  poses = numerics.squash(total if fault == "no_bias" else total + bias)
  return poses, jnp.linalg.norm(poses, axis=1), coefficients


@pytest.mark.parametrize("seed", [0, 1])
def test_matches_oracle(seed):
  check_matches_oracle(_route, seed)
  check_shared_matches_oracle(prototypes.shared_prototype_routing, seed)


def test_textbook_form_is_right():
  check_matches_oracle(_textbook)
  check_shared_matches_oracle(_shared_textbook)


@pytest.mark.parametrize(
  "fault",
  ["not_squared", "dot_product", "farthest", "over_children", "no_bias"],
)
def test_broken_copy_fails(fault):
  with pytest.raises(AssertionError):
    check_matches_oracle(functools.partial(_textbook, fault=fault))


@pytest.mark.parametrize(
  "fault", ["lengths_count", "over_children", "units_summed", "no_bias"]
)
def test_broken_copy_of_shared_votes_fails(fault):
  with pytest.raises(AssertionError):
    check_shared_matches_oracle(
      functools.partial(_shared_textbook, fault=fault)
    )


def test_shared_votes_of_zero_and_no_concentration_are_even():
  given = _shared_arguments()
  none = prototypes.shared_prototype_routing(**given, concentration=0.0)
  np.testing.assert_allclose(none.coefficients, 1 / 4, rtol=1e-6)
  given["votes"] = given["votes"].at[2].set(0.0)
  got = prototypes.shared_prototype_routing(**given)
  np.testing.assert_allclose(got.coefficients[2], 1 / 4, rtol=1e-6)
  for wrong in (-1.0, np.inf, np.nan):
    with pytest.raises(ValueError, match=f"concentration is {wrong}; give"):
      prototypes.shared_prototype_routing(**given, concentration=wrong)


def test_gradients_of_shared_votes():
  route = jax.jit(prototypes.shared_prototype_routing)
  with jax.enable_x64(True):
    given = _shared_arguments(dtype=jnp.float64)
    check_grads(
      lambda given: route(**given),
      (given,),
      order=1,
      modes=("fwd", "rev"),
    )


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
