"""Capsule networks: Flax modules and losses on top of `kernels`."""

from capjax import _collection, _signatures, _version

with _collection.paused():
  from capjax import (
    baselines,
    capsnet,
    data,
    decoder,
    efficient_capsnet,
    energy,
    evaluation,
    exporting,
    generative,
    kernels,
    layers,
    losses,
    matrix_capsules,
    memory,
    named_tensors,
    predictions,
    pretrained,
    saved,
    scae,
    slot_autoencoder,
    specs,
    transforming,
    weights,
  )
  from capjax.capsnet import CapsNet
  from capjax.efficient_capsnet import EfficientCapsNet
  from capjax.energy import CapsuleHM, CapsuleRBM
  from capjax.generative import GenerativeCapsules
  from capjax.layers.set_transformer import SetTransformer
  from capjax.matrix_capsules import MatrixCapsules
  from capjax.saved import load, save
  from capjax.scae import SCAE, ConstellationAutoencoder
  from capjax.slot_autoencoder import SlotAutoencoder
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
  "SlotAutoencoder",
  "TransformingAutoencoder",
  "baselines",
  "capsnet",
  "data",
  "decoder",
  "efficient_capsnet",
  "energy",
  "evaluation",
  "exporting",
  "generative",
  "kernels",
  "layers",
  "load",
  "losses",
  "matrix_capsules",
  "memory",
  "named_tensors",
  "predictions",
  "pretrained",
  "save",
  "saved",
  "scae",
  "slot_autoencoder",
  "specs",
  "transforming",
  "weights",
]

_signatures.show()
__version__ = _version.installed()
