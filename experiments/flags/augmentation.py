"""Flags for the deformation and the placement of images."""

from absl import flags

from ..training.augmentation import Placement
from . import limits

MAX_SHIFT = flags.DEFINE_integer(
  "max_shift", 2, "Largest shift of an image, in pixels.", lower_bound=0
)
CANVAS = flags.DEFINE_integer(
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
  """The placement that the flags describe.

  Raises:
    ValueError: if both a canvas and shifts are given.
  """
  if CANVAS.value:
    limits.refuse("--canvas, which places images anywhere,", ["max_shift"])
  return Placement(
    max_shift=MAX_SHIFT.value,
    canvas=CANVAS.value,
    max_rotation=_MAX_ROTATION.value,
    max_shear=_MAX_SHEAR.value,
    max_scale=_MAX_SCALE.value,
  )
