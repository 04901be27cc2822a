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
import pytest
import routing_rows

from kernels import numerics, routing
from kernels.routing import em, em_convolution, linear_votes

_STEP = 1e-5
_WEIGHTS = np.random.default_rng(9).normal(size=8)


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


@pytest.mark.parametrize("name", routing_rows.LAST)
@pytest.mark.long_after_first
def test_last_iteration_is_differentiated_alone(name):
  check_last(*routing_rows.LAST[name], gradient="last")
  with pytest.raises(AssertionError):
    check_last(*routing_rows.LAST[name], gradient="all")


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
    check_last(broken, *routing_rows.LAST["dynamic"][1:])


@pytest.mark.parametrize("name", routing_rows.LAST)
def test_values_are_the_same(name):
  route, _, arguments = routing_rows.LAST[name]
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
  for name in routing_rows.LAST:
    route, _, arguments = routing_rows.LAST[name]
    with pytest.raises(ValueError, match="gradient is 'first'; give 'all' or"):
      route(*map(jnp.float32, arguments), gradient="first")
  with pytest.raises(ValueError, match="gradient is 'none'"):
    linear_votes.require_iterations(1, gradient="none")
