"""Products, norms, softmax, logarithms and squashing, safe at limits.

Values and gradients are finite for every finite input: operations whose
derivative is infinite at zero get another operand there (double `where`).
Sums are accumulated in at least float32; results have the dtype of the input.
"""

import contextlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from . import checks

# A setting, which may be traced.
Scalar = float | Float[Array, ""]


def accumulation_dtype(*arrays: jax.typing.ArrayLike) -> jnp.dtype:
  """The dtype in which sums over `arrays` are taken: float32 or wider.

  Args:
    *arrays: arrays or numbers of any dtype and shape.
  """
  return jnp.result_type(*arrays, jnp.float32)


def widen(
  x: jax.typing.ArrayLike, *others: jax.typing.ArrayLike
) -> Num[Array, "..."]:
  """Converts an array to the dtype of sums over it: float32 or wider.

  Args:
    x: of any dtype and shape.
    *others: arrays that are summed with it; see `accumulation_dtype`.
  """
  return jnp.asarray(x, accumulation_dtype(x, *others))


def precision() -> str | None:
  """The `precision` to pass to JAX's products: how far they round operands.

  None if `jax.default_matmul_precision` is set, which the products then follow;
  else "highest", since on accelerators JAX's own default keeps fewer digits
  than float32 has. On CPUs no setting rounds.
  """
  return "highest" if _stated_precision() is None else None


@contextlib.contextmanager
def full_products() -> Iterator[None]:
  """Makes JAX's own products round as `precision` says; also a decorator."""
  stated = _stated_precision()
  with jax.default_matmul_precision("highest" if stated is None else stated):
    yield


def _stated_precision() -> str | None:
  # JAX makes the attributes of its configuration while it is imported.
  return jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]


def einsum(
  subscripts: str,
  *operands: Float[Array, "..."],
  dtype: jax.typing.DTypeLike | None = None,
) -> Float[Array, "..."]:
  """Computes `jnp.einsum`; operands are rounded as `precision` says.

  Args:
    subscripts: subscripts of the operands and the result, such as "ij,jk->ik".
    operands: any number of arrays; in float32, if there are two, of magnitude
      up to 1e17.
    dtype: the operands and the sums are rounded to it, such as bfloat16; None
      rounds neither.

  Returns:
    The sums of products, in the dtype to which the operands promote.

  Raises:
    ValueError: if the subscripts do not fit the operands.
  """
  checks.floats({f"operand {n}": x for n, x in enumerate(operands, 1)})
  given = jnp.result_type(*operands)
  if dtype is not None:
    operands = tuple(x.astype(dtype) for x in operands)
  sums = jnp.einsum(subscripts, *operands, precision=precision())
  return sums.astype(given)


def matmul(
  a: Float[Array, "..."], b: Float[Array, "..."]
) -> Float[Array, "..."]:
  """Computes `jnp.matmul`; operands are rounded as `precision` says.

  Args:
    a: [... N K], or [K]; the axes before the last two broadcast.
    b: [... K M], or [K].

  Returns:
    Products [... N M], without N or M for a vector, in the dtype to which `a`
    and `b` promote.

  Raises:
    TypeError: if their sizes along K differ.
    ValueError: if the other axes do not broadcast, or an array has no axis.
  """
  checks.floats({"a": a, "b": b})
  return jnp.matmul(a, b, precision=precision())


def safe_norm(
  x: Float[Array, "..."], axis: int = -1, *, keepdims: bool = False
) -> Float[Array, "..."]:
  """Computes the Euclidean norm |x| along `axis`, with gradient 0 at x = 0.

  Args:
    x: any shape; entries up to the largest finite number of its dtype.
    axis: the axis of the vectors.
    keepdims: whether that axis stays, with length 1.

  Returns:
    Norms, >= 0; neither overflows nor underflows where the norm itself fits.
  """
  checks.floats({"x": x})
  return _norm(x, axis, keepdims).astype(jnp.result_type(x))


