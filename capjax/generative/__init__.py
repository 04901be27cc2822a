"""The probabilistic generative capsule model and inference in it."""

from capjax.generative import (
  amortised,
  guides,
  inference,
  model,
  numpyro_programs,
)
from capjax.generative.model import (
  GenerativeCapsules,
  Layers,
  Relations,
)

__all__ = [
  "GenerativeCapsules",
  "Layers",
  "Relations",
  "amortised",
  "guides",
  "inference",
  "model",
  "numpyro_programs",
]
