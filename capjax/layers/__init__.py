"""Layers: convolutions, capsules of every kind, attention among sets."""

from capjax.layers import (
  attention,
  capsules,
  convolution,
  matrix,
  routers,
  tiling,
)
from capjax.layers.capsules import (
  Conv,
  DenseCaps,
  Fixed,
  PrimaryCaps,
  batch_size,
  route_by_agreement,
)

__all__ = [
  "Conv",
  "DenseCaps",
  "Fixed",
  "PrimaryCaps",
  "attention",
  "batch_size",
  "capsules",
  "convolution",
  "matrix",
  "route_by_agreement",
  "routers",
  "tiling",
]
