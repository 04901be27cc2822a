"""Products of tiles of images with kernels, at the points of a transform.

`tiling` chooses the transform and the size of the tiles.

Axes: B batch, H W image, C channels in, D channels out, S stride, F points; G
groups of points as in `tile_transforms`.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from capjax.kernels import numerics
from capjax.layers import tile_transforms


def multiply(
  images: Float[Array, "B H W C"],
  kernel: Float[Array, "kH kW C D"],
  *,
  stride: int,
  tile: int,
  size: tuple[int, int],
  matrices: tile_transforms.Transforms,
  in_turn: bool = False,
  transformed: Float[Array, "F D C2"] | None = None,
) -> Float[Array, "B oH oW D"]:
  """Transforms tiles and taps, multiplies, and transforms the products back.

  Args:
    images: as for `convolution.conv2d`.
    kernel: as for `convolution.conv2d`.
    stride: as for `convolution.conv2d`.
    tile: pixels of a tile along each axis, in phases.
    size: oH and oW.
    matrices: the transforms for such tiles.
    in_turn: takes the groups of points one after another, in less memory.
    transformed: the kernel by `transform_kernel` for the same tile, where it is
      known; the transforms then have one group.
  """
  rows, columns = size
  kernel = _split_phases(kernel, stride, axis=0)
  images = _split_phases(images, stride, axis=1)
  valid = [tile - taps + 1 for taps in kernel.shape[:2]]
  grid = -(-rows // valid[0]), -(-columns // valid[1])
  num_images, (channels, filters) = len(images), kernel.shape[2:]
  # Channels keep an axis of their own up to the products: on a CPU, XLA copies
  # tiles and kernels more slowly into merged axes.
  kernel = kernel.reshape(-1, channels, filters)

  images = _cut(images, 1, tile, valid[0], grid[0])
  images = _cut(images, 3, tile, valid[1], grid[1])
  parts = math.isqrt(matrices.signs.shape[1])  # Of a tile, along each axis.
  tiles = images.reshape(
    num_images,
    *(grid[0], parts, tile // parts),
    *(grid[1], parts, tile // parts),
    channels,
  )
  tiles = tiles.transpose(2, 5, 3, 6, 0, 1, 4, 7)
  tiles = tiles.reshape(parts**2, (tile // parts) ** 2, -1, channels)

  def outputs_of(group):
    sums = tiles[0]  # The first sign is positive.
    for sign, quarter in zip(group.signs[1:], tiles[1:], strict=True):
      sums += sign * quarter
    pixels = _weighted_sums(group.pixels, sums)
    if transformed is None:
      products = numerics.matmul(pixels, _weighted_sums(group.taps, kernel))
      return _weighted_sums(group.outputs, products)
    products = numerics.matmul(transformed, pixels.swapaxes(1, 2))
    # Images stay an axis, along which devices divide them. They are swapped
    # only here: before, XLA would swap the factors of the products back.
    sums = jnp.einsum(
      "vf,fdn->vdn", group.outputs, products, precision=numerics.precision()
    )
    return sums.swapaxes(1, 2)

  matrices = jax.tree.map(lambda x: jnp.asarray(x, images.dtype), matrices)
  if in_turn and len(matrices.signs) > 1:

    def add(outputs, group):
      return outputs + outputs_of(group), None

    first = jax.tree.map(lambda x: x[0], matrices)
    zeros = jnp.zeros_like(jax.eval_shape(outputs_of, first))
    outputs, _ = jax.lax.scan(add, zeros, matrices)
  else:
    groups = [
      jax.tree.map(lambda x, index=index: x[index], matrices)
      for index in range(len(matrices.signs))
    ]
    outputs = sum(map(outputs_of, groups))
  outputs = outputs.reshape(*valid, num_images, *grid, filters)
  outputs = outputs.transpose(2, 3, 0, 4, 1, 5)
  outputs = outputs.reshape(
    num_images, valid[0] * grid[0], valid[1] * grid[1], filters
  )
  return outputs[:, :rows, :columns]


def transform_kernel(
  kernel: Float[Array, "kH kW C D"],
  *,
  stride: int,
  taps: Float[np.ndarray, "F K"],
) -> Float[Array, "F D C2"]:
  """Transforms a kernel for `multiply`.

  Args:
    kernel: as for `convolution.conv2d`.
    stride: as for `convolution.conv2d`.
    taps: the transform of the only group of points.

  Returns:
    The kernel at each point; C2 is S^2 C. Filters stand before channels:
    products with the pixels of few images then take half the time.
  """
  kernel = _split_phases(kernel, stride, axis=0)
  kernel = kernel.reshape(-1, *kernel.shape[2:]).swapaxes(1, 2)
  return _weighted_sums(jnp.asarray(taps, kernel.dtype), kernel)


def _weighted_sums(matrix, x):
  """Sums over the first axis of x, weighted by each row of the matrix."""
  product = numerics.matmul(matrix, x.reshape(len(x), -1))
  return product.reshape(-1, *x.shape[1:])


def _cut(x, axis, tile, valid, count):
  """Cuts tiles, `valid` apart, along an axis that becomes [count, tile]."""
  step = tile if count == 1 else valid
  overlapping = -(-tile // step)
  padding = [(0, 0, 0)] * x.ndim
  missing = (count + overlapping - 1) * step - x.shape[axis]
  padding[axis] = (0, missing, 0)
  x = jax.lax.pad(x, jnp.zeros((), x.dtype), padding)
  x = x.reshape(*x.shape[:axis], -1, step, *x.shape[axis + 1 :])
  parts = []
  for start in range(overlapping):
    part = jax.lax.slice_in_dim(x, start, start + count, axis=axis)
    size = min(step, tile - start * step)
    parts.append(jax.lax.slice_in_dim(part, 0, size, axis=axis + 1))
  return jnp.concatenate(parts, axis + 1)


def _split_phases(x, stride, axis):
  """Turns each phase of the stride into a channel.

  [.. H W C ..] becomes [.. ceil(H/S) ceil(W/S) S*S*C ..], with H at `axis`;
  the missing rows and columns are zeros.
  """
  before, (height, width, channels), after = (
    x.shape[:axis],
    x.shape[axis : axis + 3],
    x.shape[axis + 3 :],
  )
  missing = [(0, 0)] * x.ndim
  missing[axis : axis + 2] = (0, -height % stride), (0, -width % stride)
  x = jnp.pad(x, missing)
  rows, columns = x.shape[axis] // stride, x.shape[axis + 1] // stride
  x = x.reshape(*before, rows, stride, columns, stride, channels, *after)
  x = x.swapaxes(axis + 1, axis + 2)
  return x.reshape(*before, rows, columns, -1, *after)
