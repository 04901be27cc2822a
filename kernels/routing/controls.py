"""Controls: routings that any other routing should be better than.

Axes: I parts (children) below, J objects (parents) above, D pose of an object.
One example, no batch axis: `jax.vmap` adds it.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from . import linear_votes
from .linear_votes import LinearVotes
from .output import RoutingOutput


def uniform_routing(
  votes: Float[Array, "I J D"] | LinearVotes,
  *,
  bias: Float[Array, "J D"] | None = None,
) -> RoutingOutput:
  """Divides every part evenly among the parents (a control; Paik et al., 2019).

  With u_ij the votes, c_ij = 1 / J and v_j = squash(sum_i c_ij u_ij + bias_j):
  dynamic routing (Sabour et al., 2017, Procedure 1) with one iteration.

  Args:
    votes: the predictions u_ij of part i for the pose of parent j; in float32
      of magnitude up to 1e35, and up to 1e8 as two factors.
    bias: added before squashing.

  Returns:
    Poses v_j, activations |v_j|, and the coefficients 1 / J.

  Differs from paper: the pose is squashed, so that activations are lengths, in
  place of the loss on unsquashed poses.
  """
  linear_votes.check(votes, {"bias": (bias, "J D")})
  return linear_votes.route_by_agreement(
    votes, lambda scores: scores, num_iterations=1, bias=bias
  )


def top1_routing(
  votes: Float[Array, "I J D"] | LinearVotes,
  *,
  num_iterations: int = 3,
  bias: Float[Array, "J D"] | None = None,
) -> RoutingOutput:
  """Gives every part to the parent that it agrees with most.

  The limit of dynamic routing (Sabour et al., 2017, Procedure 1) for large
  logits: with u_ij the votes and V_j the sum of the outputs v_j of the
  iterations before,
    c_ij = 1 where j = argmax_j <u_ij, V_j>, else 0,
    v_j = squash(sum_i c_ij u_ij + bias_j).
  In the first iteration every part is divided evenly among the parents. Of
  parents that agree equally, the first is chosen.

  Args:
    votes: the predictions u_ij of part i for the pose of parent j; in float32
      of magnitude up to 1e35, and up to 1e17 for finite gradients.
    num_iterations: at least 1; with 1 it is `uniform_routing`.
    bias: added before squashing.

  Returns:
    Poses v_j, activations |v_j|, and the coefficients of the last iteration.

  Raises:
    ValueError: if `num_iterations` is below 1.

  Differs from paper: argmax for softmax. It has no derivative, so gradients are
  those of the last iteration with its choices fixed.
  """
  linear_votes.check(votes, {"bias": (bias, "J D")})

  def couple(scores):
    best = jnp.argmax(scores, axis=1)
    return jax.nn.one_hot(best, scores.shape[1], dtype=scores.dtype)

  return linear_votes.route_by_agreement(
    votes, couple, num_iterations=num_iterations, bias=bias
  )
