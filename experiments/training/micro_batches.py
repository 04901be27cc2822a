"""Updates that take less memory: micro-batches and rematerialisation."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from capjax.layers.capsules import Fixed

_PRODUCTS = ("dot_general", "conv_general_dilated")
# Variables that may change several times in an update, or never.
_FREE = (nnx.BatchStat, nnx.RngState, Fixed)


def check(batch_size: int, num_parts: int, num_devices: int) -> None:
  """Raises a ValueError unless all devices share each part evenly."""
  if num_parts < 1 or batch_size % (num_parts * num_devices):
    raise ValueError(
      f"num_micro_batches is {num_parts}; give a divisor of the "
      f"{batch_size // num_devices} examples that a device gets of a batch"
    )


def rematerialised(function: Callable[..., Any]) -> Callable[..., Any]:
  """Wraps a function, so that its gradient keeps less in memory.

  Only products of matrices and convolutions of the forward pass are kept. All
  else is computed again from them; the gradient is the same.

  Args:
    function: of arrays, without side effects.
  """

  def is_kept(primitive, *arguments, **options):
    del arguments, options
    return primitive.name in _PRODUCTS

  return jax.checkpoint(function, policy=is_kept)


def average(
  gradient_of: Callable[..., Any],
  rest: nnx.State,
  inputs: Any,
  targets: Any,
  key: jax.Array,
  *,
  num_parts: int,
  mesh: Mesh,
) -> Any:
  """The mean of a function over the parts of a batch, one after the other.

  Part p takes the examples p, p + P, ..., so that each device has its share.

  Args:
    gradient_of: `(rest, inputs, targets, key) -> (found, rest)`.
    rest: variables besides the parameters, before the first part.
    inputs: arrays [B ...].
    targets: arrays [B ...].
    key: random key, split over the parts.
    num_parts: P, a divisor of B.
    mesh: with an axis `data`.

  Returns:
    The mean over parts of `found`, and `rest` after the last.

  Raises:
    ValueError: if a variable may change only once in an update.
  """

  def is_variable(x):
    return isinstance(x, nnx.Variable)

  for x in jax.tree.leaves(rest, is_leaf=is_variable):
    if is_variable(x) and not isinstance(x, _FREE):
      raise ValueError(
        f"num_micro_batches must be 1 for a model with {type(x).__name__} "
        "variables, which may change only once in an update"
      )
  split = NamedSharding(mesh, P(None, "data"))

  def parts(x):
    # Without -1: labels of images without labels are [B 0].
    x = x.reshape(len(x) // num_parts, num_parts, *x.shape[1:]).swapaxes(0, 1)
    return jax.lax.with_sharding_constraint(x, split)

  def one(rest, part):
    found, rest = gradient_of(rest, *part)
    return rest, found

  keys = jax.random.split(key, num_parts)
  inputs, targets = jax.tree.map(parts, (inputs, targets))
  rest, found = jax.lax.scan(one, rest, (inputs, targets, keys))
  return jax.tree.map(lambda x: jnp.mean(x, axis=0), found), rest
