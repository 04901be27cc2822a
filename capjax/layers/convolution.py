"""Convolution (cross-correlation, as in all of deep learning), fast on CPUs.

XLA runs convolutions well on GPUs and TPUs. On CPUs its input gradient of a
strided convolution reaches about 1% of the rate of a matrix product, so there
every convolution becomes matrix products:

* `patches`: one product over all taps (im2col); for few taps or few channels.
* `by_rows`: a product for each row of taps; for few taps of many channels, with
  a stride.
* `tiling.winograd`: products at each point of small tiles; a 3x3 kernel then
  takes a quarter of the direct sum's multiplications, and transforms.
* `tiling.spectral`: products at each frequency of larger tiles; the 9x9 kernel
  at stride 2 of CapsNet then takes a third of the multiplications. Without a
  gradient it takes groups of frequencies in turn, in less memory, or the kernel
  of `inference.transform_kernels`.

`patches` and `tiling.winograd` take a large batch in pieces that stay in the
cache. Which form is taken follows from the sizes, and from whether there is a
gradient.

Axes: B batch, H W image, C channels in, D channels out, S stride.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from capjax.kernels import broadcasting, checks, numerics
from capjax.kernels.routing import windows as em_windows
from capjax.layers import platforms, tiling


def conv2d(
  images: Float[Array, "B H W C"],
  kernel: Float[Array, "kH kW C D"],
  *,
  stride: int = 1,
  padding: str = "VALID",
  transformed: Float[Array, "F D C2"] | None = None,
) -> Float[Array, "B oH oW D"]:
  """Convolves in the form that is fastest on the platform.

  Args:
    images: any batch of images at least as large as the kernel.
    kernel: the weights, applied unflipped.
    stride: the same along both axes, at least 1.
    padding: "VALID", or "SAME" with zeros (ceil(H / stride) rows out).
    transformed: `tiling.transform_kernel` of the kernel, in float32 or wider.
      CPUs then use it for values, where that is faster; derivatives are those
      of the kernel alone.

  Returns:
    The sums over the kernel's window at every `stride`-th position.

  Raises:
    TypeError: if the images and the kernel are not floats of one dtype.
    ValueError: for shapes that do not fit, an unknown padding, or a transformed
      kernel of another shape or dtype.
  """
  _check(images, kernel, stride, padding)
  if transformed is not None:
    _check_transformed(transformed, kernel, stride)
  if padding == "SAME":
    around = em_windows.same_padding(
      images.shape[1:3], kernel.shape[:2], stride=stride
    )
    images = jnp.pad(images, ((0, 0), *around, (0, 0)))
  return platforms.choose(
    images,
    kernel,
    transformed,
    cpu=functools.partial(_on_cpu, stride=stride),
    default=lambda *arrays: direct(*arrays[:2], stride=stride),
  )


class Conv(nnx.Module):
  """A convolution with bias, in the form that is fastest on the platform.

  Attributes:
    kernel: [k k in out].
    bias: [out].
    transformed: the kernel after `inference.transform_kernels`, otherwise None.
  """

  transformed: nnx.Variable | None = None

  def __init__(
    self,
    in_features: int,
    out_features: int,
    kernel_size: int,
    *,
    stride: int = 1,
    padding: str = "VALID",
    kernel_init: Callable = nnx.initializers.lecun_normal(),
    bias_init: Callable = nnx.initializers.zeros,
    scale: float = 1.0,
    dtype: jax.typing.DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      in_features: channels in.
      out_features: channels out.
      kernel_size: taps along each axis.
      stride: step of the window along each axis.
      padding: "VALID" or "SAME".
      kernel_init: initialiser of the kernel [k k in out].
      bias_init: initialiser of the bias [out].
      scale: factor of the convolution, but not of the bias.
      dtype: dtype of the arithmetic and of the result; parameters stay float32.
      rngs: its `params` stream initialises the parameters.

    Raises:
      ValueError: if a number is below 1, or the padding or dtype is unknown.
    """
    checks.rngs(rngs)
    checks.counts(
      in_features=in_features,
      out_features=out_features,
      kernel_size=kernel_size,
      stride=stride,
    )
    checks.padding(padding)
    checks.dtype(dtype)
    shape = (kernel_size, kernel_size, in_features, out_features)
    self.kernel: nnx.Variable = nnx.Param(
      kernel_init(rngs.params(), shape, jnp.float32)
    )
    self.bias = nnx.Param(
      bias_init(rngs.params(), (out_features,), jnp.float32)
    )
    self.stride = stride
    self.padding = padding
    self.scale = scale
    self.dtype = dtype

  def __call__(
    self, images: Float[Array, "B H W C"]
  ) -> Float[Array, "B oH oW D"]:
    """Convolves images, multiplies by `scale`, and adds the bias.

    Args:
      images: any floats, with `in_features` channels; with "VALID" at least as
        large as the kernel.

    Returns:
      Features in `dtype`; see `conv2d` for their number of rows.

    Raises:
      TypeError: if the images are no floats.
      ValueError: if they have another number of axes or channels, or are too
        small for the kernel.
    """
    checks.floats({"images": images})
    features = conv2d(
      images.astype(self.dtype),
      self.kernel[...].astype(self.dtype),
      stride=self.stride,
      padding=self.padding,
      transformed=None if self.transformed is None else self.transformed[...],
    )
    bias = self.bias[...].astype(self.dtype)
    return broadcasting.add_bias(self.scale * features, bias)


