"""Linear transforms that turn convolution of tiles into products at points.

Each is three real matrices: one for the pixels of a tile, one for the taps of a
kernel, one from the products to the valid outputs. Values at both kinds of
points are those of polynomials whose coefficients are pixels and taps: at real
numbers (`evaluations`), or at roots of unity (`frequencies`).

Axes: G groups of points, F points of a group, Q quarters of a tile, P pixels of
a quarter, K taps, V valid outputs.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

# Points, besides infinity, where `evaluations` evaluates polynomials. Whole
# numbers would double the rounding error.
_POINTS = (0.0, 0.75, -0.75, 1.5, -1.5)
EVALUATIONS_TILE = len(_POINTS) + 1


class Transforms(NamedTuple):
  """Matrices of all points, which fall into groups.

  A group reads a tile only as one signed sum of its quarters. A tile that is
  not divided is one quarter, and its points are one group.

  Attributes:
    signs: 1 or -1 for each quarter in the sum, row-major.
    pixels: from the sum of quarters to values at points.
    taps: from the kernel to values at points.
    outputs: from products at points to their share of the outputs.
  """

  signs: Float[np.ndarray, "G Q"]
  pixels: Float[np.ndarray, "G F P"]
  taps: Float[np.ndarray, "G F K"]
  outputs: Float[np.ndarray, "G V F"]


@functools.lru_cache
def evaluations(*taps: int) -> Transforms:
  """Evaluates polynomials at the points of Toom (1963) and Winograd (1980).

  The transpose of polynomial multiplication: coefficients of the product follow
  from its values, those at infinity being the leading coefficients.

  Args:
    *taps: of the kernel, along each axis; at most `EVALUATIONS_TILE`.

  Returns:
    One group, for tiles of `EVALUATIONS_TILE` pixels along each axis.
  """

  def values(size):
    powers = np.array(_POINTS)[:, None] ** np.arange(size)
    return np.concatenate([powers, np.eye(size)[-1:]])

  tile = EVALUATIONS_TILE
  along_axes = [
    (np.linalg.inv(values(tile)).T, values(k), values(tile - k + 1).T)
    for k in taps
  ]
  matrices = [np.kron(*pair) for pair in zip(*along_axes, strict=True)]
  return Transforms(np.ones((1, 1)), *(matrix[None] for matrix in matrices))


@functools.lru_cache
def frequencies(tile: int, taps: tuple[int, int], fold: bool) -> Transforms:
  """Evaluates polynomials at roots of unity: the discrete Fourier transform.

  Only one frequency of each conjugate pair is kept. The product of complex
  a + ib and c + id takes three real products instead of four (Gauss):
  (a + b) c, b (c + d) and a (d - c). Its real part is the first minus the
  second, its imaginary part the first plus the third. Each of the three is a
  point here; a frequency that is its own conjugate has one point, a c. Valid
  outputs are the first of the circular correlation.

  Pixels half a tile apart have equal waves at even frequencies and opposite
  waves at odd ones. So each of four groups, even or odd along either axis,
  reads the sum of the tile's quarters with the signs of the group. This takes a
  fourth of the arithmetic for pixels, like the first step of a fast Fourier
  transform.

  Args:
    tile: n, the pixels along each axis.
    taps: of the kernel, along each axis; at most n.
    fold: adds quarters; only for n = 2, 6, 10, ..., where all groups have the
      same number of points.

  Returns:
    Four groups where quarters are added, otherwise one.

  Raises:
    ValueError: if `fold` is true and `folds(tile)` is not.
  """
  if fold and not folds(tile):
    raise ValueError(
      f"tile is {tile}; quarters are added of 2, 6, 10, ... pixels alone."
    )
  step = 2 if fold else 1
  groups = [
    _group(tile, taps, (y, x), step) for y in range(step) for x in range(step)
  ]
  return Transforms(*map(np.stack, zip(*groups, strict=True)))


def folds(tile: int) -> bool:
  """Whether the groups of `frequencies` have the same number of points.

  Args:
    tile: pixels of a tile along each axis.
  """
  return tile % 4 == 2


def _group(tile, taps, first, step):
  """Signs and matrices of each `step`-th frequency from `first`, by axis."""
  index = np.arange(tile)
  wave = np.exp(-2j * np.pi * np.outer(index, index) / tile)
  rows, columns = (wave[start::step] for start in first)
  waves = np.einsum("ay,bx->abyx", rows, columns).reshape(-1, tile, tile)
  order = np.arange(tile**2).reshape(tile, tile)
  own = np.ix_(*(index[start::step] for start in first))
  order, conjugate = order[own].ravel(), order[np.ix_(-index, -index)][own]
  conjugate = conjugate.ravel()
  alone, pairs = waves[order == conjugate], waves[order < conjugate]

  def flat(x, size):
    return x[:, : size[0], : size[1]].reshape(len(x), math.prod(size))

  quarter = (tile // step, tile // step)
  valid = [tile - size + 1 for size in taps]
  a, b = flat(pairs.real, quarter), flat(pairs.imag, quarter)
  c, d = flat(pairs.real, taps), flat(-pairs.imag, taps)
  once = flat(alone.real, valid) / tile**2
  # Each pair stands for two frequencies, whose sum is twice the real part.
  real = 2 * flat(pairs.real, valid) / tile**2
  imaginary = 2 * flat(pairs.imag, valid) / tile**2
  signs = [
    (-1) ** (first[0] * y + first[1] * x)
    for y in range(step)
    for x in range(step)
  ]
  return (
    np.array(signs, float),
    np.concatenate([flat(alone.real, quarter), a + b, b, a]),
    np.concatenate([flat(alone.real, taps), c, c + d, d - c]),
    np.concatenate([once, real + imaginary, -real, imaginary]).T,
  )
