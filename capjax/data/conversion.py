"""Resizing of images, and their conversion to grey, when they are loaded."""

import math
import types
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

# Weights of red, green and blue in 65536ths, as in Pillow and ITU-R BT.601.
_LUMA = np.array([19595, 38470, 7471], np.uint32)


class Conversion(NamedTuple):
  """How every image is converted when it is loaded.

  Attributes:
    image_size: Height and width to which it is resized; None leaves its size.
    grayscale: Whether colours become intensities of grey.
  """

  image_size: tuple[int, int] | None = None
  grayscale: bool = False


def pillow() -> types.ModuleType:
  """The module `PIL.Image`, which is imported only where it is needed.

  Raises:
    ValueError: Pillow is not installed.
  """
  try:
    from PIL import Image
  except ImportError as error:
    raise ValueError(
      f"{error}; reading image files and resizing need Pillow: run "
      "`pip install '.[data]'` in the folder of this repository"
    ) from error
  return Image


def convert(
  image: UInt8[np.ndarray, "H W C"], conversion: Conversion
) -> UInt8[np.ndarray, "H2 W2 C2"]:
  """Converts one image: first to grey, then to its new size.

  It is resized bilinearly, with antialiasing where it becomes smaller, by
  Pillow: the result is the same on every machine. The ratio of height to width
  is not kept.

  Args:
    image: Of any number of channels.
    conversion: How it is converted.

  Returns:
    The image; the argument itself where nothing changes.

  Raises:
    ValueError: Pillow is not installed; or the image is to become grey, and has
      neither 1 nor 3 channels.
  """
  size, grayscale = conversion
  channels = image.shape[2]
  if grayscale and channels not in (1, 3):
    raise ValueError(
      f"images have {channels} channels, and only 1 or 3 can become grey; "
      "leave out grayscale (--grayscale)"
    )
  if grayscale and channels == 3:
    grey = (image @ _LUMA + 2**15) >> 16
    image = grey.astype(np.uint8)[..., np.newaxis]
  if size is None or image.shape[:2] == tuple(size):
    return image
  module = pillow()
  height, width = size
  resized = [
    np.asarray(
      module.fromarray(np.ascontiguousarray(plane)).resize(
        (width, height), module.Resampling.BILINEAR
      )
    )
    for plane in np.moveaxis(image, -1, 0)
  ]
  return np.stack(resized, axis=-1)


def convert_all(
  images: UInt8[np.ndarray, "N H W C"], conversion: Conversion
) -> UInt8[np.ndarray, "N H2 W2 C2"]:
  """Converts all images; see `convert`.

  Args:
    images: The images, of any number of channels.
    conversion: The size and whether images become grey.

  Returns:
    The converted images; the given array itself if nothing changes.

  Raises:
    ValueError: As `convert`; or the converted images do not fit into memory.
  """
  if conversion == Conversion() or not len(images):
    return images
  original = images[0]
  first = convert(original, conversion)
  if first is original:  # nothing changes
    return images
  shape = (len(images), *first.shape)
  try:
    converted = np.empty(shape, np.uint8)
  except MemoryError:
    raise ValueError(
      f"{len(images)} images of {'x'.join(map(str, first.shape))} need "
      f"{math.prod(shape) / 1e9:.1f} GB, which this machine does not have; "
      "give a smaller image_size (--image_size)"
    ) from None
  for i, image in enumerate(images):
    converted[i] = convert(image, conversion)
  return converted