def direct(
  images: Float[Array, "B H W C"],
  kernel: Float[Array, "kH kW C D"],
  *,
  stride: int,
) -> Float[Array, "B oH oW D"]:
  """XLA's own convolution, without padding.

  Args:
    images: as for `conv2d`; arguments are not checked here.
    kernel: as for `conv2d`.
    stride: as for `conv2d`.

  Returns:
    As `conv2d`, with floor((H - kH) / S) + 1 rows.
  """
  return jax.lax.conv_general_dilated(
    images,
    kernel,
    (stride, stride),
    "VALID",
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
    precision=numerics.precision(),
  )


def patches(
  images: Float[Array, "B H W C"],
  kernel: Float[Array, "kH kW C D"],
  *,
  stride: int,
) -> Float[Array, "B oH oW D"]:
  """Copies every window into a row, and multiplies once; as `direct`."""
  height, width, channels, filters = kernel.shape
  rows, columns = tiling.output_size(images, kernel, stride=stride)

  def multiply(images):
    # [B, H / S, S, W / S, S, C]: windows are then whole slices, whose gradients
    # add up in half the time that those of strided slices take.
    around = [(0, -size % stride) for size in images.shape[1:3]]
    images = jnp.pad(images, ((0, 0), *around, (0, 0)))
    cells = images.reshape(
      len(images),
      images.shape[1] // stride,
      stride,
      images.shape[2] // stride,
      stride,
      channels,
    )
    windows = _slices(cells, width, columns, axis=3)  # [B H/S S oW kW*C]
    windows = _slices(windows, height, rows, axis=1)  # [B oH oW kH*kW*C]
    # As a matrix: with more axes a CPU takes eight times as long for gradients.
    windows = windows.reshape(-1, window)
    outputs = numerics.matmul(windows, kernel.reshape(-1, filters))
    return outputs.reshape(len(images), rows, columns, filters)

  window = height * width * channels
  if window <= 2 * filters:
    return multiply(images)  # The output is larger than the windows.
  spread = rows * columns * window
  return tiling.in_pieces(multiply, images, spread=spread, weights=kernel.size)


def by_rows(
  images: Float[Array, "B H W C"],
  kernel: Float[Array, "kH kW C D"],
  *,
  stride: int,
) -> Float[Array, "B oH oW D"]:
  """Adds up one product for each row of the kernel; as `direct`.

  Windows are copied one row of the kernel at a time, which is faster than in
  `patches`, most of all where windows share few pixels.
  """
  height, width, channels, filters = kernel.shape
  tall, wide = tiling.output_size(images, kernel, stride=stride)
  total = jnp.zeros((), images.dtype)
  for y in range(height):
    slices = [
      images[
        :,
        y : y + stride * (tall - 1) + 1 : stride,
        x : x + stride * (wide - 1) + 1 : stride,
      ]
      for x in range(width)
    ]
    read = jnp.concatenate(slices, axis=-1).reshape(-1, width * channels)
    total += numerics.matmul(read, kernel[y].reshape(-1, filters))
  return total.reshape(len(images), tall, wide, filters)


def _slices(cells, taps, count, *, axis):
  """Stacks, as channels, the slices that the taps read along an axis of cells.

  [.. H/S S .. C], with H/S at `axis`, becomes [.. oH .. k*C]. Taking one axis
  after another needs fewer and longer slices than taking all taps at once.
  """
  stride = cells.shape[axis + 1]
  slices = []
  for tap in range(taps):
    start, phase = divmod(tap, stride)
    part = jax.lax.slice_in_dim(cells, start, start + count, axis=axis)
    part = jax.lax.index_in_dim(part, phase, axis + 1, keepdims=False)
    slices.append(part)
  return jnp.concatenate(slices, axis=-1)


