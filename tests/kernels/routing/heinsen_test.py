"""Heinsen's routings against his algorithms as loops, in float64 NumPy.

What they share with all routings is in `all_routings_test`.
"""

import functools

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from kernels.routing import heinsen, linear_votes

_SHAPE = cases.VOTES_SHAPE
_PART_SIZE = 3


def _arguments(name, seed=0, shape=_SHAPE, dtype=jnp.float32):
  """All arguments of a routing by name, votes left out."""
  random = np.random.default_rng(seed + 100)
  num_parts, num_parents, pose_size = shape
  pairs = (num_parts, num_parents)
  arguments = {
    "activations": random.uniform(0.2, 1, num_parts),
    "beta_use": random.normal(size=pairs),
    "beta_ignore": random.normal(size=pairs),
  }
  if name == "vector":
    below = (num_parents, _PART_SIZE)
    arguments |= {
      "parts": random.normal(size=(num_parts, _PART_SIZE)),
      "prediction": random.normal(size=(pose_size, _PART_SIZE)),
      "prediction_scale": random.normal(size=below),
      "prediction_bias": random.normal(size=below),
      "score_scale": random.normal(size=pairs),
      "score_bias": random.normal(size=pairs),
      "readout": random.normal(size=pose_size),
      "bias": random.normal(size=shape[1:]),
    }
  return {name: jnp.array(x, dtype) for name, x in arguments.items()}


_ROUTINGS = {
  "em": heinsen.heinsen_em_routing,
  "vector": heinsen.heinsen_vector_routing,
}
_ROUTES = {
  name: jax.jit(route, static_argnames=("num_iterations", "gradient"))
  for name, route in _ROUTINGS.items()
}


def _f(score):
  return 1 / (1 + np.exp(-score))


def _em_oracle(votes, activations, beta_use, beta_ignore, num_iterations=3):
  num_parts, num_parents, pose_size = votes.shape
  r = np.full((num_parts, num_parents), 1 / num_parents)
  s = np.zeros(num_parents)
  mean, variance = np.zeros((2, num_parents, pose_size))
  for iteration in range(num_iterations):
    if iteration:
      for i in range(num_parts):
        densities = [
          np.prod(
            np.exp(-((votes[i, j] - mean[j]) ** 2) / (2 * variance[j]))
            / np.sqrt(2 * np.pi * variance[j])
          )
          for j in range(num_parents)
        ]
        shares = _f(s) * densities
        r[i] = shares / sum(shares)
    use = activations[:, None] * r
    ignore = activations[:, None] - use
    for j in range(num_parents):
      mass = sum(use[:, j]) + 1e-5
      s[j] = beta_use[:, j] @ use[:, j] - beta_ignore[:, j] @ ignore[:, j]
      mean[j] = sum(use[i, j] * votes[i, j] for i in range(num_parts)) / mass
      variance[j] = 1e-5 + sum(
        use[i, j] * (votes[i, j] - mean[j]) ** 2 / mass
        for i in range(num_parts)
      )
  return mean, _f(s), r


def _vector_oracle(votes, num_iterations=2, **given):
  num_parts, num_parents, _ = votes.shape
  r = np.full((num_parts, num_parents), 1 / num_parents)
  y = np.zeros(votes.shape[1:])
  for iteration in range(num_iterations):
    if iteration:
      for i in range(num_parts):
        shares = np.zeros(num_parents)
        for j in range(num_parents):
          predicted = y[j] @ given["prediction"] * given["prediction_scale"][j]
          predicted = predicted + given["prediction_bias"][j]
          score = given["score_scale"][i, j] * (given["parts"][i] @ predicted)
          shares[j] = _f(score + given["score_bias"][i, j])
        r[i] = shares / sum(shares)
    y = np.zeros(votes.shape[1:])
    for j in range(num_parents):
      for i in range(num_parts):
        use = given["activations"][i] * r[i, j]
        ignore = given["activations"][i] - use
        phi = given["beta_use"][i, j] * use
        phi -= given["beta_ignore"][i, j] * ignore
        y[j] += phi * (votes[i, j] + given["bias"][j])
      y[j] = (y[j] - y[j].mean()) / np.sqrt(y[j].var() + 1e-5)
  return y, _f(y @ given["readout"]), r