def _norm(x, axis, keepdims):
  x = widen(x)
  # |x| = m |x / m| for every m: the gradient through m is zero.
  largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis, keepdims=True))
  # The norm of a vector near the largest number would overflow.
  largest = jnp.minimum(largest, jnp.finfo(x.dtype).max / 8)
  nonzero = largest != 0  # true of NaN, which must stay NaN
  scale = jnp.where(nonzero, largest, 1.0)
  squares = jnp.sum(jnp.square(x / scale), axis, keepdims=True)
  norm = scale * jnp.sqrt(jnp.where(nonzero, squares, 1.0))
  norm = jnp.where(nonzero, norm, 0.0)
  return norm if keepdims else jnp.squeeze(norm, axis)


def unit_vectors(x: Float[Array, "*N D"]) -> Float[Array, "*N D"]:
  """Divides vectors by their lengths; zero vectors stay zero, with gradient 0.

  Args:
    x: vectors along the last axis; entries up to the largest finite number of
      its dtype.

  Returns:
    Vectors of length 1 or 0, but for rounding, shaped like `x`.
  """
  checks.floats({"x": x})
  wide = widen(x)
  # Only directions count: squares of tiny vectors would be rounded to zero.
  largest = jax.lax.stop_gradient(jnp.max(jnp.abs(wide), -1, keepdims=True))
  # XLA would round the reciprocal of a larger number to zero.
  largest = jnp.minimum(largest, jnp.finfo(wide.dtype).max / 8)
  nonzero = largest != 0  # true of NaN, which must stay NaN
  scaled = wide / jnp.where(nonzero, largest, 1.0)
  lengths = jnp.where(nonzero, _norm(scaled, -1, True), 1.0)
  return jnp.where(nonzero, scaled / lengths, 0.0).astype(jnp.result_type(x))


# How far below 0 rounding may bring the largest exponent: sums of e^-8 are
# still accurate.
_FAR = 8.0


def exp_below(
  x: Float[Array, "..."],
  top: Float[Array, "..."],
  *,
  scale: Float[Array, "..."] | float = 1.0,
) -> Float[Array, "..."]:
  """Computes e^(scale (x - top)) for x <= top, and never more than 1.

  XLA may compute `x` twice, once for its maximum and once for this difference,
  with different rounding: then the largest difference is not 0, but off by
  about the spacing of floating-point numbers near `top`. Where `scale` times
  this spacing is above 8, `top` is lowered by it, so that the largest
  exponential stays 1; numbers within the spacing then count as equal.

  Args:
    x: any shape.
    top: the maximum of `x` over the numbers that are compared; broadcasts.
      Gradients treat it as a constant.
    scale: > 0, for logits that would overflow; broadcasts. Gradients treat it
      as a constant.

  Returns:
    Numbers in [0, 1], in the dtype of `x`.
  """
  checks.floats({"x": x, "top": top})
  top, scale = jax.lax.stop_gradient((top, scale))
  spacing = jnp.finfo(x.dtype).eps * jnp.abs(top)
  below = x - (top - jnp.where(spacing * scale > _FAR, spacing, 0.0))
  # Not jnp.minimum(below, 0), which halves the gradient at 0.
  return jnp.exp((below - jax.lax.stop_gradient(jnp.maximum(below, 0))) * scale)


def share(
  weights: Float[Array, "..."], total: Float[Array, "..."]
) -> Float[Array, "..."]:
  """Divides results of `exp_below` by their sum, at least about e^-8.

  Args:
    weights: results of `exp_below`, in [0, 1].
    total: their sum along an axis; broadcasts.

  Returns:
    Shares in [0, 1], which sum to 1 along this axis; 0 where all weights are 0.
  """
  checks.floats({"weights": weights, "total": total})
  return weights / _positive(total)


def _positive(total):
  """Returns a sum, which is at least about e^-8, or 1 where it was rounded."""
  return jnp.where(total > jnp.finfo(total.dtype).eps, total, 1.0)


