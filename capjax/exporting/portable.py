"""Rewrites computations in operations that converters to other formats know.

A traced function keeps its values. Its branches for platforms are replaced by
those for any platform, and functions that it calls are written out.
Padding, which some converters refuse for a batch of unknown size, becomes
concatenation with constants, an outer product a multiplication, and a
cumulative product, which ONNX Runtime does not have, one product after another.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend import core

# Functions inside a function, by the parameter that holds their computation.
_CALLS = {
  "pjit": "jaxpr",
  "jit": "jaxpr",
  "closed_call": "call_jaxpr",
  "checkpoint": "jaxpr",
  "remat2": "jaxpr",
  "custom_jvp_call": "call_jaxpr",
  "custom_vjp_call": "call_jaxpr",
}
# They change derivatives or compilation, not values.
_IDENTITIES = ("stop_gradient", "optimization_barrier")


def portable(
  function: Callable[..., Any], inputs: Sequence[jax.ShapeDtypeStruct]
) -> Callable[..., list[jax.Array]]:
  """Rewrites a function in operations that converters know.

  Args:
    function: of arrays; returns a pytree of arrays.
    inputs: shapes and dtypes of its arguments; sizes may be symbolic.

  Returns:
    A function that returns the leaves of the result.
  """
  traced = jax.make_jaxpr(function)(*inputs)
  written_out = jax.make_jaxpr(lambda *x: _run(traced, x))(*inputs)
  return core.jaxpr_as_fun(written_out)


def _run(computation, arguments) -> list[Any]:
  """Evaluates a computation, closed or with constants among its arguments."""
  jaxpr = getattr(computation, "jaxpr", computation)
  constants = getattr(computation, "consts", ())
  values = dict(zip(jaxpr.constvars, constants, strict=True))
  values |= dict(zip(jaxpr.invars, arguments, strict=True))

  def read(variable):
    if isinstance(variable, core.Literal):
      return variable.val
    return values[variable]

  for step in jaxpr.eqns:
    results = _apply(step, [read(x) for x in step.invars])
    values |= dict(zip(step.outvars, results, strict=True))
  return [read(x) for x in jaxpr.outvars]


def _apply(step, given) -> Sequence[Any]:
  """The results of one operation, written out where it is a function."""
  name, options = step.primitive.name, step.params
  if name == "platform_index":
    # The platforms of each branch; the default branch has None.
    return [options["platforms"].index(None)]
  if name == "cond" and isinstance(given[0], int):
    return _run(options["branches"][given[0]], given[1:])
  if name in _CALLS:
    return _run(options[_CALLS[name]], given)
  if name in _IDENTITIES:
    return given
  if name == "pad":
    x, value = given
    return [_pad(x, value, options["padding_config"])]
  if name == "dot_general" and not options["dimension_numbers"][0][0]:
    x, y = given
    return [_outer(x, y, options)]
  if name == "scan":
    return _scan(options, given)
  if name == "cumprod":
    return [_products(*given, **options)]
  results = step.primitive.bind(
    *given, **step.primitive.get_bind_params(options)
  )
  return results if step.primitive.multiple_results else [results]


def _outer(x, y, options):
  """`lax.dot_general` without a sum, as the products of all pairs."""
  _, (x_batch, y_batch) = options["dimension_numbers"]
  x_free = [n for n in range(x.ndim) if n not in x_batch]
  y_free = [n for n in range(y.ndim) if n not in y_batch]
  x = lax.transpose(x, [*x_batch, *x_free])
  y = lax.transpose(y, [*y_batch, *y_free])
  ends = range(x.ndim, x.ndim + len(y_free))
  middle = range(len(y_batch), len(y_batch) + len(x_free))
  product = lax.expand_dims(x, ends) * lax.expand_dims(y, middle)
  dtype = options["preferred_element_type"]
  return product if dtype is None else product.astype(dtype)


def _scan(options, given):
  """A loop, whose body is rewritten."""
  first = options["num_consts"]
  second = first + options["num_carry"]

  def body(carry, x):
    results = _run(options["jaxpr"], [*given[:first], *carry, *x])
    return results[: second - first], results[second - first :]

  carry, rest = lax.scan(
    body,
    given[first:second],
    given[second:],
    length=options["length"],
    reverse=options["reverse"],
  )
  return [*carry, *rest]


def _products(x, *, axis, reverse):
  """`lax.cumprod` by one product after another."""
  size = x.shape[axis]
  pieces = [lax.slice_in_dim(x, n, n + 1, axis=axis) for n in range(size)]
  order = pieces[::-1] if reverse else pieces
  totals = list(itertools.accumulate(order, lax.mul))
  return lax.concatenate(totals[::-1] if reverse else totals, axis)


def _pad(x, value, config):
  """`lax.pad` by slices and concatenation, along one axis after another."""
  for axis, (before, after, between) in enumerate(config):
    shape = x.shape
    if between and shape[axis] > 1:
      # Each element is followed by a gap, also the last.
      gap = lax.broadcast(
        value, (*shape[: axis + 1], between, *shape[axis + 1 :])
      )
      x = lax.concatenate([lax.expand_dims(x, [axis + 1]), gap], axis + 1)
      size = shape[axis] * (between + 1)
      x = lax.reshape(x, (*shape[:axis], size, *shape[axis + 1 :]))
      x = lax.slice_in_dim(x, 0, size - between, axis=axis)
    if min(before, after) < 0:
      end = x.shape[axis] - max(-after, 0)
      x = lax.slice_in_dim(x, max(-before, 0), end, axis=axis)
    shape = x.shape
    first, last = (
      [lax.broadcast(value, (*shape[:axis], count, *shape[axis + 1 :]))]
      if count > 0
      else []
      for count in (before, after)
    )
    pieces = [*first, x, *last]
    if len(pieces) > 1:
      x = lax.concatenate(pieces, axis)
  return x
