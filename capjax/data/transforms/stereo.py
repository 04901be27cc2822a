"""Preprocessing and augmentation of ONE image or stereo pair.

Images are [H, W, C], C = 2 for a pair, floats. Hinton et al. (2018) take
smallNORB from 96x96 to 48x48 and cut 32x32 out of it; `augment` is the whole
pipeline of training in one of two published orders.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num, PRNGKeyArray

from capjax.kernels import numerics

PIPELINES = ("official", "ibm")
_SIZE = 48
_CROP = 32


def downsample(
  image: Num[Array, "H W C"], *, size: int = _SIZE
) -> Float[Array, "H2 W2 C"]:
  """Makes an image smaller: each pixel is the mean of a block.

  Args:
    image: [H, W, C], any dtype.
    size: rows and columns; H and W are multiples of it.

  Returns:
    [size, size, C], floats in the range of `image`.

  Raises:
    ValueError: H or W is no multiple of `size`.
  """
  height, width, channels = image.shape
  if size < 1 or height % size or width % size:
    raise ValueError(
      f"size={size} of an image of {height}x{width}; pass a divisor of both."
    )
  blocks = image.reshape(size, height // size, size, width // size, channels)
  return jnp.mean(blocks, axis=(1, 3))


def standardise(image: Float[Array, "H W C"]) -> Float[Array, "H W C"]:
  """Makes the mean of an image 0 and its standard deviation 1.

  Both are over pixels and channels together, so that the difference between the
  eyes stays.

  Args:
    image: [H, W, C].

  Returns:
    [H, W, C]; 0 for an image of one colour. The standard deviation counts as at
    least 1 / sqrt(HWC) in the unit of `image`: pass 0..255, not 0..1, so that
    this limit has no effect.
  """
  wide = numerics.widen(image)
  centred = wide - jnp.mean(wide)
  variance = jnp.maximum(jnp.mean(centred**2), 1 / image.size)
  return (centred * jax.lax.rsqrt(variance)).astype(image.dtype)


def crop(
  image: Num[Array, "H W C"],
  offset: Int[Array, "2"],
  *,
  size: int = _CROP,
) -> Num[Array, "H2 W2 C"]:
  """Cuts a square out of an image.

  Args:
    image: [H, W, C], any dtype.
    offset: [2], rows below and columns right of the middle; where the square
      would reach beyond the image it is moved back.
    size: rows and columns of the square.

  Returns:
    [size, size, C], the dtype of `image`. Of an odd margin the smaller part is
    above or left.

  Raises:
    ValueError: the image is smaller than the square.
  """
  room = jnp.array(_room(image, size))
  row, column = jnp.clip(room // 2 + offset, 0, room)
  shape = (size, size, image.shape[2])
  return jax.lax.dynamic_slice(image, (row, column, 0), shape)


def random_crop(
  key: PRNGKeyArray, image: Num[Array, "H W C"], *, size: int = _CROP
) -> Num[Array, "H2 W2 C"]:
  """Cuts a square out at random; every place is equally likely.

  Args:
    key: random key.
    image: [H, W, C], any dtype.
    size: rows and columns of the square.

  Returns:
    [size, size, C], the dtype of `image`.

  Raises:
    ValueError: the image is smaller than the square.
  """
  room = jnp.array(_room(image, size))
  place = jax.random.randint(key, (2,), 0, room + 1)
  return crop(image, place - room // 2, size=size)


def centre_crop(
  image: Num[Array, "H W C"], *, size: int = _CROP
) -> Num[Array, "H2 W2 C"]:
  """Cuts out the middle: `random_crop` at test time; see `crop`.

  Args:
    image: [H, W, C], any dtype.
    size: rows and columns of the square.

  Raises:
    ValueError: the image is smaller than the square.
  """
  return crop(image, jnp.zeros(2, jnp.int32), size=size)


def crop_offsets() -> Int[np.ndarray, "13 2"]:
  """Returns the offsets of a test over 13 crops, whose outputs are averaged.

  The middle, then 1, 2 and 3 pixels along both diagonals, either way (the
  evaluation of the authors' code).
  """
  corners = [(-1, -1), (-1, 1), (1, -1), (1, 1)]
  steps = [(n * row, n * column) for n in (1, 2, 3) for row, column in corners]
  return np.array([(0, 0), *steps], np.int32)


def multi_crop(
  image: Num[Array, "H W C"], *, size: int = _CROP
) -> Num[Array, "13 H2 W2 C"]:
  """Cuts the squares of `crop_offsets` out of an image; see `crop`.

  Args:
    image: [H, W, C], any dtype.
    size: rows and columns of each square.

  Returns:
    [13, size, size, C], the dtype of `image`.

  Raises:
    ValueError: the image is smaller than a square.
  """
  offsets = jnp.asarray(crop_offsets())
  return jax.vmap(lambda offset: crop(image, offset, size=size))(offsets)


def augment(
  key: PRNGKeyArray, image: Num[Array, "H W C"], *, pipeline: str = "official"
) -> Float[Array, "32 32 C"]:
  """Augments a downsampled image for training.

  - "official", the authors' code (Hinton et al., 2018, `capsule_em`): change
    brightness by at most 63 and contrast by a factor in 0.2 to 1.8, crop, then
    standardise the crop. Standardising undoes the change of brightness. It also
    undoes the change of contrast, unless the mean intensities of both eyes
    differ. So the crops are most of this augmentation.
  - "ibm" (Gritzman, 2019), the order in the paper's text: standardise, crop,
    then change brightness by at most 2 standard deviations and contrast by a
    factor in 0.5 to 1.5. Training images then have other means and standard
    deviations than test images.

  Neither clips. Test images are standardised centre crops; IBM's are centre
  crops of standardised images.

  Args:
    key: random key.
    image: [H, W, C] in 0..255, at least 32x32.
    pipeline: one of `PIPELINES`.

  Returns:
    [32, 32, C]; with "official" of mean 0 and standard deviation 1.

  Raises:
    ValueError: the pipeline is unknown, or the image is too small.
  """
  if pipeline not in PIPELINES:
    raise ValueError(
      f"pipeline={pipeline!r}; pass {' or '.join(map(repr, PIPELINES))}."
    )
  crop_key, brightness_key, contrast_key = jax.random.split(key, 3)
  image = image.astype(jnp.result_type(image, float))
  if pipeline == "official":
    image = random_brightness(brightness_key, image, max_change=63.0)
    image = random_contrast(contrast_key, image, contrast_range=(0.2, 1.8))
    return standardise(random_crop(crop_key, image))
  image = random_crop(crop_key, standardise(image))
  image = random_brightness(brightness_key, image, max_change=2.0)
  return random_contrast(contrast_key, image, contrast_range=(0.5, 1.5))


def random_brightness(
  key: PRNGKeyArray, image: Float[Array, "H W C"], *, max_change: float
) -> Float[Array, "H W C"]:
  """Adds one number to a whole image.

  Args:
    key: random key.
    image: [H, W, C].
    max_change: the number is uniform in -max_change to max_change, in the unit
      of `image`.

  Returns:
    [H, W, C], not clipped.

  Raises:
    ValueError: `max_change` is negative.
  """
  if max_change < 0:
    raise ValueError(f"max_change={max_change}; pass 0 or more.")
  low, high = -max_change, max_change
  return image + jax.random.uniform(key, (), image.dtype, low, high)


def random_contrast(
  key: PRNGKeyArray,
  image: Float[Array, "H W C"],
  *,
  contrast_range: tuple[float, float],
) -> Float[Array, "H W C"]:
  """Scales the difference of each channel from its mean.

  Args:
    key: random key.
    image: [H, W, C].
    contrast_range: (smallest, largest) factor; the factor is uniform and the
      same for all channels.

  Returns:
    [H, W, C], not clipped.

  Raises:
    ValueError: `contrast_range` is empty or reaches below 0.
  """
  smallest, largest = contrast_range
  if not 0 <= smallest <= largest:
    raise ValueError(
      f"contrast_range={contrast_range}; pass (smallest, largest) of 0 or more."
    )
  factor = jax.random.uniform(key, (), image.dtype, smallest, largest)
  mean = jnp.mean(image, axis=(0, 1))
  return mean + factor * (image - mean)


def _room(image, size: int) -> tuple[int, int]:
  """Returns by how many rows and columns an image exceeds a square."""
  height, width, _ = image.shape
  if not 1 <= size <= min(height, width):
    raise ValueError(
      f"size={size} of an image of {height}x{width}; pass 1 to "
      f"{min(height, width)}."
    )
  return height - size, width - size