def excess(
  x: Float[Array, "..."], axis: int | None = None
) -> Float[Array, "..."]:
  """Finds a divisor with which the sum of squares does not overflow.

  Args:
    x: any shape.
    axis: the axis of the vectors; None for all of `x` at once.

  Returns:
    The largest magnitude along the axis where squares might overflow, else 1.
    The axis is kept, with size 1; gradients treat the divisor as a constant.
  """
  checks.floats({"x": x})
  # The reciprocal of a larger divisor would be rounded to 0.
  highest = float(jnp.finfo(x.dtype).max) / 8
  largest = jnp.minimum(_largest(jnp.abs(x), axis), highest)
  few = float(jnp.finfo(x.dtype).max) ** 0.5 / 1e4
  return jnp.where(largest > few, largest, 1.0)


def _largest(x, axis):
  return jax.lax.stop_gradient(jnp.max(x, axis, keepdims=True))


def _widened_once(x):
  """As `widen`, but half-precision numbers are computed once.

  If XLA computed them twice, once rounded, the two results would differ by the
  spacing of half precision.
  """
  dtype = accumulation_dtype(x)
  if x.dtype == dtype:
    return x
  return jax.lax.optimization_barrier(x).astype(dtype)


def softmax(
  x: Float[Array, "..."],
  axis: int = -1,
  *,
  scale: Float[Array, "..."] | float = 1.0,
) -> Float[Array, "..."]:
  """Computes e^(scale x) over its sum along `axis`.

  As `jax.nn.softmax`, but finite where XLA computes `x` twice; see `exp_below`.

  Args:
    x: finite logits, any shape.
    axis: axis of the sum.
    scale: > 0, a constant, for logits that would overflow; broadcasts.

  Returns:
    Shares in [0, 1], which sum to 1.
  """
  checks.floats({"x": x})
  wide = _widened_once(x)
  weights = exp_below(wide, _largest(wide, axis), scale=scale)
  total = jnp.sum(weights, axis, keepdims=True)
  return share(weights, total).astype(x.dtype)


def logsumexp(
  x: Float[Array, "..."], axis: int | None = None, *, keepdims: bool = False
) -> Float[Array, "..."]:
  """Computes the logarithm of the sum of e^x along `axis`, or of all.

  As `jax.nn.logsumexp`, but finite where XLA computes `x` twice; see
  `exp_below`.

  Args:
    x: any shape; -inf adds nothing.
    axis: axis of the sum.
    keepdims: whether the axis stays, with size 1.

  Returns:
    Logarithms (nats), without the axis, or without all axes, unless `keepdims`.
  """
  checks.floats({"x": x})
  wide = _widened_once(x)
  largest = _largest(wide, axis)
  nothing = largest == -jnp.inf
  top = jnp.where(nothing, 0.0, largest)
  weights = exp_below(wide, top)
  total = jnp.sum(weights, axis, keepdims=True)
  total = jnp.where(nothing, largest, top + jnp.log(_positive(total)))
  total = total.astype(x.dtype)
  return total if keepdims else jnp.squeeze(total, axis)


def log_softmax(
  x: Float[Array, "..."], axis: int | None = -1
) -> Float[Array, "..."]:
  """Computes the logarithm of `softmax`, whose shares sum to 1.

  The largest logit is subtracted first: `logsumexp` of large logits would be
  rounded to the spacing of floating-point numbers near it.

  Args:
    x: finite logits, any shape.
    axis: the axis of the sum; None for all of `x` at once.

  Returns:
    Logarithms of shares, <= 0.
  """
  checks.floats({"x": x})
  wide = _widened_once(x)
  below = wide - _largest(wide, axis)
  below = jnp.where(below > 0, 0.0, below)  # keeps the full gradient at 0
  total = jnp.sum(jnp.exp(below), axis, keepdims=True)
  return (below - jnp.log(_positive(total))).astype(x.dtype)


