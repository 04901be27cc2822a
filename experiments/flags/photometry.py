"""Flags for crops, flips and changes of light of training images.

Sabour, Frosst, Hinton (2017), section 7. The functions are those by which
matrix capsules prepare stereo pairs (`data.transforms.stereo`).
"""

from absl import flags

from ..training.augmentation import Placement
from . import limits

_DOWNSAMPLE = flags.DEFINE_integer(
  "downsample",
  0,
  "Side in pixels to which images are reduced by means over blocks, before "
  "all else; a divisor of their sides, or 0 to keep them.",
  lower_bound=0,
)
_CROP = flags.DEFINE_integer(
  "crop",
  0,
  "Side in pixels of a square that is cut out of an image, at random in "
  "training and from the middle elsewhere; 0 for none.",
  lower_bound=0,
)
_FLIP = flags.DEFINE_bool(
  "flip", False, "Mirror half of the training images left to right."
)
_MAX_BRIGHTNESS = flags.DEFINE_float(
  "max_brightness",
  0.0,
  "Largest number that is added to all pixels of a training image, which are "
  "in [0, 1]; 0.25 in the authors' code for stereo pairs.",
  lower_bound=0.0,
  upper_bound=1.0,
)
_MAX_CONTRAST = flags.DEFINE_float(
  "max_contrast",
  0.0,
  "Largest change from 1 of the factor of a training image's contrast; 0.8 in "
  "the authors' code for stereo pairs.",
  lower_bound=0.0,
  upper_bound=1.0,
)
_STANDARDISE = flags.DEFINE_bool(
  "standardise",
  False,
  "Make the mean of each image 0 and its standard deviation 1; capsules then "
  "have no decoder.",
)


def place(placement: Placement) -> Placement:
  """Adds the values of these flags to a placement.

  Raises:
    ValueError: if a crop is given with a canvas or with shifts.
  """
  if _CROP.value:
    limits.refuse("--crop", ["max_shift", "canvas"])
    placement = placement._replace(max_shift=0)
  return placement._replace(
    downsample=_DOWNSAMPLE.value,
    crop=_CROP.value,
    flip=_FLIP.value,
    max_brightness=_MAX_BRIGHTNESS.value,
    max_contrast=_MAX_CONTRAST.value,
    standardise=_STANDARDISE.value,
  )


def refuse_decoder(model: str) -> None:
  """Checks that no decoder has to reconstruct standardised images.

  Args:
    model: the value of --model.

  Raises:
    ValueError: if capsules would have a decoder.
  """
  decodes = model != "baseline"
  if _STANDARDISE.value and decodes:
    if flags.FLAGS["reconstruction"].value != "none":
      raise ValueError(
        "--standardise leaves no intensities for a decoder to draw; add "
        "--reconstruction=none"
      )
