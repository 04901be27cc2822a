"""Broadcasting and sums that are fast on CPUs, gradients included.

XLA's own sums of many rows are slow on CPUs (docs/cpu_sums.md, "What it
costs"); the gradient of broadcasting is such a sum.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from . import checks, numerics


def spread(
  x: Float[Array, "..."],
  *,
  before: tuple[Any, ...] = (),
  after: tuple[Any, ...] = (),
) -> Float[Array, "..."]:
  """Repeats an array along new axes, with a gradient that is fast on CPUs.

  The values are those of `jnp.broadcast_to`. The gradient is a sum over the new
  axes, computed as a matrix product in at least float32. On CPUs XLA's own sums
  of many rows can take several times as long (docs/cpu_sums.md). Sums over an
  axis that `jax.vmap` maps remain XLA's own.

  Args:
    x: any shape.
    before: sizes of the new axes before those of `x`; they may be symbolic, as
      in exported programs.
    after: sizes of the new axes after those of `x`.

  Returns:
    [*before, *x.shape, *after], in the dtype of `x`.
  """
  checks.floats({"x": x})
  return _spread(jnp.asarray(x), before, after)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _spread(x, before, after):
  x = x.reshape(*x.shape, *[1] * len(after))
  return jnp.broadcast_to(x, (*before, *x.shape[: x.ndim - len(after)], *after))


@_spread.defjvp
def _spread_jvp(before, after, primals, tangents):
  (x,), (change,) = primals, tangents
  spread_x = _spread(x, before, after)
  # Each product has one term. Reverse mode transposes it, which makes it the
  # sum over the new axes.
  wide = numerics.widen(change)
  product = functools.partial(jnp.matmul, precision="highest")
  if before:
    ones = jnp.ones((math.prod(before), 1), wide.dtype)
    wide = product(ones, wide.reshape(1, -1))
  if after:
    ones = jnp.ones((1, math.prod(after)), wide.dtype)
    wide = product(wide.reshape(-1, 1), ones)
  return spread_x, wide.reshape(spread_x.shape).astype(x.dtype)


@jax.custom_jvp
def sum_rows(x: Float[Array, "N C"]) -> Float[Array, " C"]:
  """Sums the rows of a matrix, as a product with ones; see `spread`.

  The rows are never rounded, for any `numerics.precision`. Forward mode, which
  no layer uses, takes XLA's own sum.

  Args:
    x: [N, C]; the sums must not overflow.

  Returns:
    [C], in float32 or wider.

  Raises:
    ValueError: if there are no rows or no columns.
  """
  checks.arrays({"x": (x, "N C")})
  wide = numerics.widen(x)
  ones = jnp.ones(x.shape[:1], wide.dtype)
  return jnp.matmul(ones, wide, precision="highest")


@sum_rows.defjvp
def _sum_rows_jvp(primals, tangents):
  # Reverse mode transposes this sum into copies; the transpose of the matrix
  # product would be another product.
  (x,), (change,) = primals, tangents
  sums = sum_rows(x)
  return sums, jnp.sum(change.astype(sums.dtype), axis=0)


def add_bias(
  x: Float[Array, "..."], bias: Float[Array, "..."]
) -> Float[Array, "..."]:
  """Computes x + bias, with the same bias along all leading axes of `x`.

  The gradient of the bias is a sum that is fast on CPUs; see `spread`. Add
  biases outside of `jax.vmap`: the sum over its axis would be XLA's own.

  Args:
    x: any shape.
    bias: shaped like the last axes of `x`.

  Returns:
    The sums, in the dtype to which both promote.

  Raises:
    ValueError: if the last axes of `x` do not have the shape of `bias`.
  """
  checks.floats({"x": x, "bias": bias})
  between = x.ndim - bias.ndim
  if x.shape[max(between, 0) :] != bias.shape:
    raise ValueError(
      f"bias is {list(bias.shape)} and x {list(x.shape)}; give a bias of the "
      "last axes of x."
    )
  return x + spread(bias, before=x.shape[:between])
