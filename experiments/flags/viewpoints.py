"""The flag that keeps viewpoints of toys for the test."""

from absl import flags

from ..training import viewpoints
from . import limits

VIEWPOINTS = flags.DEFINE_enum(
  "viewpoints",
  "all",
  viewpoints.VIEWPOINTS,
  "Viewpoints to train on: all, a third of the azimuths, or the three "
  "lowest elevations. For the last two, as in Hinton et al. (2018), validation "
  "uses test images from the viewpoints of training, so that --stop_accuracy "
  "gives networks of equal accuracy on them.",
)


def check_flags() -> None:
  """Checks that nothing else chooses the validation set.

  Raises:
    ValueError: if --num_validation is given too.
  """
  if VIEWPOINTS.value != "all":
    limits.refuse("--viewpoints", ["num_validation"])
