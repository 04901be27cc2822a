"""Rendering: templates warped by poses, and images as mixtures of them."""

from kernels.rendering import (
  compositing,
  mixture,
  warping,
)
from kernels.rendering.mixture import (
  ImageMixture,
  explain_image,
)
from kernels.rendering.warping import (
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
