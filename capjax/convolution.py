"""Convolution (cross-correlation, as in all of deep learning), fast on CPUs.

XLA runs convolutions well on GPUs and TPUs. On CPUs its input gradient of a
strided convolution reaches about 1% of the rate of a matrix product, so there
every convolution becomes matrix products:

* `patches`: one product over all taps (im2col); for few taps or few channels.
* `winograd`: products at each point of small tiles; a 3x3 kernel then takes a
  quarter of the direct sum's multiplications, and transforms.
* `spectral`: products at each frequency of larger tiles; the 9x9 kernel at
  stride 2 of CapsNet then takes a third of the direct sum's multiplications.

The first two take a large batch in pieces that stay in the cache.

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
# Where `winograd` evaluates polynomials, beside infinity. Whole numbers would
# give four times the rounding error.
_POINTS = (0.0, 0.75, -0.75, 1.5, -1.5)
_WINOGRAD_TILE = len(_POINTS) + 1
# Numbers that a piece of a batch spreads into.
_PIECE = 2**19


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

  def multiply(images):
    windows = [
      images[
        :,
        y : y + (rows - 1) * stride + 1 : stride,
        x : x + (columns - 1) * stride + 1 : stride,
      ]
      for y in range(height)
      for x in range(width)
    ]
    windows = jnp.stack(windows, axis=3)
    windows = windows.reshape(len(images), rows, columns, -1)
    return windows @ kernel.reshape(-1, kernel.shape[-1])

  return _in_pieces(
    multiply, images, rows * columns * math.prod(kernel.shape[:3])
  )


def winograd(
  images: Float[Array, "B H W C"],
  kernel: Float[Array, "kH kW C D"],
  *,
  stride: int,
) -> Float[Array, "B oH oW D"]:
  """Multiplies at each point of tiles of 6x6 pixels, without padding.

  Pixels and taps are coefficients of polynomials, whose values at n points give
  n - k + 1 outputs of k taps along an axis (Toom, 1963; Winograd, 1980): n
  multiplications in place of k (n - k + 1). Strides are handled as in
  `spectral`. The error is up to some times that of the direct sum.

  Args:
    images: as for `conv2d`.
    kernel: as for `conv2d`; at most 6 taps along each axis in phases,
      ceil(kH / S).
    stride: as for `conv2d`.

  Returns:
    As `conv2d`.
  """
  rows, columns = _output_size(images, kernel, stride)
  taps = tuple(-(-k // stride) for k in kernel.shape[:2])
  valid = [_WINOGRAD_TILE - k + 1 for k in taps]
  num_tiles = -(-rows // valid[0]) * -(-columns // valid[1])
  channels = max(kernel.shape[2] * stride**2, kernel.shape[3])

  def multiply(images):
    return _multiply_tiles(
      images,
      kernel,
      stride=stride,
      tile=_WINOGRAD_TILE,
      transforms=_evaluations(taps),
      product=jnp.matmul,
    )

  return _in_pieces(multiply, images, _WINOGRAD_TILE**2 * num_tiles * channels)


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
  if tile is None:
    tile = _best_tile(*_sizes(images, kernel, stride))
  taps = tuple(-(-k // stride) for k in kernel.shape[:2])
  return _multiply_tiles(
    images,
    kernel,
    stride=stride,
    tile=tile,
    transforms=_frequencies(tile, taps),
    product=_complex_product,
  )


def _on_cpu(images, kernel, *, stride):
  rows, columns = _output_size(images, kernel, stride)
  sizes = _sizes(images, kernel, stride)
  # Transforms move more memory than their arithmetic says, hence the factors.
  costs = {
    patches: len(images) * rows * columns * math.prod(kernel.shape),
    winograd: 1.25 * _winograd_cost(*sizes),
    spectral: 2 * _spectral_cost(_best_tile(*sizes), *sizes),
  }
  form = min(costs, key=costs.get)
  # Narrow types would spoil the transforms, and are slow on CPUs besides.
  wide = jnp.promote_types(images.dtype, jnp.float32)
  outputs = form(images.astype(wide), kernel.astype(wide), stride=stride)
  return outputs.astype(images.dtype)


def _in_pieces(function, images, size):
  """Applies a function to so many images at a time, computed again backwards.

  `size` is how many numbers it spreads one image into.
  """
  most = max(1, _PIECE // size)
  if len(images) <= most:
    return function(images)
  # The length that leaves the last piece least empty.
  length = min(range(most, most // 2, -1), key=lambda n: -len(images) % n)
  missing = -len(images) % length
  pieces = jnp.pad(images, ((0, missing), (0, 0), (0, 0), (0, 0)))
  pieces = pieces.reshape(-1, length, *images.shape[1:])
  outputs = jax.lax.map(jax.checkpoint(function), pieces)
  return outputs.reshape(-1, *outputs.shape[2:])[: len(images)]


def _multiply_tiles(images, kernel, *, stride, tile, transforms, product):
  """Transforms tiles and taps, multiplies, and transforms the products back."""
  rows, columns = _output_size(images, kernel, stride)
  kernel = _split_phases(kernel, stride, axis=0)
  images = _split_phases(images, stride, axis=1)
  valid = [tile - taps + 1 for taps in kernel.shape[:2]]
  grid = -(-rows // valid[0]), -(-columns // valid[1])

  def transform(matrix, x):
    channels = x.shape[-1]
    x = matrix.astype(x.dtype) @ x.reshape(matrix.shape[1], -1)
    return x.reshape(len(matrix), -1, channels)

  pixels = _cut(images, 1, tile, valid[0], grid[0])
  pixels = _cut(pixels, 3, tile, valid[1], grid[1])
  # From [B, tile's row, y, tile's column, x, C].
  pixels = pixels.transpose(2, 4, 0, 1, 3, 5)
  forward, weight, inverse = transforms
  products = product(transform(forward, pixels), transform(weight, kernel))
  outputs = transform(inverse, products)
  outputs = outputs.reshape(*valid, len(images), *grid, -1)
  outputs = outputs.transpose(2, 3, 0, 4, 1, 5)
  outputs = outputs.reshape(
    len(images), valid[0] * grid[0], valid[1] * grid[1], -1
  )
  return outputs[:, :rows, :columns]


def _complex_product(a, b):
  """Products [2F B D] of [2F B C] and [2F C D], real parts before imaginary.

  Three real products instead of four (Gauss).
  """
  (a, b), (c, d) = jnp.split(a, 2), jnp.split(b, 2)
  common = (a + b) @ c
  return jnp.concatenate([common - b @ (c + d), common + a @ (d - c)])


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


def _output_size(images, kernel, stride):
  return tuple(
    (size - taps) // stride + 1
    for size, taps in zip(images.shape[1:3], kernel.shape, strict=False)
  )


def _sizes(images, kernel, stride):
  """Rows, columns out, taps in phases, channels in phases, filters, images."""
  height, width, channels, filters = kernel.shape
  return (
    *_output_size(images, kernel, stride),
    -(-height // stride),
    -(-width // stride),
    channels * stride**2,
    filters,
    len(images),
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


def _winograd_cost(rows, columns, height, width, channels, filters, batch):
  """Multiplications that `winograd` takes; infinite where it does not fit."""
  valid = (_WINOGRAD_TILE - height + 1, _WINOGRAD_TILE - width + 1)
  if min(valid) < 1:
    return math.inf
  tiles = -(-rows // valid[0]) * -(-columns // valid[1]) * batch
  points = _WINOGRAD_TILE**2
  return points * (
    tiles * channels * filters
    + points * tiles * channels
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
def _evaluations(taps):
  """Real matrices of the transform of pixels, of weights, and of its inverse.

  The transpose of polynomial multiplication: coefficients of the product follow
  from its values, those at infinity being the leading coefficients.
  """

  def values(size):
    powers = np.array(_POINTS)[:, None] ** np.arange(size)
    return np.concatenate([powers, np.eye(size)[-1:]])

  tile = _WINOGRAD_TILE
  along_axes = [
    (np.linalg.inv(values(tile)).T, values(k), values(tile - k + 1).T)
    for k in taps
  ]
  return [np.kron(*pair) for pair in zip(*along_axes, strict=True)]


@functools.lru_cache
def _frequencies(tile, taps):
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
