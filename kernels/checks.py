"""Checks of the arguments of kernels and models, by shapes and dtypes.

The checks run while a function is traced, so they cost nothing under jit.
Values in arrays are checked only where they are known, which is outside of jit
and other transformations.
Each error message names the argument, what it is, and what to pass instead.
Kernels take floating-point arrays only: integers are refused, not promoted,
since most results have the dtype of the arguments.
"""

import difflib
import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Values may be this far outside of their range, by rounding.
_ROUNDING = 1e-3


class ImageShapeError(ValueError):
  """Images have a size or a number of channels that the model cannot take."""


def arrays(
  arguments: Mapping[str, tuple[Any, str]], *, empty: str = "", **sizes: int
) -> dict[str, int]:
  """Checks that arrays are floats, of shapes that fit each other.

  Args:
    arguments: `{name: (array, axes)}`, the axes as in annotations, "I J D"; a
      first axis "..." stands for any number of axes. An array that is None is
      not checked.
    empty: axes that may have size 0, such as "N I".
    **sizes: sizes of axes that are known already.

  Returns:
    The sizes of all axes, by name.

  Raises:
    TypeError: if an argument is no array of floating-point numbers.
    ValueError: if an array has another number of axes, an axis is empty, or
      axes of one name differ in size.
  """
  for name, (array, axes) in arguments.items():
    if array is None:
      continue
    floats({name: array})
    wanted = axes.split()
    shape = array.shape
    if wanted[0] == "...":
      wanted = wanted[1:]
      shape = shape[max(0, len(shape) - len(wanted)) :]
    if len(shape) != len(wanted):
      raise ValueError(f"{name} is {_as_text(array.shape)}; give [{axes}].")
    for axis, size in zip(wanted, shape, strict=True):
      known = int(axis) if axis.isdecimal() else sizes.setdefault(axis, size)
      if size != known:
        expected = _as_text([sizes.get(x, x) for x in axes.split()])
        raise ValueError(
          f"{name} is {_as_text(array.shape)}; give [{axes}] = {expected}."
        )
      if not size and axis not in empty.split():
        raise ValueError(
          f"{name} is {_as_text(array.shape)}, which is empty; give at least 1 "
          f"along {axis} of [{axes}]."
        )
  return sizes


def floats(arguments: Mapping[str, Any]) -> None:
  """Checks that arrays, by name, hold floating-point numbers.

  Args:
    arguments: the arrays by name.

  Raises:
    TypeError: if one does not.
  """
  for name, array in arguments.items():
    dtype = getattr(array, "dtype", None)
    if dtype is None or not hasattr(array, "astype"):
      near = ", such as its poses" if hasattr(array, "poses") else ""
      raise TypeError(
        f"{name} is a {type(array).__name__}; give an array of floats{near}."
      )
    if not jnp.issubdtype(dtype, jnp.floating):
      raise TypeError(
        f"{name} holds {dtype}; give floating-point numbers, such as float32."
      )


def same_shape(wanted: tuple[int, ...], **arrays: Any) -> None:
  """Checks that arrays have the same shape, where they must not be broadcast.

  Args:
    wanted: the shape that every array must have.
    **arrays: the arrays, by name.

  Raises:
    ValueError: if an array has another shape.
  """
  for name, array in arrays.items():
    if np.shape(array) != tuple(wanted):
      raise ValueError(
        f"{name} is {_as_text(np.shape(array))}; give {_as_text(wanted)}, as "
        "the other arguments have it."
      )


def images(
  array: Any,
  shape: tuple[int, ...],
  *,
  flat: bool = False,
  intensities: bool = False,
) -> None:
  """Checks a batch of images.

  Args:
    array: [B ...].
    shape: the shape of one image for which the model was made.
    flat: whether images may have another shape with as many numbers.
    intensities: whether values must be in [0, 1], not only finite. They are
      checked only where they are known: not under jit or other transformations.

  Raises:
    TypeError: if the array does not hold floating-point numbers.
    ImageShapeError: if the array is not a batch of images of this shape.
    ValueError: if the batch is empty or of symbolic size, as for `jax.export`,
      a value is not finite, or an intensity is outside of [0, 1].
  """
  dtype = getattr(array, "dtype", None)
  if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
    raise TypeError(
      f"images hold {dtype}; give floating-point numbers, such as "
      "capjax.data.as_intensities(images)."
    )
  floats({"images": array})
  same = array.ndim > 0 and array.shape[1:] == tuple(shape)
  if not same and not (flat and _are_as_many(array, shape)):
    raise ImageShapeError(
      f"images are {_as_text(array.shape)}; give {_as_text(['B', *shape])}, "
      "for which the model was made."
    )
  if not _is_whole(array.shape[0]):
    raise ValueError(
      "images are a batch of symbolic size; export jax.vmap of a function of "
      "one image, a batch of 1."
    )
  if not len(array):
    raise ValueError(
      f"images are {_as_text(array.shape)}, an empty batch; give at least one."
    )
  lowest, highest = (0.0, 1.0) if intensities else (-math.inf, math.inf)
  if fault := _outside(array, lowest, highest):
    asked = "intensities in [0, 1], such as images / 255"
    raise ValueError(
      f"images hold {fault}; give {asked if intensities else 'finite numbers'}."
    )