_ORACLES = {"em": _em_oracle, "vector": _vector_oracle}


def check_matches_oracle(name, route, seed=0, **options):
  votes, arguments = cases.votes(seed), _arguments(name, seed)
  want = _ORACLES[name](
    np.float64(votes), **jax.tree.map(np.float64, arguments), **options
  )
  got = route(votes, **arguments, **options)
  cases.assert_outputs_close(got, want, atol=5e-5)


def _textbook_em(
  votes, activations, beta_use, beta_ignore, *, gradient="all", fault=None
):
  shares = jnp.full(votes.shape[:2], 1 / votes.shape[1])
  parents = None
  for iteration in range(3):
    if iteration:
      scores, mean, variance = parents
      logs = -jnp.sum(jnp.square(votes - mean) / variance, axis=2) / 2
      if fault != "no_volume":
        logs -= jnp.sum(jnp.log(variance), axis=1) / 2
      if fault != "no_prior":
        logs += jax.nn.log_sigmoid(scores)
      shares = jax.nn.softmax(logs, axis=0 if fault == "over_children" else 1)
      if gradient == "last":
        shares = jax.lax.stop_gradient(shares)
    use = activations[:, None] * shares
    ignore = activations[:, None] - use
    if fault == "nothing_ignored":
      ignore = 0 * ignore
    scores = jnp.sum(beta_use * use - beta_ignore * ignore, axis=0)
    mass = jnp.sum(use, axis=0)[:, None] + 1e-5
    mean = jnp.einsum("ij,ijd->jd", use, votes) / mass
    variance = jnp.einsum("ij,ijd->jd", use, jnp.square(votes - mean)) / mass
    variance = (jnp.sqrt(variance) if fault == "deviation" else variance) + 1e-5
    parents = scores, mean, variance
  return mean, jax.nn.sigmoid(scores), shares


def _textbook_vector(votes, *, gradient="all", fault=None, **given):
  shares = jnp.full(votes.shape[:2], 1 / votes.shape[1])
  activations = given["activations"][:, None]
  poses = jnp.zeros(votes.shape[1:])
  for iteration in range(2):
    if iteration:
      if gradient == "last":
        poses = jax.lax.stop_gradient(poses)
      predicted = poses @ given["prediction"] * given["prediction_scale"]
      predicted += given["prediction_bias"]
      scores = given["parts"] @ predicted.T * given["score_scale"]
      scores += given["score_bias"]
      if fault != "no_sigmoid":
        scores = jax.nn.log_sigmoid(scores)
      shares = jax.nn.softmax(scores, axis=0 if fault == "over_children" else 1)
    use = activations * shares
    weights = given["beta_use"] * use
    if fault != "nothing_ignored":
      weights -= given["beta_ignore"] * (activations - use)
    biased = votes if fault == "no_bias" else votes + given["bias"]
    total = jnp.einsum("ij,ijd->jd", weights, biased)
    mean = jnp.mean(total, axis=1, keepdims=True)
    variance = jnp.var(total, axis=1, keepdims=True)
    poses = (total - mean) / jnp.sqrt(variance + 1e-5)
  return poses, jax.nn.sigmoid(poses @ given["readout"]), shares


_TEXTBOOKS = {"em": _textbook_em, "vector": _textbook_vector}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", _ROUTINGS)
def test_matches_oracle(name, seed):
  check_matches_oracle(name, _ROUTES[name], seed)


@pytest.mark.parametrize("name", _ROUTINGS)
def test_one_iteration(name):
  check_matches_oracle(name, _ROUTES[name], num_iterations=1)


@pytest.mark.parametrize("name", _ROUTINGS)
def test_textbook_form_is_right(name):
  check_matches_oracle(name, _TEXTBOOKS[name])


