"""Floating-point operations of a function, counted in its traced form.

Counts do not depend on the device: where a layer has several forms for several
platforms, that for GPUs counts. There a convolution is its direct sum, and
dynamic routing forms the votes of an image once (where they are at most 2^27
numbers); other forms save memory or time by other operations.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from capjax.layers import platforms

# One operation for each number of the result.
_OF_RESULT = frozenset(
  {
    "add", "add_any", "sub", "mul", "div", "max", "min", "neg", "abs", "exp",
    "exp2", "expm1", "log", "log1p", "logistic", "tanh", "sqrt", "rsqrt",
    "square", "pow", "integer_pow", "sin", "cos", "tan", "asin", "acos",
    "atan", "atan2", "sinh", "cosh", "erf", "cbrt", "floor", "ceil", "round",
    "sign", "rem", "select_n", "clamp",
  }
)  # fmt: skip
# One operation for each number of the argument.
_OF_ARGUMENT = frozenset(
  {
    "reduce_sum", "reduce_max", "reduce_min", "reduce_prod",
    "cumsum", "cumprod", "cumlogsumexp", "cummax", "cummin",
    "reduce_window_max", "reduce_window_min", "reduce_window_sum",
  }
)  # fmt: skip


def count(function: Callable[..., Any], *arguments: Any) -> int:
  """Counts the operations of one call, without running it.

  A product of matrices [M K] and [K N] counts 2 M K N, a convolution likewise;
  arithmetic and elementary functions count 1 for each number, and so do sums
  and maxima for each number that they read. Copies, comparisons and whole
  numbers count nothing.

  Args:
    function: traceable.
    *arguments: arrays, modules, or `jax.ShapeDtypeStruct`s of them.

  Returns:
    The number of operations; of several branches, that of the costliest.

  Raises:
    ValueError: if the function has a loop whose length depends on numbers.
  """
  with platforms.known("gpu"):
    # A new function: JAX may have kept the trace of another platform's forms.
    traced = jax.make_jaxpr(lambda *x: function(*x))(*arguments)
  return _of_jaxpr(traced.jaxpr)


def _of_jaxpr(jaxpr) -> int:
  return sum(map(_of_equation, jaxpr.eqns))


def _of_equation(equation) -> int:
  name, given = equation.primitive.name, equation.params
  if name == "while":
    raise ValueError(
      "a loop of unknown length cannot be counted; give a function whose loops "
      "have a fixed length."
    )
  if name == "cond":
    costs = [_of_jaxpr(branch.jaxpr) for branch in given["branches"]]
    of_platforms = given.get("branches_platforms")
    if not of_platforms:
      return max(costs)
    # The last is the general one.
    for cost, names in zip(costs, of_platforms, strict=True):
      if names is not None and "cuda" in names:
        return cost
    return costs[-1]
  inner = sum(_of_jaxpr(x) for x in _inside(given))
  if name == "scan":
    return given["length"] * inner
  if inner:
    return inner
  if not equation.outvars:
    return 0  # a check of numbers
  result = equation.outvars[0].aval
  if not jnp.issubdtype(getattr(result, "dtype", jnp.int32), jnp.inexact):
    return 0
  shapes = [x.aval for x in equation.invars]
  if name == "dot_general":
    (contracted, _), _ = given["dimension_numbers"]
    return 2 * result.size * math.prod(shapes[0].shape[n] for n in contracted)
  if name == "conv_general_dilated":
    kernel = shapes[1]
    features = kernel.shape[given["dimension_numbers"].rhs_spec[0]]
    return 2 * result.size * kernel.size // features
  if name in _OF_RESULT:
    return result.size
  return shapes[0].size if name in _OF_ARGUMENT else 0


def _inside(given):
  """The functions that an equation calls."""
  for value in given.values():
    if isinstance(value, core.ClosedJaxpr):
      yield value.jaxpr
    elif isinstance(value, core.Jaxpr):
      yield value