def image_shape(shape: Any) -> None:
  """Checks the shape [H W C] of images that a model is made for.

  Args:
    shape: height, width and channels.

  Raises:
    ImageShapeError: if the shape is not three whole numbers above 0.
  """
  sizes = tuple(shape) if np.iterable(shape) else (shape,)
  if len(sizes) != 3 or not all(map(_is_whole, sizes)) or min(sizes) < 1:
    raise ImageShapeError(
      f"image_shape is {shape}; give height, width and channels, each a whole "
      "number of at least 1."
    )


def padding(padding: str) -> None:
  """Checks the name of a padding.

  Args:
    padding: the name.

  Raises:
    ValueError: if it is neither "VALID" nor "SAME".
  """
  if padding not in ("VALID", "SAME"):
    raise ValueError(f"padding is {padding!r}; give 'VALID' or 'SAME'.")


def counts(*, at_least: int = 1, **numbers: Any) -> None:
  """Checks that counts are whole numbers, at least `at_least`.

  Args:
    at_least: the smallest number that is allowed.
    **numbers: the counts, by name.

  Raises:
    TypeError: if one is no whole number, or is traced.
    ValueError: if a number is below `at_least`.
  """
  for name, number in numbers.items():
    if isinstance(number, jax.core.Tracer):
      raise TypeError(
        f"{name} is traced; give a Python integer, and name it in "
        "static_argnames of jax.jit."
      )
    if not _is_whole(number):
      raise TypeError(f"{name} is {number!r}; give a whole number.")
    if number < at_least:
      raise ValueError(f"{name} is {number}; give at least {at_least}.")


def sequences(*, at_least: int = 1, **sequences: Any) -> None:
  """Checks sequences of whole numbers, such as the widths of layers.

  Args:
    at_least: the smallest number that is allowed.
    **sequences: the sequences, by name.

  Raises:
    TypeError: if one is not a sequence, or holds anything but whole numbers.
    ValueError: if a number is below `at_least`.
  """
  for name, sequence in sequences.items():
    if isinstance(sequence, (str, bytes)) or not np.iterable(sequence):
      raise TypeError(
        f"{name} is {sequence!r}; give a sequence of whole numbers, such as "
        "(8,)."
      )
    for number in sequence:
      counts(at_least=at_least, **{f"a number of {name}": number})


def positive(*, above: int | float = 0, **values: Any) -> None:
  """Checks that settings are finite numbers above 0; traced ones are skipped.

  Args:
    above: the bound, which a setting must exceed.
    **values: the settings, by name.

  Raises:
    TypeError: if one is no number.
    ValueError: if one is not above the bound, infinite, or NaN.
  """
  for name, value in _known_numbers(values):
    if not above < value < math.inf:
      raise ValueError(
        f"{name} is {value}; give a finite number above {above}."
      )


def within(low: float, high: float, **values: Any) -> None:
  """Checks that settings are finite and in a range; traced ones are skipped.

  Args:
    low: the least value that is allowed.
    high: the largest; infinity for any finite number.
    **values: the settings, by name.

  Raises:
    TypeError: if one is no number.
    ValueError: if one is outside of the range, infinite, or NaN.
  """
  for name, value in _known_numbers(values):
    if not (low <= value <= high and math.isfinite(value)):
      asked = (
        f"a number from {low:g} to {high:g}"
        if math.isfinite(high)
        else f"a finite number, {low:g} or more"
      )
      raise ValueError(f"{name} is {value}; give {asked}.")


