"""Pure functions on one example: routing, poses, rendering, energies.

They own no parameters and no state, and work under `jax.vmap`, `jax.jit` and
`jax.grad`.

Arrays of integers, and lists in place of arrays, raise a TypeError. Arrays that
are empty or do not have the annotated shape raise a ValueError; see `checks`.
Where the annotation leaves the shape open ("..." or "*batch"), arrays may be
empty if the result of empty ones is defined. Docstrings list under Raises what
a function checks besides. `energy.families` and `energy.annealing` do not check
arrays.
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
