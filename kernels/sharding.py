"""Types of arrays within `jax.shard_map`."""

from typing import TypeVar

import jax
import jax.numpy as jnp

_Tree = TypeVar("_Tree")


def vary_alike(arrays: _Tree, *others: object) -> _Tree:
  """Makes arrays vary over all mesh axes over which any of them varies.

  Within `jax.shard_map` the type of an array says over which axes of the mesh
  its numbers vary, and constants vary over none. JAX accepts them as the first
  carry of a loop only if the result of the body has the same axes, and a custom
  gradient only if it has the axes of its input. Elsewhere nothing is done.

  Args:
    arrays: a pytree of arrays, of any shapes and dtypes.
    others: pytrees of arrays whose axes count too.

  Returns:
    The same values; within `jax.shard_map`, plus zeros that vary over the axes.
  """
  if not jax.sharding.get_abstract_mesh().manual_axes:
    return arrays
  zeros = [
    jnp.zeros_like(x, shape=(), dtype=bool)
    for x in jax.tree.leaves((arrays, others))
  ]
  return jax.tree.map(
    lambda x: sum((z.astype(x.dtype) for z in zeros), x), arrays
  )
