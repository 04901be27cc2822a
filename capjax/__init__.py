"""Capsule networks: Flax modules and losses on top of `kernels`."""

from capjax import (
  amortised,
  baselines,
  boltzmann,
  capsnet,
  constellation,
  convolution,
  data,
  efficient_capsnet,
  evaluation,
  generative,
  guides,
  helmholtz,
  inference,
  layers,
  losses,
  matrix_capsules,
  matrix_layers,
  object_capsules,
  part_capsules,
  programs,
  routers,
  scae,
  set_transformer,
  specs,
  tiling,
  transforming,
  voting,
  wake_sleep,
)
from capjax.boltzmann import CapsuleRBM
from capjax.capsnet import CapsNet
from capjax.constellation import ConstellationAutoencoder
from capjax.efficient_capsnet import EfficientCapsNet
from capjax.generative import GenerativeCapsules
from capjax.helmholtz import CapsuleHM
from capjax.matrix_capsules import MatrixCapsules
from capjax.scae import SCAE
from capjax.set_transformer import SetTransformer
from capjax.transforming import TransformingAutoencoder

__all__ = [
  "CapsNet",
  "CapsuleHM",
  "CapsuleRBM",
  "ConstellationAutoencoder",
  "EfficientCapsNet",
  "GenerativeCapsules",
  "MatrixCapsules",
  "SCAE",
  "SetTransformer",
  "TransformingAutoencoder",
  "amortised",
  "baselines",
  "boltzmann",
  "capsnet",
  "constellation",
  "convolution",
  "data",
  "efficient_capsnet",
  "evaluation",
  "generative",
  "guides",
  "helmholtz",
  "inference",
  "layers",
  "losses",
  "matrix_capsules",
  "matrix_layers",
  "object_capsules",
  "part_capsules",
  "programs",
  "routers",
  "scae",
  "set_transformer",
  "specs",
  "tiling",
  "transforming",
  "voting",
  "wake_sleep",
]
