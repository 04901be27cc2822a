"""The preprocessing of images for a network, described as data.

Training, evaluation and `capjax.load` prepare images by the same description,
which is stored with the weights.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from capjax.data.transforms import augment, stereo


class Preprocessing(NamedTuple):
  """The steps from an image in [0, 1] to the input of a network, in order.

  Attributes:
    downsample: side in pixels to which the image is reduced by means over
      blocks; None to keep its size.
    crop: side in pixels of the square cut out of the middle; None for no crop.
    canvas: (rows, columns) of a black canvas in whose middle the image is
      placed; None for no canvas.
    standardise: whether the mean becomes 0 and the standard deviation 1, over
      pixels and channels of the image.
    crop_last: whether the image is cropped after it was standardised, by the
      mean and the standard deviation of the whole image.
  """

  downsample: int | None = None
  crop: int | None = None
  canvas: tuple[int, int] | None = None
  standardise: bool = False
  crop_last: bool = False

  def prepare(self, image: Num[Array, "H W C"]) -> Num[Array, "H2 W2 C"]:
    """Applies all steps before standardisation; values stay in [0, 1].

    Args:
      image: in [0, 1], of a size that the steps can take.
    """
    if self.downsample is not None:
      image = stereo.downsample(image, size=self.downsample)
    if not self.crop_last:
      image = self._cropped(image)
    if self.canvas is not None:
      image = augment.centre_pad(image, canvas=self.canvas)
    return image

  def normalise(self, image: Float[Array, "H W C"]) -> Float[Array, "H2 W2 C"]:
    """Computes the input of the network from a prepared image in [0, 1].

    Args:
      image: in [0, 1].

    Returns:
      In [0, 1]; with `standardise` any numbers.
    """
    if self.standardise:
      image = stereo.standardise(255 * image)
    return self._cropped(image) if self.crop_last else image

  def _cropped(self, image):
    if self.crop is None:
      return image
    return stereo.centre_crop(image, size=self.crop)

  def __call__(self, image: Float[Array, "H W C"]) -> Float[Array, "H2 W2 C"]:
    """Applies all steps to one image in [0, 1].

    Args:
      image: in [0, 1].

    Returns:
      As `normalise`.
    """
    return self.normalise(self.prepare(image))

  def output_shape(self, image_shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape [H W C] of the network's input for images of this shape.

    Args:
      image_shape: height, width and channels.

    Raises:
      ValueError: if images of this shape cannot be prepared.
    """
    image = jax.ShapeDtypeStruct(tuple(image_shape), jnp.float32)
    return jax.eval_shape(self.__call__, image).shape

  def as_json(self) -> dict[str, Any]:
    """The steps that are taken, such as `{"canvas": [40, 40]}`."""
    taken = {name: x for name, x in self._asdict().items() if x}
    if self.canvas is not None:
      taken["canvas"] = list(self.canvas)
    return taken


def from_json(described: Mapping[str, Any]) -> Preprocessing:
  """Reads the steps that `Preprocessing.as_json` wrote.

  Args:
    described: the steps by name.

  Raises:
    ValueError: if a step is unknown or its value is wrong.
  """
  unknown = sorted(set(described) - set(Preprocessing._fields))
  if unknown:
    raise ValueError(
      f"unknown preprocessing {', '.join(unknown)}; known: "
      f"{', '.join(Preprocessing._fields)}."
    )
  steps = dict(described)
  try:
    if steps.get("canvas") is not None:
      rows, columns = map(int, steps["canvas"])
      steps["canvas"] = (rows, columns)
    for name in ("downsample", "crop"):
      if steps.get(name) is not None:
        steps[name] = int(steps[name])
    for name in ("standardise", "crop_last"):
      steps[name] = bool(steps.get(name, False))
  except (TypeError, ValueError) as error:
    raise ValueError(f"preprocessing {dict(described)}: {error}.") from None
  return Preprocessing(**steps)


def stored(
  images: np.ndarray | jax.Array, image_shape: Sequence[int]
) -> np.ndarray:
  """Checks images of the form that data sets hold: uint8 [N H W C].

  Args:
    images: uint8 [N H W C]; [N H W] for one channel.
    image_shape: H, W, C.

  Returns:
    The images as [N H W C].

  Raises:
    TypeError: if they are traced.
    ValueError: if they have another dtype or shape, or there is none.
  """
  if isinstance(images, jax.core.Tracer):
    raise TypeError(
      "images are traced; prepare them outside of jax.jit, and compile the "
      "model alone."
    )
  if hasattr(images, "images"):
    raise ValueError(f"images is a {type(images).__name__}; give its images.")
  try:
    images = np.asarray(images)
  except ValueError as error:
    raise ValueError(
      "images differ in shape; give an array, or images of one size."
    ) from error
  height, width, channels = image_shape
  shape = " ".join(map(str, images.shape))
  one = images.shape == (height, width, channels)
  one |= channels == 1 and images.shape == (height, width)
  if images.ndim == 3 and channels == 1:
    images = images[..., None]
  wanted = f"[N {height} {width} {channels}]"
  if images.dtype != np.uint8:
    raise ValueError(
      f"images hold {images.dtype}; give uint8 intensities in 0 to 255 "
      f"{wanted}{_as_uint8(images)}."
    )
  if images.shape[1:] != (height, width, channels):
    remedy = ", such as images[None]" if one else ""
    if images.shape[1:] == (channels, height, width):
      remedy = ", such as images.transpose(0, 2, 3, 1)"
    raise ValueError(f"images are [{shape}]; give {wanted}{remedy}.")
  if not len(images):
    raise ValueError(f"images are [{shape}]; give at least one as {wanted}.")
  return images


def _as_uint8(images: np.ndarray) -> str:
  """Advice on converting images of another dtype; empty if unknown."""
  if images.dtype == bool:
    return "; convert booleans by np.uint8(255 * images)"
  if images.dtype.kind not in "fiu" or not images.size:
    return ""
  if not np.all(np.isfinite(images)):
    return "; some numbers are not finite: leave out such images"
  if 0 <= images.min() and images.max() <= 1:
    return "; convert floats in [0, 1] by np.uint8(np.round(255 * images))"
  if 0 <= images.min() and images.max() <= 255:
    return "; convert numbers in [0, 255] by np.uint8(np.round(images))"
  return ""
