"""Rendered toys with known viewpoints, in the manner of smallNORB."""

from capjax.data.viewpoint_solids import (
  parts,
  raytracing,
  solids,
  toys,
)

__all__ = [
  "parts",
  "raytracing",
  "solids",
  "toys",
]
