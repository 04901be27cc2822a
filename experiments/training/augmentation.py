"""How images of a data set are deformed and placed, by flags."""

from collections.abc import Sequence

import jax
from absl import flags

from capjax.data.transforms import augment
from experiments.flags import limits
from experiments.run import directory
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


def canvas_of(image_shape: Sequence[int]) -> tuple[int, int, int]:
  """The shape of what a model is given of images of a data set.

  Raises:
    ValueError: if both a canvas and shifts are asked for, or images leave the
      canvas or the frame.
  """
  side = _CANVAS.value
  if side:
    directory.refuse("--canvas, which places images anywhere,", ["max_shift"])
    if side < max(image_shape[:2]):
      raise checks.ImageShapeError(
        f"images of {image_shape[0]}x{image_shape[1]} do not fit on a canvas "
        f"of --canvas={side}; give a larger one"
      )
  else:
    limits.check_shift(image_shape, MAX_SHIFT.value, ["max_shift"])
  return (side, side, image_shape[2]) if side else tuple(image_shape)


def deform_image(key: jax.Array, image: jax.Array) -> jax.Array:
  """Turns, shears and scales one image as the flags say."""
  if not (_MAX_ROTATION.value or _MAX_SHEAR.value or _MAX_SCALE.value != 1):
    return image
  return augment.random_affine(
    key,
    image,
    max_rotation=_MAX_ROTATION.value,
    max_shear=_MAX_SHEAR.value,
    scale_range=(1 / _MAX_SCALE.value, _MAX_SCALE.value),
  )


def augment_image(key: jax.Array, image: jax.Array) -> jax.Array:
  """Deforms and places one training image as the flags say."""
  deform_key, place_key = jax.random.split(key)
  image = deform_image(deform_key, image)
  if _CANVAS.value:
    return place_image(place_key, image)
  return augment.shift(place_key, image, max_shift=MAX_SHIFT.value)


def place_image(key: jax.Array, image: jax.Array) -> jax.Array:
  """Places one image on the canvas at random, if there is one."""
  if _CANVAS.value:
    canvas = (_CANVAS.value, _CANVAS.value)
    return augment.pad_and_place(key, image, canvas=canvas)
  return image


def prepare_image(image: jax.Array) -> jax.Array:
  """Places one image in the middle of the canvas, if there is one."""
  if _CANVAS.value:
    return augment.centre_pad(image, canvas=(_CANVAS.value, _CANVAS.value))
  return image


def test_image(key: jax.Array, image: jax.Array) -> jax.Array:
  """Deforms and places one image as in training, but for --max_shift.

  To test models whose data is what deformed images are, not only made more by
  deforming them: on a canvas Kosiorek et al. (2019) place test digits at random
  too.
  """
  deform_key, place_key = jax.random.split(key)
  return place_image(place_key, deform_image(deform_key, image))
