"""Capsule networks: Flax modules and losses on top of `kernels`."""

from capjax import (
  baselines,
  capsnet,
  convolution,
  data,
  layers,
  losses,
)
from capjax.capsnet import CapsNet

__all__ = [
  "CapsNet",
  "baselines",
  "capsnet",
  "convolution",
  "data",
  "layers",
  "losses",
]
