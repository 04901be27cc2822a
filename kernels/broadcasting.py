"""Broadcasting whose gradient is fast on CPUs, and sums that are fast there.

XLA's own sums of many rows are slow there (docs/cpu_sums.md, "What it costs").
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

  As `jnp.broadcast_to`, but for the gradient: that is a sum over the new axes,
  which is computed as a product of matrices in at least float32. On CPUs XLA's
  own sums of many rows can take several times as long (docs/cpu_sums.md). An
  axis that `jax.vmap` maps is none of the new axes.

  Args:
    x: any shape.
    before: sizes of the new axes that come before those of `x`; as exported
      programs have them, they may be symbols.
    after: sizes of the new axes that come after them.

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
  wide = change.astype(numerics.accumulation_dtype(change))
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

  The rows are never rounded, whatever `precision` says. Forward mode, which no
  layer uses, has XLA's own sum.

  Args:
    x: [N, C], whose sums fit the dtype.

  Returns:
    [C], in float32 or wider.

  Raises:
    ValueError: if there are no rows or no columns.
  """
  checks.arrays({"x": (x, "N C")})
  wide = x.astype(numerics.accumulation_dtype(x))
  ones = jnp.ones(x.shape[:1], wide.dtype)
  return jnp.matmul(ones, wide, precision="highest")


@sum_rows.defjvp
def _sum_rows_jvp(primals, tangents):
  # The transpose of the product would be another, where copies are enough.
  (x,), (change,) = primals, tangents
  sums = sum_rows(x)
  return sums, jnp.sum(change.astype(sums.dtype), axis=0)


def add_bias(
  x: Float[Array, "..."], bias: Float[Array, "..."]
) -> Float[Array, "..."]:
  """Computes x + bias, for which all leading axes of `x` share one bias.

  The sum that is the gradient by the bias is fast on CPUs; see `spread`. Add
  biases outside of `jax.vmap`, whose axis is none of these.

  Args:
    x: any shape.
    bias: of the last axes of `x`.

  Returns:
    The sums, in the dtype to which both promote.

  Raises:
    ValueError: if the last axes of `x` have other sizes.
  """
  checks.floats({"x": x, "bias": bias})
  between = x.ndim - bias.ndim
  if x.shape[max(between, 0) :] != bias.shape:
    raise ValueError(
      f"bias is {list(bias.shape)} and x {list(x.shape)}; give a bias of the "
      "last axes of x."
    )
  return x + spread(bias, before=x.shape[:between])
