"""Energy models of stochastic capsules: capsule RBM, Helmholtz machine."""

from capjax.energy import (
  contrastive,
  helmholtz,
  rbm,
  units,
  wake_sleep,
)
from capjax.energy.helmholtz import (
  CapsuleHM,
)
from capjax.energy.rbm import (
  CapsuleRBM,
)

__all__ = [
  "CapsuleHM",
  "CapsuleRBM",
  "contrastive",
  "helmholtz",
  "rbm",
  "units",
  "wake_sleep",
]
