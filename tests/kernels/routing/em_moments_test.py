"""Types of children at once, against one after another."""

import em_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tracing_loops

from kernels.routing import em_convolution

_TYPES = 4


def _arguments(inner=3):
  random = np.random.default_rng(0)
  poses = 5, 6, _TYPES, 2, inner
  shapes = poses, (5, 6, _TYPES), (2, 2, _TYPES, 3, inner, 2)
  poses, activations, transforms = (random.normal(size=x) for x in shapes)
  arrays = (poses, 1 / (1 + np.exp(activations)), transforms)
  return *(jnp.array(x, jnp.float32) for x in arrays), *em_cases.betas(
    0, 3, "paper", jnp.float32
  )


def _energy(types_at_once, gradient="all"):
  def energy(*arguments):
    output = em_convolution.em_convolution(
      *arguments,
      inverse_temperatures=em_cases.TEMPERATURES,
      types_at_once=types_at_once,
      gradient=gradient,
    )
    squares = (jnp.sum(jnp.square(x)) for x in output)
    return sum(squares), output

  return energy


def _run(types_at_once, gradient="all"):
  energy = _energy(types_at_once, gradient)
  return jax.jit(jax.grad(energy, range(5), has_aux=True))(*_arguments())


@pytest.mark.parametrize("gradient", ["all", "last"])
@pytest.mark.long_after_first
def test_types_at_once_are_those_one_after_another(gradient):
  want = _run(None, gradient)
  # 3 does not divide the 4 types, so that 2 are taken.
  for number in (3,) if gradient == "last" else (3, _TYPES + 1):
    got = _run(number, gradient)
    for one, other in zip(*map(jax.tree.leaves, (got, want)), strict=True):
      np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_there_are_as_many_turns_as_groups():
  def turns(types_at_once):
    energy = jax.grad(_energy(types_at_once), has_aux=True)
    return tracing_loops.num_turns(jax.make_jaxpr(energy)(*_arguments()))

  # Even shares, 3 iterations, their gradients, and the shares with theirs.
  assert turns(2) == 2 * (1 + 3 + 3 + 2)
  assert turns(None) > 10 * turns(2)


def test_wider_poses_make_no_longer_program():
  """Compilers of GPUs take minutes for products that are written out."""
  energy = jax.grad(_energy(types_at_once=2), range(5), has_aux=True)
  lengths = {
    len(str(jax.make_jaxpr(energy)(*_arguments(inner))).splitlines())
    for inner in (2, 4)
  }
  assert len(lengths) == 1


def test_no_type_at_once_is_refused():
  with pytest.raises(ValueError, match="types_at_once is 0; give at least 1"):
    _energy(0)(*_arguments())
