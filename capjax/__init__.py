"""Capsule networks: Flax modules and losses on top of `kernels`."""

from capjax import (
  baselines,
  capsnet,
  convolution,
  data,
  efficient_capsnet,
  evaluation,
  layers,
  losses,
  routers,
)
from capjax.capsnet import CapsNet
from capjax.efficient_capsnet import EfficientCapsNet

__all__ = [
  "CapsNet",
  "EfficientCapsNet",
  "baselines",
  "capsnet",
  "convolution",
  "data",
  "efficient_capsnet",
  "evaluation",
  "layers",
  "losses",
  "routers",
]
