"""Convolution (cross-correlation, as in all of deep learning), fast on CPUs.

XLA runs convolutions well on GPUs and TPUs. On CPUs its input gradient of a
strided convolution reaches about 1% of the rate of a matrix product, so there
every convolution becomes matrix products:

* `patches`: one product over all taps (im2col); for few taps or few channels.
* `spectral`: products at each frequency of small tiles; the 9x9 kernel at
  stride 2 of CapsNet then takes a third of the direct sum's multiplications.

Axes: B batch, H W image, C channels in, D channels out, S stride.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# The transforms are dense matrices of tile^4 entries.
_LARGEST_TILE = 16


def conv2d(
  images: Float[Array, "B H W C"],
  kernel: Float[Array, "kH kW C D"],
  *,
  stride: int = 1,
  padding: str = "VALID",
) -> Float[Array, "B oH oW D"]:
  """Convolves in the form that is fastest where it is lowered.

  Args:
    images: any batch of images at least as large as the kernel.
    kernel: the weights, applied unflipped.
    stride: the same along both axes, at least 1.
    padding: "VALID", or "SAME" with zeros (ceil(H / stride) rows out).

  Returns:
    The sums over the kernel's window at every `stride`-th position.

  Raises:
    ValueError: for shapes that do not fit, or an unknown padding.
  """
  _check(images, kernel, stride, padding)
  if padding == "SAME":
    images = _pad_same(images, kernel.shape[:2], stride)
  return jax.lax.platform_dependent(
    images,
    kernel,
    cpu=functools.partial(_on_cpu, stride=stride),
    default=functools.partial(direct, stride=stride),
  )


def direct(
  images: Float[Array, "B H W C"],
  kernel: Float[Array, "kH kW C D"],
  *,
  stride: int,
) -> Float[Array, "B oH oW D"]:
  """XLA's own convolution, without padding."""
  return jax.lax.conv_general_dilated(
    images,
    kernel,
    (stride, stride),
    "VALID",
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
  )


def patches(
  images: Float[Array, "B H W C"],
  kernel: Float[Array, "kH kW C D"],
  *,
  stride: int,
) -> Float[Array, "B oH oW D"]:
  """Copies every window into a row and multiplies once, without padding."""
  height, width = kernel.shape[:2]
  rows, columns = _output_size(images, kernel, stride)
  windows = [
    images[
      :,
      y : y + (rows - 1) * stride + 1 : stride,
      x : x + (columns - 1) * stride + 1 : stride,
    ]
    for y in range(height)
    for x in range(width)
  ]
  windows = jnp.stack(windows, axis=3).reshape(len(images), rows, columns, -1)
  return windows @ kernel.reshape(-1, kernel.shape[-1])


def spectral(
  images: Float[Array, "B H W C"],
  kernel: Float[Array, "kH kW C D"],
  *,
  stride: int,
  tile: int | None = None,
) -> Float[Array, "B oH oW D"]:
  """Multiplies at each frequency of square tiles (overlap-save), no padding.

  A convolution of stride S is one of stride 1 over S*S times as many channels
  (each phase of the grid becomes a channel). Circular correlation of a tile of
  n x n pixels with a kernel of k x k taps gives (n - k + 1)^2 valid outputs
  for n^2 real multiplications a channel pair, or a little more, where the
  direct sum takes k^2 (n - k + 1)^2. The discrete Fourier transforms are matrix
  products too. Since the transform is orthogonal, the error is that of float32
  sums, about 1e-6 of the output's size.

  Args:
    images: as for `conv2d`.
    kernel: as for `conv2d`.
    stride: as for `conv2d`.
    tile: n, at least the kernel's size in phases, ceil(kH / S); by default the
      size with the least arithmetic.

  Returns:
    As `conv2d`.
  """
  rows, columns = _output_size(images, kernel, stride)
  kernel = _split_phases(kernel, stride, axis=0)
  images = _split_phases(images, stride, axis=1)
  taps = kernel.shape[:2]
  if tile is None:
    tile = _best_tile(rows, columns, *kernel.shape, len(images))
  forward, weight, inverse = _transforms(tile, taps)
  valid = (tile - taps[0] + 1, tile - taps[1] + 1)
  pixels, grid = _tiles(images, rows, columns, tile, valid)

  num_tiles, channels = pixels.shape[1:]
  spectra = (
    forward.astype(images.dtype) @ pixels.reshape(tile**2, -1)
  ).reshape(2, -1, num_tiles, channels)
  weights = weight.astype(kernel.dtype) @ kernel.reshape(math.prod(taps), -1)
  weights = weights.reshape(2, -1, *kernel.shape[2:])
  products = _complex_product(*spectra, *weights)
  outputs = inverse.astype(images.dtype) @ products.reshape(
    inverse.shape[1], -1
  )
  # [tile row, tile column, place in the grid, image, D]
  outputs = outputs.reshape(*valid, *grid, len(images), -1)
  outputs = outputs.transpose(4, 2, 0, 3, 1, 5)
  outputs = outputs.reshape(
    len(images), valid[0] * grid[0], valid[1] * grid[1], -1
  )
  return outputs[:, :rows, :columns]