def values(low: float, high: float, **arrays: Any) -> None:
  """Checks the range of the values in arrays, such as probabilities.

  They are checked only where they are known: not under jit or other
  transformations.

  Args:
    low: the least value that is allowed; a rounding error below it passes;
      -infinity for any finite number.
    high: the largest, likewise; infinity for any finite number.
    **arrays: the arrays, by name; None is not checked.

  Raises:
    ValueError: if a known value is outside of the range, infinite, or NaN.
  """
  for name, array in arrays.items():
    fault = "" if array is None else _outside(array, low, high)
    if fault:
      asked = "finite numbers"
      if math.isfinite(low):
        most = f" to {high:g}" if math.isfinite(high) else ""
        asked = f"numbers from {low:g}{most}"
      elif math.isfinite(high):
        asked = f"finite numbers of at most {high:g}"
      raise ValueError(f"{name} has {fault}; give {asked}.")


def choice(known: Iterable[str], **values: Any) -> None:
  """Checks that options have one of the known values.

  Args:
    known: the values that are known.
    **values: the options, by name.

  Raises:
    ValueError: if a value is not known.
  """
  known = tuple(known)
  for name, value in values.items():
    if value not in known:
      raise ValueError(f"{name} is {value!r}; give {' or '.join(known)}.")


def dtype(dtype: Any) -> None:
  """Checks the dtype of the products of a model.

  Args:
    dtype: anything that `jnp.dtype` takes.

  Raises:
    ValueError: if it is neither float32 nor bfloat16.
  """
  try:
    known = jnp.dtype(dtype) in (jnp.float32, jnp.bfloat16)
  except TypeError:
    known = False
  if not known:
    raise ValueError(f"dtype is {dtype}; give 'float32' or 'bfloat16'.")


def rngs(rngs: Any) -> None:
  """Checks that a module of Flax gets random streams.

  Args:
    rngs: the streams, `nnx.Rngs`.

  Raises:
    TypeError: if it is something else, such as a seed or a key.
  """
  if not callable(getattr(rngs, "params", None)):
    kind = type(rngs).__name__
    raise TypeError(f"rngs is of type {kind}; give flax.nnx.Rngs(SEED).")


def did_you_mean(name: object, known: Iterable[str]) -> str:
  """Suggests the name that is most similar to a misspelt one, for a message.

  Args:
    name: the name that was given.
    known: the names that exist.

  Returns:
    A question with a space at its end, such as "did you mean dynamic? "; empty
    if no name is similar.
  """
  near = difflib.get_close_matches(str(name), list(known), 1)
  return f"did you mean {near[0]}? " if near else ""


def _known_numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
  """The settings that are not traced, by name.

  Raises:
    TypeError: if one is no number.
  """
  for name, value in values.items():
    if isinstance(value, jax.core.Tracer):
      continue
    number = np.asarray(value)
    kinds = jnp.floating, jnp.integer
    if number.ndim or not any(jnp.issubdtype(number.dtype, x) for x in kinds):
      raise TypeError(f"{name} is {value!r}; give a number.")
    # Not an array of JAX, whose comparisons are traced within a trace.
    yield name, number[()]


def _outside(array: Any, low: float, high: float) -> str:
  """Describes the values if some are outside of a range; else "".

  Values that are not known are in every range.
  """
  if not are_known(array) or not np.size(array):
    return ""
  values = np.asarray(array)  # computed now, even while JAX traces
  least, most = float(values.min()), float(values.max())
  if not (math.isfinite(least) and math.isfinite(most)):
    return "NaN or infinite values"
  if low - _ROUNDING <= least and most <= high + _ROUNDING:
    return ""
  return f"values from {least:g} to {most:g}"


def _is_whole(number: Any) -> bool:
  """Whether this is an integer, of Python, NumPy or JAX, and no boolean."""
  if isinstance(number, bool | np.bool_ | jax.core.Tracer):
    return False
  try:
    operator.index(number)
  except TypeError:
    return False
  return True


def are_known(array: Any) -> bool:
  """Whether values can be read: not traced, and all in this process.

  Args:
    array: any array, of NumPy or JAX.
  """
  if isinstance(array, jax.core.Tracer):
    return False
  return getattr(array, "is_fully_addressable", True)


def _are_as_many(array, shape) -> bool:
  """Whether an image of the batch has as many numbers as `shape`."""
  return array.ndim > 1 and math.prod(array.shape[1:]) == math.prod(shape)


def _as_text(shape) -> str:
  return f"[{' '.join(map(str, shape))}]"