def safe_log(x: Float[Array, "..."]) -> Float[Array, "..."]:
  """Computes log x, with x raised to the smallest normal number if below it.

  Args:
    x: any shape, >= 0.

  Returns:
    Natural logarithms (nats); the gradient is 1 / x, and 0 where x was raised.
  """
  checks.floats({"x": x})
  return jnp.log(jnp.maximum(x, jnp.finfo(x.dtype).tiny))


def squash(s: Float[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
  """Shrinks vectors to length below one (Sabour et al., 2017, Eq. 1).

  v = |s|^2 / (1 + |s|^2) s / |s|.

  >>> v = squash(jnp.array([3.0, 4.0]))  # of length 5
  >>> print(f"{jnp.linalg.norm(v):.3f}")  # 25 / 26
  0.962

  Args:
    s: total inputs of capsules, any shape.
    axis: the axis of the vectors.

  Returns:
    v: shaped like `s`, parallel to it, with |v| in [0, 1) but for rounding;
    0 with zero gradient at s = 0.

  Differs from paper: nothing; the authors' code adds no guard at s = 0, where
  it gives NaN.
  """
  checks.floats({"s": s})
  norm = _norm(s, axis, keepdims=True)
  # Two forms of |s| / (1 + |s|^2), each where its gradient cannot overflow.
  is_short = norm < 1
  short = jnp.where(is_short, norm, 1.0)
  long = jnp.where(is_short, 1.0, norm)
  v = jnp.where(
    is_short,
    s * (short / (1 + short**2)),
    # Quarters: XLA multiplies by the reciprocal, and 1 / long can underflow.
    (s / 4) / (long / 4) / (1 + (1 / long) ** 2),
  )
  return v.astype(jnp.result_type(s))


def layer_norm(x: Float[Array, "..."]) -> Float[Array, "..."]:
  """Shifts and scales the last axis to mean 0 and variance 1 (Ba et al., 2016).

  Args:
    x: any shape; the last axis has at least 2 numbers, or the result is 0.

  Returns:
    (x - mean) / sqrt(variance + 1e-5), shaped like `x`.

  Differs from paper: no scale and offset; 1e-5 in place of 0.
  """
  checks.floats({"x": x})
  given, x = jnp.result_type(x), widen(x)
  large = excess(x, -1)
  x = x / large
  # The default variance is a difference of squares, which loses digits.
  variance = jnp.var(x, axis=-1, keepdims=True)
  epsilon = jnp.maximum(1e-5 / large / large, 1e-30)
  x = jax.nn.standardize(x, variance=variance, epsilon=epsilon)
  return x.astype(given)


def exponential_squash(
  s: Float[Array, "..."], axis: int = -1
) -> Float[Array, "..."]:
  """Shrinks vectors to a length below one (Mazzia et al., 2021).

  v = (1 - e^-|s|) s / |s|: steeper than `squash` near zero, where |v| = |s|.

  Args:
    s: total inputs of capsules, any shape.
    axis: the axis of the vectors.

  Returns:
    v: shaped like `s`, parallel to it, with |v| in [0, 1) but for rounding;
    0 with the identity as its derivative at s = 0.

  Differs from paper: nothing; the authors' code adds 1e-20 to |s|.
  """
  checks.floats({"s": s})
  norm = _norm(s, axis, keepdims=True)
  # (1 - e^-n) / n, by its series where the quotient's gradient would overflow;
  # the first term left out is below the rounding error.
  is_short = norm < jnp.finfo(norm.dtype).eps ** (1 / 3)
  short = jnp.where(is_short, norm, 0.0)
  long = jnp.where(is_short, 1.0, norm)
  v = jnp.where(
    is_short,
    s * (1 - short / 2 + short**2 / 6),
    # Quarters for the same reason as in `squash`; the quotient first, since
    # sums of `s` over the axis, in the gradient, would overflow.
    (s / 4) / (long / 4) * -jnp.expm1(-long),
  )
  return v.astype(jnp.result_type(s))
