"""Random deformation and placement of training images."""

from collections.abc import Sequence
from typing import NamedTuple

import jax

from capjax.data.transforms import augment
from capjax.data.transforms.preprocessing import Preprocessing
from capjax.kernels import checks


class Placement(NamedTuple):
  """The largest shifts and deformations of images.

  Attributes:
    max_shift: largest shift in pixels, without a canvas.
    canvas: side in pixels of a black canvas on which images are placed; 0 for
      no canvas.
    max_rotation: largest rotation in degrees.
    max_shear: largest shear, in pixels along x for each pixel along y.
    max_scale: largest factor by which images are enlarged or reduced.
  """

  max_shift: int = 2
  canvas: int = 0
  max_rotation: float = 0.0
  max_shear: float = 0.0
  max_scale: float = 1.0


def canvas_of(
  image_shape: Sequence[int], placement: Placement
) -> tuple[int, ...]:
  """The shape [H W C] of a model's input for images of this shape.

  Raises:
    checks.ImageShapeError: if images would leave the canvas or the frame.
  """
  side = placement.canvas
  if not side:
    check_shift(image_shape, placement.max_shift, ["max_shift"])
    return tuple(image_shape)
  if side < max(image_shape[:2]):
    raise checks.ImageShapeError(
      f"images of {image_shape[0]}x{image_shape[1]} do not fit on a canvas "
      f"of --canvas={side}; give a larger one"
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
  _, _, rotation, shear, scale = placement
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
  """Deforms one training image, and shifts it or places it on the canvas."""
  deform_key, place_key = jax.random.split(key)
  image = deform_image(deform_key, image, placement)
  if placement.canvas:
    return place_image(place_key, image, placement)
  return augment.shift(place_key, image, max_shift=placement.max_shift)


def place_image(
  key: jax.Array, image: jax.Array, placement: Placement
) -> jax.Array:
  """Places one image on the canvas at random, if there is one."""
  if placement.canvas:
    canvas = (placement.canvas, placement.canvas)
    return augment.pad_and_place(key, image, canvas=canvas)
  return image


def steps(placement: Placement) -> Preprocessing:
  """The steps that put an image in the middle of the canvas, if any."""
  side = placement.canvas
  return Preprocessing(canvas=(side, side) if side else None)


def test_image(
  key: jax.Array, image: jax.Array, placement: Placement
) -> jax.Array:
  """Deforms and places one test image as in training, without `max_shift`.

  For models of the distribution of deformed images, where deformation is more
  than augmentation: Kosiorek et al. (2019) place test digits at random too.
  """
  deform_key, place_key = jax.random.split(key)
  image = deform_image(deform_key, image, placement)
  return place_image(place_key, image, placement)
