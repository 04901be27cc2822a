"""Transforms of one image, or of one pair of images, of a data set."""

from capjax.data.transforms import (
  affnist,
  augment,
  overlap,
  stereo,
)

__all__ = [
  "affnist",
  "augment",
  "overlap",
  "stereo",
]
