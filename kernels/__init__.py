"""Pure functions on one example: routing, poses, rendering.

They own no parameters and no state; `jax.vmap`, `jax.jit` and `jax.grad` them.
"""

from kernels import geometry, numerics, rendering, routing

__all__ = ["geometry", "numerics", "rendering", "routing"]
