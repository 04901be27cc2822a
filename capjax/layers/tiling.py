"""Convolution by products of transformed tiles, in fewer multiplications.

Tiles of the images overlap by the kernel's size less one. A linear transform of
each, and one of the kernel, turn convolution into products of matrices
[tiles C] and [C D], one at each point; the transform back gives the valid
outputs. Transforms are products with constant matrices (`tile_transforms`).
Tiles are folded before these products in large batches, and in every batch if
groups of points are taken in turn.

A convolution of stride S is one of stride 1 over S*S times as many channels:
each phase of the grid becomes a channel.

Axes: B batch, H W image, C channels in, D channels out, S stride, F points.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from capjax.layers import platforms, tile_products, tile_transforms

# The transforms are dense matrices of tile^4 entries.
_LARGEST_TILE = 16
_WINOGRAD_TILE = tile_transforms.EVALUATIONS_TILE
# Smaller kernels are transformed again in little time: taps in phases, and
# pairs of channels in phases and filters.
_FEWEST_TAPS = 4
_FEWEST_PAIRS = 2**16
# Multiplications in the time in which a CPU reads a number from memory.
_READ = 5
# Numbers in the intermediate results of a piece of a batch: these fit a cache.
_PIECE = 2**19


def winograd(
  images: Float[Array, "B H W C"],
  kernel: Float[Array, "kH kW C D"],
  *,
  stride: int,
) -> Float[Array, "B oH oW D"]:
  """Multiplies at each point of tiles of 6x6 pixels, without padding.

  Pixels and taps are coefficients of polynomials, whose values at n points give
  n - k + 1 outputs of k taps along an axis (Toom, 1963; Winograd, 1980): n
  multiplications where the direct sum takes k (n - k + 1). The rounding error
  is about three times that of the direct sum.

  Args:
    images: as for `convolution.conv2d`.
    kernel: as for `convolution.conv2d`; at most 6 taps along each axis in
      phases, ceil(kH / S).
    stride: as for `convolution.conv2d`.

  Returns:
    As `convolution.conv2d`.
  """
  matrices = tile_transforms.evaluations(*_taps(kernel, stride))
  return _multiply_in_pieces(
    images, kernel, stride=stride, tile=_WINOGRAD_TILE, matrices=matrices
  )


def winograd_cost(
  images: Float[Array, "B H W C"],
  kernel: Float[Array, "kH kW C D"],
  *,
  stride: int,
) -> float:
  """Counts the multiplications of `winograd`.

  Args:
    images: as for `winograd`; only their shape counts.
    kernel: as for `winograd`; only its shape counts.
    stride: as for `winograd`.

  Returns:
    Multiplications for the whole batch; infinite for more than 6 taps along an
    axis in phases, ceil(kH / S).
  """
  sizes = _sizes(images, kernel, stride)
  if max(sizes[2:4]) > _WINOGRAD_TILE:
    return math.inf
  return float(_cost(_WINOGRAD_TILE, _WINOGRAD_TILE**2, *sizes))


def spectral(
  images: Float[Array, "B H W C"],
  kernel: Float[Array, "kH kW C D"],
  *,
  stride: int,
  tile: int | None = None,
  in_turn: bool = False,
) -> Float[Array, "B oH oW D"]:
  """Multiplies at each frequency of square tiles (overlap-save), no padding.

  Circular correlation of a tile of n x n pixels with a kernel of k x k taps
  gives (n - k + 1)^2 valid outputs for at most 3/2 n^2 real multiplications a
  channel pair, where the direct sum takes k^2 (n - k + 1)^2. Since the discrete
  Fourier transform is orthogonal, the error is that of float32 sums, about 1e-6
  of the output's size.

  Args:
    images: as for `convolution.conv2d`.
    kernel: as for `convolution.conv2d`.
    stride: as for `convolution.conv2d`.
    tile: n, at least the kernel's size in phases, ceil(kH / S); by default the
      size with the least arithmetic.
    in_turn: folds tiles of every batch where it can, and takes the groups of
      frequencies one after another. This needs less memory; the gradient takes
      longer.

  Returns:
    As `convolution.conv2d`.
  """
  sizes = _sizes(images, kernel, stride)
  if tile is None:
    tile = _best_tile(*sizes)
  fold = _is_folded(tile, in_turn, *sizes)
  return tile_products.multiply(
    images,
    kernel,
    stride=stride,
    tile=tile,
    size=sizes[:2],
    matrices=tile_transforms.frequencies(tile, sizes[2:4], fold),
    in_turn=in_turn,
  )


def transform_kernel(
  kernel: Float[Array, "kH kW C D"], *, stride: int
) -> Float[Array, "F D C2"] | None:
  """Transforms a kernel once, for many calls of `spectral_of_transformed`.

  It is for tiles with twice as many pixels along each axis as the kernel has
  taps in phases, k = ceil(kH / S), for images of any size. The result has about
  6 k^2 S^2 C D numbers, six to nine times those of the kernel.

  Args:
    kernel: as for `convolution.conv2d`.
    stride: as for `convolution.conv2d`.

  Returns:
    The kernel at the F points; None where it does not pay: with fewer than 4 or
    more than 8 taps in phases, or S^2 C D below 2^16.
  """
  taps = _taps(kernel, stride)
  tile = _transformed_tile(taps)
  pairs = stride**2 * math.prod(kernel.shape[2:])
  if min(taps) < _FEWEST_TAPS or pairs < _FEWEST_PAIRS or tile > _LARGEST_TILE:
    return None
  matrices = tile_transforms.frequencies(tile, taps, False)
  return tile_products.transform_kernel(
    kernel, stride=stride, taps=matrices.taps[0]
  )


def spectral_of_transformed(
  images: Float[Array, "B H W C"],
  kernel: Float[Array, "kH kW C D"],
  *,
  stride: int,
  transformed: Float[Array, "F D C2"],
) -> Float[Array, "B oH oW D"]:
  """Computes `spectral` with a kernel that is already transformed.

  Args:
    images: as for `convolution.conv2d`.
    kernel: as for `convolution.conv2d`; only its shape counts.
    stride: as for `convolution.conv2d`.
    transformed: the kernel by `transform_kernel`.

  Returns:
    As `convolution.conv2d`.
  """
  taps = _taps(kernel, stride)
  tile = _transformed_tile(taps)
  return _multiply_in_pieces(
    images,
    kernel,
    stride=stride,
    tile=tile,
    matrices=tile_transforms.frequencies(tile, taps, False),
    transformed=transformed,
  )


def spectral_cost(
  images: Float[Array, "B H W C"],
  kernel: Float[Array, "kH kW C D"],
  *,
  stride: int,
) -> float:
  """Counts the multiplications of `spectral` with its best tile.

  Args:
    images: as for `spectral`; only their shape counts.
    kernel: as for `spectral`; only its shape counts.
    stride: as for `spectral`.

  Returns:
    Multiplications for the whole batch.
  """
  sizes = _sizes(images, kernel, stride)
  return float(_spectral_cost(_best_tile(*sizes), *sizes))


def transformed_cost(
  images: Float[Array, "B H W C"],
  kernel: Float[Array, "kH kW C D"],
  *,
  stride: int,
) -> float:
  """Counts the multiplications of `spectral_of_transformed`.

  Args:
    images: as for `spectral`; only their shape counts.
    kernel: as for `spectral`; only its shape counts.
    stride: as for `spectral`.

  Returns:
    Multiplications for the whole batch, and those that there would be time for
    while the kernel is read.
  """
  sizes = _sizes(images, kernel, stride)
  taps, filters = sizes[2:4], sizes[4:6]
  tile = _transformed_tile(taps)
  saved = math.prod(taps) - _READ
  return float(
    _spectral_cost(tile, *sizes)
    - _num_points(tile) * saved * math.prod(filters)
  )


def in_pieces(
  function: Callable,
  images: Float[Array, "B H W C"],
  *,
  spread: int,
  weights: int,
) -> Float[Array, "B ..."]:
  """Applies a function to pieces of a batch that fit the cache.

  Derivatives compute each piece again, so that only images and outputs are
  stored.

  Args:
    function: takes a batch of any size; images must not affect each other.
    images: the batch.
    spread: size of the function's intermediate results for one image.
    weights: numbers that it reads for each piece besides the images.

  Returns:
    The result of the function for the whole batch.
  """
  most = max(1, max(_PIECE, weights) // spread)
  parts = platforms.split(images)  # [devices B' H W C]
  devices, count = parts.shape[:2]
  if count <= most:
    return function(images)
  # The length that needs the least padding of the last piece.
  length = min(range(most, most // 2, -1), key=lambda n: -count % n)
  pieces = jnp.pad(parts, ((0, 0), (0, -count % length), *((0, 0),) * 3))
  pieces = pieces.reshape(devices, -1, length, *images.shape[1:])

  def of_all(pieces):
    outputs = function(pieces.reshape(-1, *images.shape[1:]))
    return outputs.reshape(devices, length, *outputs.shape[1:])

  outputs = jax.lax.map(jax.checkpoint(of_all), pieces.swapaxes(0, 1))
  outputs = outputs.swapaxes(0, 1)  # [devices pieces length ...]
  outputs = outputs.reshape(devices, -1, *outputs.shape[3:])[:, :count]
  return outputs.reshape(len(images), *outputs.shape[2:])


def output_size(
  images: Float[Array, "B H W C"],
  kernel: Float[Array, "kH kW C D"],
  *,
  stride: int,
) -> tuple[int, int]:
  """Rows and columns of a convolution without padding.

  Args:
    images: only their shape counts.
    kernel: only its shape counts.
    stride: at least 1.
  """
  rows, columns = (
    (size - taps) // stride + 1
    for size, taps in zip(images.shape[1:3], kernel.shape[:2], strict=True)
  )
  return rows, columns


def _multiply_in_pieces(
  images, kernel, *, stride, tile, matrices, transformed=None
):
  """Multiplies at the points of one group, in pieces that fit the cache."""
  *sizes, channels, filters, _ = _sizes(images, kernel, stride)
  num_points = matrices.taps.shape[1]
  weights = num_points * channels * filters
  if transformed is not None:
    # It does not fit. Reading it again for each piece then adds little to
    # reading and writing the rest.
    weights //= 4
  multiply = functools.partial(
    tile_products.multiply,
    kernel=kernel,
    stride=stride,
    tile=tile,
    size=tuple(sizes[:2]),
    matrices=matrices,
    transformed=transformed,
  )
  return in_pieces(
    multiply,
    images,
    spread=num_points * _num_tiles(tile, *sizes) * max(channels, filters),
    weights=weights,
  )


def _sizes(images, kernel, stride):
  """Rows, columns out, taps in phases, channels in phases, filters, images."""
  channels, filters = kernel.shape[2:]
  return (
    *output_size(images, kernel, stride=stride),
    *_taps(kernel, stride),
    channels * stride**2,
    filters,
    len(images),
  )


def _taps(kernel, stride):
  """Taps in phases, along each axis."""
  return tuple(-(-size // stride) for size in kernel.shape[:2])


def _num_tiles(tile, rows, columns, height, width):
  """Tiles of an image for so many outputs and taps in phases."""
  return -(-rows // (tile - height + 1)) * -(-columns // (tile - width + 1))


def _transformed_tile(taps):
  return 2 * max(taps)


def _cost(tile, points, rows, columns, height, width, channels, filters, batch):
  """Multiplications, one for each pair of channels at each point.

  Folding tiles saves some of them. They are counted nevertheless, since the
  memory traffic, which takes most of the time of the transform, stays.
  """
  valid = (tile - height + 1) * (tile - width + 1)
  tiles = _num_tiles(tile, rows, columns, height, width) * batch
  return points * (
    tiles * channels * filters
    + tile**2 * tiles * channels
    + height * width * channels * filters
    + valid * tiles * filters
  )


def _spectral_cost(tile, *sizes):
  return _cost(tile, _num_points(tile), *sizes)


def _num_points(tile):
  alone = 1 if tile % 2 else 4  # Frequencies that are their own conjugate.
  return (3 * tile**2 - alone) // 2


def _is_folded(tile, in_turn, *sizes):
  """Whether a device folds tiles.

  With `in_turn`, whenever tiles can be folded. Else only if the pixels of all
  tiles are at least as many as the taps for all filters, because each of the
  four groups of points reads the kernel again.
  """
  rows, columns, height, width, _, filters, batch = sizes
  batch = -(-batch // platforms.num_devices())
  tiles = _num_tiles(tile, rows, columns, height, width) * batch
  pays = in_turn or tile**2 * tiles >= height * width * filters
  return pays and tile_transforms.folds(tile)


@functools.lru_cache
def _best_tile(rows, columns, height, width, *sizes):
  smallest = max(height, width)
  largest = min(smallest + max(rows, columns) - 1, max(_LARGEST_TILE, smallest))
  return min(
    range(smallest, largest + 1),
    key=lambda tile: _spectral_cost(tile, rows, columns, height, width, *sizes),
  )
