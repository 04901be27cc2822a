"""Pure functions on one example: routing, poses, rendering.

They own no parameters and no state; `jax.vmap`, `jax.jit` and `jax.grad` them.
"""

from kernels import (
  attention,
  geometry,
  numerics,
  rendering,
  routing,
  variational,
)

__all__ = [
  "attention",
  "geometry",
  "numerics",
  "rendering",
  "routing",
  "variational",
]
