"""Kernels within `jax.shard_map`, whose types say what varies over a mesh.

By shapes. There the carry of a loop and a custom gradient must have the axes of
what they are computed from.
"""

import chex
import jax
import jax.numpy as jnp
import kernel_cases
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from kernels import sharding

_MESH = AbstractMesh((8,), ("data",))
# Searches, of which JAX has no reverse mode.
_WITHOUT_GRADIENT = ("constellations.infer",)
# Kernels with constants as first carries, or with custom gradients.
_LOOPS = (
  "annealing.", "broadcasting.", "capsules.mean_field", "compositing.",
  "constellations.infer", "dynamic.", "em_convolution.", "orthogonal.",
  "ransac.", "sinkhorn.",
)  # fmt: skip


def _map(function):
  """The function on the parts of a mesh, which has one device."""
  mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
  return jax.jit(
    jax.shard_map(function, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
  )


def _check(name, split):
  """Shapes, and those of gradients, where the arguments in `split` are."""
  case = kernel_cases.CASES[name]
  arguments = {
    given: jax.ShapeDtypeStruct(
      (*[8] * (given in split), *kernel_cases.shape_of(text)), jnp.float32
    )
    for given, text in case.arguments.items()
  }
  axes = {given: 0 if given in split else None for given in arguments}
  specs = {given: P("data") if given in split else P() for given in arguments}

  def batch(x):
    return jax.vmap(lambda x: case.function(**x), in_axes=(axes,))(x)

  def total(x):
    leaves = jax.tree.leaves(batch(x))
    floats = [x for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact)]
    return sum(jnp.sum(jnp.abs(x)) for x in floats)

  def shapes(function, out_specs):
    mapped = jax.shard_map(
      function, mesh=_MESH, in_specs=(specs,), out_specs=out_specs
    )
    return jax.eval_shape(mapped, arguments)

  for x in jax.tree.leaves(shapes(batch, P("data"))):
    assert len(x) == 8
  if not name.startswith(_WITHOUT_GRADIENT):
    # Gradients of what all devices hold are summed over them, by JAX.
    assert shapes(jax.grad(total), specs) == arguments


@pytest.mark.parametrize("name", kernel_cases.CASES)
def test_a_batch_is_split_over_devices(name):
  _check(name, set(kernel_cases.CASES[name].arguments))


@pytest.mark.parametrize(
  "name", [name for name in kernel_cases.CASES if name.startswith(_LOOPS)]
)
@pytest.mark.long
def test_one_argument_is_split_over_devices(name):
  for given in kernel_cases.CASES[name].arguments:
    _check(name, {given})


def test_numbers_and_types_stay():
  x = {"a": jnp.array([-jnp.inf, 2.0], jnp.float16), "b": jnp.array([True])}
  assert sharding.vary_alike(x, jnp.ones(3)) is x
  made = _map(lambda y: sharding.vary_alike(x, y))(jnp.ones(3))
  chex.assert_trees_all_equal(made, x)
  assert made["a"].dtype == jnp.float16 and made["b"].dtype == bool


@pytest.mark.parametrize(
  "name", ["em_convolution.em_convolution", "sinkhorn.sinkhorn_routing"]
)
def test_gradients_are_those_without_a_mesh(name):
  case = kernel_cases.CASES[name]
  drawn = kernel_cases.draw(case, np.random.default_rng(0))
  batch = {given: np.float32(x)[None] for given, x in drawn.items()}

  def total(x):
    leaves = jax.tree.leaves(jax.vmap(lambda x: case.function(**x))(x))
    return sum(jnp.sum(jnp.sin(x)) for x in leaves)

  gradient = jax.grad(total)
  chex.assert_trees_all_close(
    _map(gradient)(batch), gradient(batch), rtol=1e-4, atol=1e-6
  )
