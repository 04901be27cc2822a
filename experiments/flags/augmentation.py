"""Flags for the deformation and the placement of images."""

from collections.abc import Sequence

import jax
from absl import flags

from capjax.kernels import checks

from ..training import augmentation
from ..training.augmentation import Placement
from . import limits, runs

MAX_SHIFT = flags.DEFINE_integer(
  "max_shift", 2, "Largest shift of an image, in pixels.", lower_bound=0
)
_CANVAS = flags.DEFINE_integer(
  "canvas",
  0,
  "Side in pixels of a black canvas on which images are placed at random; 0"
  " for no canvas.",
  lower_bound=0,
  upper_bound=10_000,
)
_MAX_ROTATION = flags.DEFINE_float(
  "max_rotation",
  0.0,
  "Largest rotation of an image, in degrees.",
  lower_bound=0.0,
  upper_bound=180.0,
)
_MAX_SHEAR = flags.DEFINE_float(
  "max_shear",
  0.0,
  "Largest shear of an image, in pixels along x for each pixel along y.",
  lower_bound=0.0,
  upper_bound=10.0,
)
_MAX_SCALE = flags.DEFINE_float(
  "max_scale",
  1.0,
  "Largest factor by which images are enlarged or reduced.",
  lower_bound=1.0,
  upper_bound=10.0,
)
DEFORMATIONS = ("canvas", "max_rotation", "max_shear", "max_scale")


def placement() -> Placement:
  """The placement that the flags describe."""
  return Placement(
    max_shift=MAX_SHIFT.value,
    canvas=_CANVAS.value,
    max_rotation=_MAX_ROTATION.value,
    max_shear=_MAX_SHEAR.value,
    max_scale=_MAX_SCALE.value,
  )


def canvas_of(image_shape: Sequence[int]) -> tuple[int, int, int]:
  """The shape [H W C] of a model's input for images of this shape.

  Raises:
    ValueError: if both a canvas and shifts are given, or images would leave the
      canvas or the frame.
  """
  side = _CANVAS.value
  if side:
    runs.refuse("--canvas, which places images anywhere,", ["max_shift"])
    if side < max(image_shape[:2]):
      raise checks.ImageShapeError(
        f"images of {image_shape[0]}x{image_shape[1]} do not fit on a canvas "
        f"of --canvas={side}; give a larger one"
      )
  else:
    limits.check_shift(image_shape, MAX_SHIFT.value, ["max_shift"])
  return (side, side, image_shape[2]) if side else tuple(image_shape)


def augment_image(key: jax.Array, image: jax.Array) -> jax.Array:
  """Deforms and places one training image, as the flags say."""
  return augmentation.augment_image(key, image, placement())


def place_image(key: jax.Array, image: jax.Array) -> jax.Array:
  """Places one image on --canvas at random, if there is one."""
  return augmentation.place_image(key, image, placement())


def prepare_image(image: jax.Array) -> jax.Array:
  """Places one image in the middle of --canvas, if there is one."""
  return augmentation.prepare_image(image, placement())


def test_image(key: jax.Array, image: jax.Array) -> jax.Array:
  """Deforms and places one test image, as the flags say."""
  return augmentation.test_image(key, image, placement())
