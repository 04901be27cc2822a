"""Flags of how images of a data set are deformed and placed."""

from collections.abc import Sequence

import jax
from absl import flags

from experiments.flags import limits, runs
from experiments.training import augmentation
from experiments.training.augmentation import Placement
from kernels import checks

MAX_SHIFT = flags.DEFINE_integer(
  "max_shift", 2, "Pixels that images are shifted by at most.", lower_bound=0
)
_CANVAS = flags.DEFINE_integer(
  "canvas",
  0,
  "Side of a black canvas that images are placed on at random; 0 for none.",
  lower_bound=0,
  upper_bound=10_000,
)
_MAX_ROTATION = flags.DEFINE_float(
  "max_rotation",
  0.0,
  "Degrees that images are turned by at most.",
  lower_bound=0.0,
  upper_bound=180.0,
)
_MAX_SHEAR = flags.DEFINE_float(
  "max_shear",
  0.0,
  "Shear of images, at most.",
  lower_bound=0.0,
  upper_bound=10.0,
)
_MAX_SCALE = flags.DEFINE_float(
  "max_scale",
  1.0,
  "Factor that images grow or shrink by, at most.",
  lower_bound=1.0,
  upper_bound=10.0,
)
DEFORMATIONS = ("canvas", "max_rotation", "max_shear", "max_scale")


def placement() -> Placement:
  """What the flags describe."""
  return Placement(
    max_shift=MAX_SHIFT.value,
    canvas=_CANVAS.value,
    max_rotation=_MAX_ROTATION.value,
    max_shear=_MAX_SHEAR.value,
    max_scale=_MAX_SCALE.value,
  )


def canvas_of(image_shape: Sequence[int]) -> tuple[int, int, int]:
  """The shape of what a model is given of images of a data set.

  Raises:
    ValueError: if both a canvas and shifts are asked for, or images leave the
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
  """Deforms and places one training image as the flags say."""
  return augmentation.augment_image(key, image, placement())


def place_image(key: jax.Array, image: jax.Array) -> jax.Array:
  """Places one image on --canvas at random, if there is one."""
  return augmentation.place_image(key, image, placement())


def prepare_image(image: jax.Array) -> jax.Array:
  """Places one image in the middle of --canvas, if there is one."""
  return augmentation.prepare_image(image, placement())


def test_image(key: jax.Array, image: jax.Array) -> jax.Array:
  """Deforms and places one test image as the flags say."""
  return augmentation.test_image(key, image, placement())
