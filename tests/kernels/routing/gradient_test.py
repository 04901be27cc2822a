"""Gradients through the last iteration alone, of every routing that iterates.

The oracle differentiates the last weighted sum, or M-step, in float64 NumPy by
central differences, with the coefficients and all that came before held
constant.
"""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import scipy.special

from kernels import numerics, routing
from kernels.routing import em, em_convolution, linear_votes

_SHAPE = (3, 2, 4)
_STEP = 1e-5
_WEIGHTS = np.random.default_rng(9).normal(size=8)


def _unit(seed, size=3):
  return np.random.default_rng(seed).uniform(0.2, 0.9, size)


def _normal(seed, shape):
  return np.random.default_rng(seed).normal(size=shape)


def _squashed(c, votes, bias):
  poses = [
    oracles.squash(bias[j] + sum(c[i, j] * votes[i, j] for i in range(3)))
    for j in range(2)
  ]
  return np.array(poses), np.linalg.norm(poses, axis=1)


def _of_factors(c, poses, transforms, bias):
  return _squashed(c, np.einsum("ic,ijcd->ijd", poses, transforms), bias)


def _layer_norm(c, votes, readout, scale):
  poses = []
  for j in range(2):
    total = sum(c[i, j] * votes[i, j] for i in range(3))
    deviation = np.sqrt(np.mean((total - total.mean()) ** 2) + 1e-5)
    poses.append(scale * (total - total.mean()) / deviation)
  return np.array(poses), scipy.special.expit(np.array(poses) @ readout)


def _posterior(c, votes, activations, beta, gain):
  """The last update of variational routing with its default prior."""
  means, activity = [], []
  weights = c * activations[:, None]
  size = votes.shape[2]
  digamma = scipy.special.digamma
  total = digamma(2 + weights.sum())
  for j in range(2):
    mass, w = weights[:, j].sum(), weights[:, j, None]
    mean = np.sum(w * votes[:, j], axis=0) / (1 + mass)
    inverse = 1 + np.sum(w * (votes[:, j] - mean) ** 2, axis=0) + mean**2
    log_precision = sum(
      digamma((size + 1 + mass - d) / 2) + np.log(2) - np.log(inverse[d])
      for d in range(size)
    )
    entropy = size / 2 * (1 + np.log(2 * np.pi)) - log_precision / 2
    share = np.exp(digamma(1 + mass) - total)
    activity.append(scipy.special.expit(beta[j] - gain[j] * share * entropy))
    means.append(mean)
  return np.array(means), np.array(activity)


def _gaussians(c, votes, activations, beta_a, beta_u):
  """The last M-step of EM routing in the form of the paper."""
  means, activity = [], []
  for j in range(2):
    w = (c[:, j] * activations)[:, None]
    mass = w.sum() + 1e-7
    mean = np.sum(w * votes[:, j], axis=0) / mass
    variance = np.sum(w * (votes[:, j] - mean) ** 2, axis=0) / mass + 5e-4
    cost = mass * np.sum(beta_u[j] + np.log(variance) / 2)
    activity.append(scipy.special.expit(0.3 * (beta_a[j] - cost)))
    means.append(mean)
  return np.array(means), np.array(activity)


def _use_and_neglect(c, votes, activations, beta_use, beta_ignore):
  """The last M-step of Heinsen's EM."""
  use = c * activations[:, None]
  ignore = activations[:, None] - use
  scores = np.sum(beta_use * use - beta_ignore * ignore, axis=0)
  mass = use.sum(axis=0)[:, None] + 1e-5
  means = np.einsum("ij,ijd->jd", use, votes) / mass
  return means, scipy.special.expit(scores)


_VOTES, _BIAS = _normal(0, _SHAPE), _normal(1, _SHAPE[1:])
_EM = functools.partial(routing.em_routing, inverse_temperatures=(0.1, 0.3))
_FACTORS = _normal(2, (3, 2)), _normal(3, (3, 2, 2, 4)), _BIAS


def _with_bias(route):
  return lambda votes, bias, **options: route(votes, bias=bias, **options)


def _by_transforms(poses, transforms, bias, **options):
  return routing.transform_and_route(
    poses, transforms, bias=bias, chunk_size=2, **options
  )


def _attention(votes, readout, scale, **options):
  return routing.inverted_attention_routing(
    votes, readout, scale=scale, **options
  )


def _variational(votes, activations, beta, gain, **options):
  return routing.variational_routing(
    votes, activations, beta=beta, gain=gain, **options
  )


def _grid(votes, bias, **options):
  """Two positions of a grid for parents of one type."""
  output = routing.grid_routing(
    votes.reshape(3, 2, 1, 1, 4), bias=bias, **options
  )
  return routing.RoutingOutput(
    *(x.reshape(y) for x, y in zip(output, [(2, 4), (2,), (3, 2)], strict=True))
  )


def _squashed_with_one_bias(c, votes, bias):
  return _squashed(c, votes, np.tile(bias, (2, 1)))


# The routing, its last step of given coefficients, and the arguments of both.
_ROUTINGS = {
  "dynamic": (_with_bias(routing.dynamic_routing), _squashed, (_VOTES, _BIAS)),
  "transform_and_route": (_by_transforms, _of_factors, _FACTORS),
  "grid": (_grid, _squashed_with_one_bias, (_VOTES, _BIAS[:1])),
  "sinkhorn": (
    _with_bias(routing.sinkhorn_routing), _squashed, (_VOTES, _BIAS)
  ),
  "inverted_attention": (
    _attention, _layer_norm, (_VOTES, _normal(4, 4), _normal(5, 4))
  ),
  "variational": (
    _variational, _posterior,
    (_VOTES, _unit(6), _normal(7, 2), _normal(8, 2)),
  ),
  "em": (_EM, _gaussians, (_VOTES, _unit(6), _normal(7, 2), _normal(8, 2))),
  "heinsen_em": (
    routing.heinsen_em_routing, _use_and_neglect,
    (_VOTES, _unit(6), _normal(7, (3, 2)), _normal(8, (3, 2))),
  ),
}  # fmt: skip


