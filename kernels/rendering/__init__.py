"""Rendering: templates warped by poses, and images as mixtures of them."""

from . import (
  compositing,
  mixture,
  warping,
)
from .mixture import (
  ImageMixture,
  explain_image,
)
from .warping import (
  transform,
  warp,
)

__all__ = [
  "ImageMixture",
  "compositing",
  "explain_image",
  "mixture",
  "transform",
  "warp",
  "warping",
]
