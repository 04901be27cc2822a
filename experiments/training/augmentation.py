"""Random deformation, light and placement of training images."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from capjax.data.transforms import augment, stereo
from capjax.data.transforms.preprocessing import Preprocessing
from capjax.kernels import checks

# How two images are combined into one; see `tasks.scenes`.
SCENES = ("multimnist", "affnist_like")


class Placement(NamedTuple):
  """The largest shifts and deformations of images.

  Attributes:
    max_shift: largest shift in pixels, without a canvas.
    canvas: side in pixels of a black canvas on which images are placed; 0 for
      no canvas.
    max_rotation: largest rotation in degrees.
    max_shear: largest shear, in pixels along x for each pixel along y.
    max_scale: largest factor by which images are enlarged or reduced.
    downsample: side in pixels to which images are reduced first; 0 for none.
    crop: side in pixels of a square that is cut out; 0 for none.
    flip: whether half of the images are mirrored left to right.
    max_brightness: largest number added to all intensities.
    max_contrast: largest change from 1 of the factor of the contrast.
    standardise: whether the mean of an image becomes 0 and its standard
      deviation 1; else intensities are clipped to [0, 1].
  """

  max_shift: int = 2
  canvas: int = 0
  max_rotation: float = 0.0
  max_shear: float = 0.0
  max_scale: float = 1.0
  downsample: int = 0
  crop: int = 0
  flip: bool = False
  max_brightness: float = 0.0
  max_contrast: float = 0.0
  standardise: bool = False


def canvas_of(
  image_shape: Sequence[int], placement: Placement
) -> tuple[int, ...]:
  """The shape [H W C] of a model's input for images of this shape.

  Raises:
    checks.ImageShapeError: if images would leave the canvas or the frame.
    ValueError: if images would be cropped and placed on a canvas.
  """
  side = placement.canvas
  if side and placement.crop:
    raise ValueError(
      f"canvas={side} (--canvas) and crop={placement.crop} (--crop) exclude "
      "each other; leave one of them out"
    )
  if placement.downsample or placement.crop:
    try:
      image_shape = steps(placement._replace(canvas=0)).output_shape(
        tuple(image_shape)
      )
    except ValueError as error:
      raise checks.ImageShapeError(
        f"downsample, crop (--downsample, --crop): {error}"
      ) from None
  if not side:
    check_shift(image_shape, placement.max_shift, ["max_shift"])
    return tuple(image_shape)
  if side < max(image_shape[:2]):
    raise checks.ImageShapeError(
      f"images of {image_shape[0]}x{image_shape[1]} do not fit on a canvas "
      f"of canvas={side} (--canvas); give a larger one"
    )
  return (side, side, image_shape[2])


def check_shift(
  image_shape: Sequence[int],
  pixels: int,
  names: Sequence[str],
  *,
  left: int = 1,
) -> None:
  """Checks that shifted images stay partly inside the frame.

  Args:
    image_shape: height, width and channels.
    pixels: the largest shift.
    names: the arguments whose values add up to it, as the binaries' flags are
      called.
    left: the number of rows or columns that must stay inside.

  Raises:
    checks.ImageShapeError: if images can leave the frame.
  """
  height, width = image_shape[:2]
  if pixels > min(height, width) - left:
    raise checks.ImageShapeError(
      f"images of {height}x{width} leave the frame when shifted by {pixels} "
      f"pixels; give a smaller {' or '.join(f'--{name}' for name in names)}"
    )


def deform_image(
  key: jax.Array, image: jax.Array, placement: Placement
) -> jax.Array:
  """Rotates, shears and scales one image at random."""
  rotation, shear = placement.max_rotation, placement.max_shear
  scale = placement.max_scale
  if not (rotation or shear or scale != 1):
    return image
  return augment.random_affine(
    key,
    image,
    max_rotation=rotation,
    max_shear=shear,
    scale_range=(1 / scale, scale),
  )


def augment_image(
  key: jax.Array, image: jax.Array, placement: Placement
) -> jax.Array:
  """Deforms one training image, and changes its light and its place.

  The image is shifted, cropped or placed on the canvas. Finally it is
  standardised, if the placement says so.
  """
  # The first two keys are those of `split(key)`, which older runs used.
  deform_key, place_key, flip_key, light_key = jax.random.split(key, 4)
  image = _reduced(image, placement)
  if placement.flip:
    is_flipped = jax.random.bernoulli(flip_key)
    image = jnp.where(is_flipped, image[:, ::-1], image)
  image = deform_image(deform_key, image, placement)
  image = _relit(light_key, image, placement)
  if placement.canvas:
    image = _on_canvas(place_key, image, placement)
  elif placement.crop:
    image = stereo.random_crop(place_key, image, size=placement.crop)
  else:
    image = augment.shift(place_key, image, max_shift=placement.max_shift)
  return steps(placement).normalise(image)


def place_image(
  key: jax.Array, image: jax.Array, placement: Placement
) -> jax.Array:
  """Prepares one image; on the canvas, if there is one, at a random place."""
  if placement.canvas:
    image = _on_canvas(key, _reduced(image, placement), placement)
    return steps(placement).normalise(image)
  return steps(placement)(image)


def steps(placement: Placement) -> Preprocessing:
  """The steps without randomness: the middle of the canvas, or a crop."""
  side = placement.canvas
  return Preprocessing(
    downsample=placement.downsample or None,
    crop=placement.crop or None,
    canvas=(side, side) if side else None,
    standardise=placement.standardise,
  )


def _on_canvas(key, image, placement):
  canvas = (placement.canvas, placement.canvas)
  return augment.pad_and_place(key, image, canvas=canvas)


def _reduced(image, placement):
  if not placement.downsample:
    return image
  return stereo.downsample(image, size=placement.downsample)


def _relit(key, image, placement):
  """Changes brightness and contrast at random."""
  brightness, contrast = placement.max_brightness, placement.max_contrast
  if not (brightness or contrast):
    return image
  keys = jax.random.split(key)
  image = stereo.random_brightness(keys[0], image, max_change=brightness)
  image = stereo.random_contrast(
    keys[1], image, contrast_range=(1 - contrast, 1 + contrast)
  )
  return image if placement.standardise else jnp.clip(image, 0, 1)


def test_image(
  key: jax.Array, image: jax.Array, placement: Placement
) -> jax.Array:
  """Deforms and places one test image as in training, without `max_shift`.

  For models of the distribution of deformed images, where deformation is more
  than augmentation: Kosiorek et al. (2019) place test digits at random too.
  """
  deform_key, place_key = jax.random.split(key)
  image = deform_image(deform_key, _reduced(image, placement), placement)
  return place_image(place_key, image, placement._replace(downsample=0))