def _energy(poses, activations):
  return np.sum(_WEIGHTS.reshape(2, 4) * poses) + activations @ _WEIGHTS[:2]


def _differences(step, arguments):
  """Derivatives of the energy of a step by every number of every argument."""
  slopes = []
  for n, argument in enumerate(arguments):
    slope = np.zeros_like(argument)
    for index in np.ndindex(argument.shape):
      ends = []
      for sign in (1, -1):
        moved = [np.copy(x) for x in arguments]
        moved[n][index] += sign * _STEP
        ends.append(_energy(*step(*moved)))
      slope[index] = (ends[0] - ends[1]) / (2 * _STEP)
    slopes.append(slope)
  return slopes


def _slopes(route, arguments, **options):
  def energy(*arguments):
    output = route(*arguments, **options)
    value = jnp.sum(_WEIGHTS.reshape(2, 4) * output.poses)
    value += output.activations @ jnp.float32(_WEIGHTS[:2])
    # The coefficients are constants: no derivative comes through them.
    return value + jnp.sum(jnp.cos(output.coefficients)), output

  wanted = tuple(range(len(arguments)))
  return jax.jit(jax.grad(energy, wanted, has_aux=True))(
    *(jnp.float32(x) for x in arguments)
  )


def check_last(route, step, arguments, **options):
  got, output = _slopes(route, arguments, **options)
  coefficients = np.float64(output.coefficients)
  want = _differences(functools.partial(step, coefficients), arguments)
  for one, other in zip(got, want, strict=True):
    np.testing.assert_allclose(one, other, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("name", _ROUTINGS)
@pytest.mark.long_after_first
def test_last_iteration_is_differentiated_alone(name):
  check_last(*_ROUTINGS[name], gradient="last")
  with pytest.raises(AssertionError):
    check_last(*_ROUTINGS[name], gradient="all")


def test_coefficients_of_constant_parents_are_not_constants():
  """A copy that stops gradients at the parents alone must fail."""

  def broken(votes, bias):
    parents = jnp.zeros_like(bias)
    for _ in range(3):
      scores = jnp.einsum("ijd,jd->ij", votes, jax.lax.stop_gradient(parents))
      shares = jax.nn.softmax(scores)
      poses = numerics.squash(jnp.einsum("ij,ijd->jd", shares, votes) + bias)
      parents += poses
    return routing.RoutingOutput(poses, numerics.safe_norm(poses), shares)

  with pytest.raises(AssertionError):
    check_last(broken, *_ROUTINGS["dynamic"][1:])


@pytest.mark.parametrize("name", _ROUTINGS)
def test_values_are_the_same(name):
  route, _, arguments = _ROUTINGS[name]
  arguments = [jnp.float32(x) for x in arguments]
  one, other = (
    jax.jit(functools.partial(route, gradient=gradient))(*arguments)
    for gradient in ("all", "last")
  )
  cases.assert_outputs_close(one[:3], other[:3], atol=1e-6)


def _convolution(seed=0, size=(2, 3)):
  """Poses, activations, transforms and betas of windows of 2x2."""
  random = np.random.default_rng(seed)
  return [
    jnp.float32(x)
    for x in (
      random.normal(size=(*size, 2, 2, 2)),
      random.uniform(0.2, 0.9, (*size, 2)),
      random.normal(size=(2, 2, 2, 2, 2, 2)),
      random.normal(size=2),
      random.normal(size=2),
    )
  ]


def _gradients(route, arguments):
  def energy(*arguments):
    return sum(jnp.sum(jnp.cos(x)) for x in route(*arguments))

  return jax.jit(jax.grad(energy, tuple(range(5))))(*arguments)


def _convolved(*arguments, **options):
  return em_convolution.em_convolution(
    *arguments, inverse_temperatures=(0.1, 0.3), gradient="last", **options
  )


def test_one_window_is_em_routing():
  arguments = _convolution(size=(2, 2))

  def plain(poses, activations, transforms, beta_a, beta_u):
    votes = jnp.einsum("yxipq,yxijqr->yxijpr", poses, transforms)
    return em.em_routing(
      votes.reshape(8, 2, 4), activations.ravel(), beta_a, beta_u,
      inverse_temperatures=(0.1, 0.3), gradient="last",
    )  # fmt: skip

  got, want = (_gradients(x, arguments) for x in (_convolved, plain))
  for one, other in zip(got, want, strict=True):
    np.testing.assert_allclose(one, other, atol=2e-4, rtol=2e-4)


@pytest.mark.long
def test_rule_of_windows_is_the_derived_one():
  """Of windows that share children, in the backward pass by hand and by JAX."""
  arguments = _convolution()
  derived = functools.partial(_convolved, forward_mode=True)
  got, want = (_gradients(x, arguments) for x in (_convolved, derived))
  for one, other in zip(got, want, strict=True):
    np.testing.assert_allclose(one, other, atol=2e-4, rtol=2e-4)


def test_unknown_gradients_are_refused():
  for name in _ROUTINGS:
    route, _, arguments = _ROUTINGS[name]
    with pytest.raises(ValueError, match="gradient is 'first'; give 'all' or"):
      route(*map(jnp.float32, arguments), gradient="first")
  with pytest.raises(ValueError, match="gradient is 'none'"):
    linear_votes.require_iterations(1, gradient="none")
