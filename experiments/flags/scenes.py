"""Flags for images of two objects."""

from absl import flags

from ..training import augmentation

SCENE = flags.DEFINE_enum(
  "scene",
  None,
  list(augmentation.SCENES),
  "How two images of different classes make one: overlaid and shifted, as in "
  "MultiMNIST, or each moved to anywhere on a canvas, as in affNIST.",
)
PAD = flags.DEFINE_integer(
  "pad",
  4,
  "Width in pixels of the black frame around each image, for "
  "--scene=multimnist.",
  lower_bound=0,
  upper_bound=10_000,
)
