"""Routing on a grid: all parents at all positions compete for a part.

Axes: I types of parts, H W grid of positions, J types of objects, D pose of an
object. One example, no batch axis: `jax.vmap` adds it.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import checks
from . import dynamic
from .output import RoutingOutput


def grid_routing(
  votes: Float[Array, "I H W J D"],
  *,
  num_iterations: int = 3,
  bias: Float[Array, "J D"] | None = None,
  gradient: str = "all",
) -> RoutingOutput:
  """Routes votes of 3D convolutions (Rajasegaran et al., 2019, algorithm 1).

  A type i of parts has one vote V_ipqj for the parents of type j at each
  position (p, q), from all of its capsules in the window there. With logits
  b_ipqj = 0 at first, in each iteration
    k_ipqj = exp(b_ipqj) / sum_xyz exp(b_ixyz),  S_pqj = sum_i k_ipqj V_ipqj,
    v_pqj = squash(S_pqj + bias_j),  b_ipqj += <V_ipqj, v_pqj>,
  where the first sum is over all positions and types of parents. This is
  dynamic routing of I parts to H W J parents.

  Args:
    votes: the predictions V_ipqj; in float32 of magnitude up to 1e35, and up to
      1e17 for finite gradients.
    num_iterations: as for `dynamic.dynamic_routing`.
    bias: added to S_pqj before squashing, at all positions the same.
    gradient: as for `dynamic.dynamic_routing`.

  Returns:
    Poses [H W J D], activations [H W J], their lengths, and the coefficients k
    [I H W J] of the last iteration, which sum to 1 over positions and parents.

  Raises:
    ValueError: as `dynamic.dynamic_routing`.

  Differs from paper: it has no bias.
  """
  checks.arrays({"votes": (votes, "I H W J D"), "bias": (bias, "J D")})
  num_parts, height, width, num_objects, pose_size = votes.shape
  if bias is not None:
    bias = jnp.tile(bias, (height * width, 1))
  output = dynamic.dynamic_routing(
    votes.reshape(num_parts, -1, pose_size),
    num_iterations=num_iterations,
    bias=bias,
    gradient=gradient,
  )
  grid = height, width, num_objects
  return RoutingOutput(
    output.poses.reshape(*grid, pose_size),
    output.activations.reshape(grid),
    output.coefficients.reshape(num_parts, *grid),
  )
