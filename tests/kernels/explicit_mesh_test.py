"""Kernels under a mesh whose axes are explicit parts of types, by shapes.

There JAX infers no sharding: an operation whose result could lie in several
ways is an error. `jax.sharding.auto_axes` lets it choose within a function.
"""

import jax
import jax.numpy as jnp
import kernel_cases
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

_MESH = AbstractMesh((8,), ("data",), axis_types=(AxisType.Explicit,))
# They reshape, index, or join with constants that have no batch axis.
_NEED_AUTO = (
  "constellations.infer", "em_convolution.", "geometry.affine_matrix",
  "geometry.invert", "geometry.pose_matrix", "ransac.match", "warping.",
)  # fmt: skip


@pytest.mark.parametrize("name", kernel_cases.CASES)
def test_a_batch_that_is_split_stays_split(name):
  case = kernel_cases.CASES[name]

  def batch(x):
    return jax.vmap(lambda x: case.function(**x))(x)

  if name.startswith(_NEED_AUTO):
    batch = jax.sharding.auto_axes(batch, axes="data", out_sharding=P("data"))
  with jax.sharding.use_abstract_mesh(_MESH):
    split = NamedSharding(_MESH, P("data"))
    arguments = {
      given: jax.ShapeDtypeStruct(
        (8, *kernel_cases.shape_of(text)), jnp.float32, sharding=split
      )
      for given, text in case.arguments.items()
    }
    output = jax.eval_shape(batch, arguments)
  for x in jax.tree.leaves(output):
    assert len(x) == 8 and x.sharding.spec[0] == "data"