@pytest.mark.parametrize(
  ("name", "fault"),
  [
    ("em", "no_volume"),
    ("em", "no_prior"),
    ("em", "over_children"),
    ("em", "nothing_ignored"),
    ("em", "deviation"),
    ("vector", "no_sigmoid"),
    ("vector", "over_children"),
    ("vector", "nothing_ignored"),
    ("vector", "no_bias"),
  ],
)
def test_broken_copy_fails(name, fault):
  broken = functools.partial(_TEXTBOOKS[name], fault=fault)
  with pytest.raises(AssertionError):
    check_matches_oracle(name, broken)


@pytest.mark.parametrize("gradient", ["all", "last"])
@pytest.mark.parametrize("name", _ROUTINGS)
def test_gradients_are_the_textbook_ones(name, gradient):
  def slope(route, gradient=gradient):
    def energy(votes, arguments):
      found = route(votes, **arguments, gradient=gradient)
      return sum(jnp.sum(jnp.cos(x)) for x in found)

    return jax.jit(jax.grad(energy, (0, 1)))(cases.votes(), _arguments(name))

  want = slope(_TEXTBOOKS[name])
  chex.assert_trees_all_close(slope(_ROUTINGS[name]), want, atol=2e-4)
  other = {"all": "last", "last": "all"}[gradient]
  with pytest.raises(AssertionError):
    chex.assert_trees_all_close(slope(_ROUTINGS[name], other), want, atol=2e-4)


@pytest.mark.parametrize("name", _ROUTINGS)
def test_gradients_are_those_of_differences(name):
  with jax.enable_x64(True):
    shape = (4, 3, 3)
    votes = cases.votes(0, shape, jnp.float64)

    def route(votes, arguments):
      return _ROUTES[name](votes, **arguments)

    arguments = _arguments(name, 0, shape, jnp.float64)
    check_grads(route, (votes, arguments), order=1, modes=("fwd", "rev"))


def test_votes_of_factors_are_the_same_and_are_not_stored():
  factors = linear_votes.LinearVotes(
    cases.votes(0, (7, 3)), cases.votes(1, (7, 4, 3, 5))
  )
  arguments = _arguments("vector")
  votes = jnp.einsum("ic,ijcd->ijd", *factors, precision="highest")
  route = _ROUTES["vector"]
  cases.assert_outputs_close(
    route(factors, **arguments), route(votes, **arguments), atol=1e-4
  )

  def of_batch(poses):
    def of_one(poses):
      factors_of_one = factors._replace(poses=poses)
      return heinsen.heinsen_vector_routing(factors_of_one, **arguments)

    return jax.vmap(of_one)(poses)

  text = jax.jit(of_batch).lower(jnp.ones((9, 7, 3))).as_text()
  assert "9x7x3x" in text and "9x7x4x5x" not in text


def test_credit_composes():
  """Where votes are the parts themselves, so are the sums of two layers."""
  parts = cases.votes(0, (6, 5))

  def layer(num_parts, num_parents, seed):
    given = _arguments("em", seed, (num_parts, num_parents, 5))
    random = np.random.default_rng(seed)
    shares = jnp.array(random.dirichlet(np.ones(num_parents), num_parts))
    return heinsen.credit(jnp.float32(shares), **given)

  first, second = layer(6, 4, 0), layer(4, 3, 1)
  above = second.T @ (first.T @ parts)
  both = heinsen.compose_credit(first, second)
  np.testing.assert_allclose(both.T @ parts, above, atol=1e-4)
  with pytest.raises(AssertionError):
    np.testing.assert_allclose(
      heinsen.compose_credit(first[:, ::-1], second).T @ parts, above, atol=1e-4
    )


def test_options_out_of_range_are_refused():
  for name, route in _ROUTINGS.items():
    with pytest.raises(ValueError, match="num_iterations is 0; give at least"):
      route(cases.votes(), **_arguments(name), num_iterations=0)
    with pytest.raises(ValueError, match="gradient is 'first'; give 'all'"):
      route(cases.votes(), **_arguments(name), gradient="first")
  shape = (7, 4, 1)
  with pytest.raises(ValueError, match="poses of 1 number"):
    heinsen.heinsen_vector_routing(
      cases.votes(0, shape), **_arguments("vector", 0, shape)
    )
