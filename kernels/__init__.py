"""Pure functions on one example: routing, poses, rendering, energies.

They own no parameters and no state, and work under `jax.vmap`, `jax.jit` and
`jax.grad`. Arrays that are empty or do not have the annotated shape raise a
ValueError, arrays of integers a TypeError; see `checks`.
"""

from . import compilation

# Called before JAX computes anything.
compilation.keep_reductions()

from . import (  # noqa: E402
  broadcasting,
  checks,
  energy,
  geometry,
  matching,
  numerics,
  rendering,
  routing,
  sharding,
)

__all__ = [
  "broadcasting",
  "checks",
  "compilation",
  "energy",
  "geometry",
  "matching",
  "numerics",
  "rendering",
  "routing",
  "sharding",
]
