"""Capsule networks: Flax modules and losses on top of `kernels`."""

from capjax import (
  baselines,
  boltzmann,
  capsnet,
  convolution,
  data,
  efficient_capsnet,
  evaluation,
  helmholtz,
  layers,
  losses,
  routers,
)
from capjax.boltzmann import CapsuleRBM
from capjax.capsnet import CapsNet
from capjax.efficient_capsnet import EfficientCapsNet
from capjax.helmholtz import CapsuleHM

__all__ = [
  "CapsNet",
  "CapsuleHM",
  "CapsuleRBM",
  "EfficientCapsNet",
  "baselines",
  "boltzmann",
  "capsnet",
  "convolution",
  "data",
  "efficient_capsnet",
  "evaluation",
  "helmholtz",
  "layers",
  "losses",
  "routers",
]
