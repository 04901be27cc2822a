"""The stacked capsule autoencoder and its constellation counterpart."""

from capjax.scae import (
  autoencoder,
  constellation,
  objects,
  parts,
  templates,
  voting,
)
from capjax.scae.autoencoder import (
  SCAE,
  SCRIPT_WEIGHTS,
  SCAEOutput,
  Weights,
  flat_templates,
  loss,
  object_masks,
  reconstruct,
  shares_won,
)
from capjax.scae.constellation import (
  ConstellationAutoencoder,
)

__all__ = [
  "ConstellationAutoencoder",
  "SCAE",
  "SCAEOutput",
  "SCRIPT_WEIGHTS",
  "Weights",
  "autoencoder",
  "constellation",
  "flat_templates",
  "loss",
  "object_masks",
  "objects",
  "parts",
  "reconstruct",
  "shares_won",
  "templates",
  "voting",
]