def _on_cpu(images, kernel, *, stride):
  rows, columns = _output_size(images, kernel, stride)
  height, width, channels, filters = kernel.shape
  direct_cost = len(images) * rows * columns * math.prod(kernel.shape)
  phases = (-(-height // stride), -(-width // stride), channels * stride**2)
  size = (rows, columns, *phases, filters, len(images))
  spectral_cost = _spectral_cost(_best_tile(*size), *size)
  # Transforms move more memory than their arithmetic says, hence the factor.
  form = spectral if 2 * spectral_cost < direct_cost else patches
  # Narrow types would spoil the transforms, and are slow on CPUs besides.
  wide = jnp.promote_types(images.dtype, jnp.float32)
  outputs = form(images.astype(wide), kernel.astype(wide), stride=stride)
  return outputs.astype(images.dtype)


def _complex_product(a, b, c, d):
  """Real and imaginary part of (a + ib)(c + id), summed over channels.

  Three real products instead of four (Gauss); F frequencies.
  """

  def product(x, y):
    return jnp.einsum("fbc,fcd->fbd", x, y)

  common = product(a + b, c)
  return jnp.stack([common - product(b, c + d), common + product(a, d - c)])


def _tiles(images, rows, columns, tile, valid):
  """Cuts overlapping tiles: pixels [tile * tile, places * B, C], and places."""
  grid = (-(-rows // valid[0]), -(-columns // valid[1]))
  needed = [(g - 1) * v + tile for g, v in zip(grid, valid, strict=True)]
  images = jnp.pad(
    images[:, : needed[0], : needed[1]],
    (
      (0, 0),
      (0, max(0, needed[0] - images.shape[1])),
      (0, max(0, needed[1] - images.shape[2])),
      (0, 0),
    ),
  )
  images = images.transpose(1, 2, 0, 3)
  cut = [
    images[y : y + tile, x : x + tile]
    for y in range(0, grid[0] * valid[0], valid[0])
    for x in range(0, grid[1] * valid[1], valid[1])
  ]
  pixels = cut[0] if len(cut) == 1 else jnp.concatenate(cut, axis=2)
  return pixels.reshape(tile**2, -1, images.shape[-1]), grid


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


def _output_size(images, kernel, stride):
  return tuple(
    (size - taps) // stride + 1
    for size, taps in zip(images.shape[1:3], kernel.shape, strict=False)
  )


def _pad_same(images, taps, stride):
  missing = [
    max((-(-size // stride) - 1) * stride + k - size, 0)
    for size, k in zip(images.shape[1:3], taps, strict=True)
  ]
  around = [(m // 2, m - m // 2) for m in missing]
  return jnp.pad(images, ((0, 0), *around, (0, 0)))


def _check(images, kernel, stride, padding):
  if images.ndim != 4 or kernel.ndim != 4 or images.shape[3] != kernel.shape[2]:
    raise ValueError(
      f"images {images.shape} and kernel {kernel.shape} do not fit; give "
      "[B H W C] and [kH kW C D]."
    )
  if stride < 1:
    raise ValueError(f"stride is {stride}; give at least 1.")
  if padding not in ("VALID", "SAME"):
    raise ValueError(f"padding is {padding!r}; give 'VALID' or 'SAME'.")
  fits = all(
    size >= taps
    for size, taps in zip(images.shape[1:3], kernel.shape, strict=False)
  )
  if padding == "VALID" and not fits:
    raise ValueError(
      f"a kernel of {kernel.shape[0]}x{kernel.shape[1]} needs images at least "
      f"as large, not {images.shape[1]}x{images.shape[2]}; give a smaller "
      "kernel or larger images."
    )


def _spectral_cost(
  tile, rows, columns, height, width, channels, filters, batch
):
  """Multiplications that `spectral` takes with tiles of this size."""
  valid = (tile - height + 1, tile - width + 1)
  tiles = -(-rows // valid[0]) * -(-columns // valid[1]) * batch
  real_frequencies = tile**2 + 4
  return real_frequencies * (
    1.5 * tiles * channels * filters
    + tile**2 * tiles * channels
    + height * width * channels * filters
    + math.prod(valid) * tiles * filters
  )


@functools.lru_cache
def _best_tile(rows, columns, height, width, *sizes):
  smallest = max(height, width)
  largest = min(smallest + max(rows, columns) - 1, max(_LARGEST_TILE, smallest))
  return min(
    range(smallest, largest + 1),
    key=lambda tile: _spectral_cost(tile, rows, columns, height, width, *sizes),
  )


@functools.lru_cache
def _transforms(tile, taps):
  """Real matrices of the transform of pixels, of weights, and of its inverse.

  Only one frequency of each conjugate pair is kept. Real parts come before
  imaginary parts. Valid outputs are the first of the circular correlation.
  """
  index = np.arange(tile)
  wave = np.exp(-2j * np.pi * np.outer(index, index) / tile)
  waves = np.einsum("ay,bx->abyx", wave, wave)
  kept = [
    (a, b)
    for a in range(tile)
    for b in range(tile)
    if (a, b) <= (-a % tile, -b % tile)
  ]
  pair = np.array([1 + ((a, b) != (-a % tile, -b % tile)) for a, b in kept])
  waves = np.stack([waves[a, b] for a, b in kept])

  def flat(x):
    return x.reshape(len(x), -1)

  forward = flat(waves)
  weight = flat(waves[:, : taps[0], : taps[1]].conj())
  back = waves[:, : tile - taps[0] + 1, : tile - taps[1] + 1].conj()
  back = (flat(back) * pair[:, None] / tile**2).T
  return (
    np.concatenate([forward.real, forward.imag]),
    np.concatenate([weight.real, weight.imag]),
    np.concatenate([back.real, -back.imag], axis=1),
  )
