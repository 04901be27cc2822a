"""Pure functions on one example: routing, poses, rendering, energies.

They own no parameters and no state; `jax.vmap`, `jax.jit` and `jax.grad` them.
Arrays of other shapes than those that are annotated, empty ones and whole
numbers are refused by one sentence, a ValueError or TypeError; see `checks`.
"""

from kernels import compilation

# Before anything is computed.
compilation.keep_reductions()

from kernels import (  # noqa: E402
  checks,
  energy,
  geometry,
  matching,
  numerics,
  rendering,
  routing,
)

__all__ = [
  "checks",
  "compilation",
  "energy",
  "geometry",
  "matching",
  "numerics",
  "rendering",
  "routing",
]
