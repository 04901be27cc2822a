"""Pure functions on one example: routing, poses, rendering, energies.

They own no parameters and no state; `jax.vmap`, `jax.jit` and `jax.grad` them.
"""

from kernels import compilation

# Before anything is computed.
compilation.keep_reductions()

from kernels import (  # noqa: E402
  annealing,
  attention,
  compositing,
  em,
  em_convolution,
  em_windows,
  energy,
  families,
  gcm,
  geometry,
  likelihood,
  numerics,
  ransac,
  rendering,
  routing,
  selection,
  sparsity,
  variational,
)

__all__ = [
  "annealing",
  "attention",
  "compilation",
  "compositing",
  "em",
  "em_convolution",
  "em_windows",
  "energy",
  "families",
  "gcm",
  "geometry",
  "likelihood",
  "numerics",
  "ransac",
  "rendering",
  "routing",
  "selection",
  "sparsity",
  "variational",
]