def _on_cpu(images, kernel, transformed, *, stride):
  # Without gradients, it costs too much to transform a kernel for few images;
  # with gradients, for which pieces are copied again, it pays off.
  for_values, cost = _fastest(
    images, kernel, stride, winograd=1.9, spectral=1.65, channels=64
  )
  for_gradients, _ = _fastest(
    images, kernel, stride, winograd=1.3, spectral=0.95, channels=32
  )
  is_used = transformed is not None and cost > 1.65 * tiling.transformed_cost(
    images, kernel, stride=stride
  )

  def value(images, kernel, transformed):
    form, options = for_values, {}
    if is_used:
      form = tiling.spectral_of_transformed
      options = {"transformed": transformed}
    elif form is tiling.spectral:
      # Groups of frequencies in turn need less memory, but slow down gradients.
      options = {"in_turn": True}
    return _wide(form, images, kernel, stride=stride, **options)

  def differentiated(images, kernel, transformed):
    del transformed
    return _wide(for_gradients, images, kernel, stride=stride)

  if for_values is for_gradients is not tiling.spectral and not is_used:
    return value(images, kernel, None)
  return platforms.choose_by_gradient(
    images,
    kernel,
    transformed,
    without=value,
    differentiated=differentiated,
  )


def _wide(form, images, kernel, **options):
  # Narrow types would make transforms inaccurate, and are slow on CPUs.
  wide = jnp.promote_types(images.dtype, jnp.float32)
  outputs = form(images.astype(wide), kernel.astype(wide), **options)
  return outputs.astype(images.dtype)


def _fastest(images, kernel, stride, *, channels, **factors):
  """Returns the form of the lowest cost, and this cost.

  The factors allow for the memory that transforms move besides their
  arithmetic. Of the direct sums, `by_rows` is taken for kernels of up to 3x3
  with a stride and at least `channels` channels in: whole training steps are
  then faster.
  """
  height, width = kernel.shape[:2]
  is_small = stride > 1 and 1 < height * width <= 9
  direct_sum = by_rows if is_small and kernel.shape[2] >= channels else patches
  rows, columns = tiling.output_size(images, kernel, stride=stride)
  costs = {
    direct_sum: len(images) * rows * columns * math.prod(kernel.shape),
    tiling.winograd: factors["winograd"]
    * tiling.winograd_cost(images, kernel, stride=stride),
    tiling.spectral: factors["spectral"]
    * tiling.spectral_cost(images, kernel, stride=stride),
  }
  return min(costs.items(), key=lambda item: item[1])


def depth_to_space(
  images: Float[Array, "B H W C"],
) -> Float[Array, "B H2 W2 D"]:
  """Spreads every four channels over 2x2 pixels, as W. Shi et al. (2016).

  Args:
    images: of any range; C is a multiple of 4.

  Returns:
    [B, 2H, 2W, C / 4]: pixel (2y + v, 2x + u) has the channels from
    (2v + u) C / 4 on of pixel (y, x).
  """
  count, rows, columns, channels = images.shape
  images = images.reshape(count, rows, columns, 2, 2, channels // 4)
  return images.swapaxes(2, 3).reshape(count, 2 * rows, 2 * columns, -1)


def _check_transformed(transformed, kernel, stride):
  transform = functools.partial(tiling.transform_kernel, stride=stride)
  wide = jnp.promote_types(kernel.dtype, jnp.float32)
  want = jax.eval_shape(transform, jax.ShapeDtypeStruct(kernel.shape, wide))
  given = transformed.shape, transformed.dtype
  if want is None or given != (want.shape, want.dtype):
    raise ValueError(
      f"transformed is {transformed.dtype} {transformed.shape}; give what "
      f"tiling.transform_kernel returns for the kernel {kernel.shape}."
    )


def _check(images, kernel, stride, padding):
  checks.floats({"images": images, "kernel": kernel})
  if images.dtype != kernel.dtype:
    raise TypeError(
      f"images hold {images.dtype} and kernel {kernel.dtype}; give one dtype."
    )
  if images.ndim != 4 or kernel.ndim != 4 or images.shape[3] != kernel.shape[2]:
    raise ValueError(
      f"images {images.shape} and kernel {kernel.shape} do not fit; give "
      "[B H W C] and [kH kW C D]."
    )
  if min(kernel.shape) < 1:
    raise ValueError(
      f"kernel {kernel.shape} is empty; give at least one tap and channel."
    )
  checks.counts(stride=stride)
  checks.padding(padding)
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
