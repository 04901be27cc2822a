"""Pure functions on one example: routing, poses, rendering, energies.

They own no parameters and no state; `jax.vmap`, `jax.jit` and `jax.grad` them.
"""

from kernels import (
  annealing,
  attention,
  em,
  em_convolution,
  em_windows,
  energy,
  families,
  geometry,
  numerics,
  rendering,
  routing,
  variational,
)

__all__ = [
  "annealing",
  "attention",
  "em",
  "em_convolution",
  "em_windows",
  "energy",
  "families",
  "geometry",
  "numerics",
  "rendering",
  "routing",
  "variational",
]
