"""Balanced routing: every parent receives the same mass of parts.

Axes: I parts (children) below, J objects (parents) above, D pose of an object.
One example, no batch axis: `jax.vmap` adds it.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import checks, numerics, sharding
from . import linear_votes
from .linear_votes import LinearVotes
from .output import RoutingOutput

# Least divisor of the masses: no division by 0 if all parts are absent.
_ABSENT = 1e-6


def sinkhorn_routing(
  votes: Float[Array, "I J D"] | LinearVotes,
  *,
  activations: Float[Array, " I"] | None = None,
  num_iterations: int = 3,
  num_sweeps: int = 5,
  temperature: float = 1.0,
  bias: Float[Array, "J D"] | None = None,
  gradient: str = "all",
) -> RoutingOutput:
  """Routes by agreement under a balanced assignment (Cuturi, 2013).

  Dynamic routing (Sabour et al., 2017, Procedure 1) whose coefficients are the
  plan of an entropy-regularised optimal transport: from parts of mass a_i to
  parents that each receive the mass sum_i a_i / J. With u_ij the votes and V_j
  the sum of the outputs v_j of the iterations before, c maximises
    sum_ij a_i c_ij (<u_ij, V_j> - temperature log c_ij)
  where sum_j c_ij = 1 and sum_i a_i c_ij = sum_i a_i / J, and
    v_j = squash(sum_i c_ij u_ij + bias_j).
  Each sweep (Sinkhorn and Knopp, 1967) scales the rows of
  exp(<u_ij, V_j> / temperature), then its columns, to these sums; rows are
  scaled once more at the end. In the first iteration every part is divided
  evenly among the parents.

  Args:
    votes: the predictions u_ij of part i for the pose of parent j; in float32
      of magnitude up to 1e17, and up to 1e8 as two factors.
    activations: a_i >= 0, the masses of the parts; equal by default. Only the
      balance uses them, not the sum of votes: the votes of an absent part must
      already be zero.
    num_iterations: at least 1; with 1 every part is divided evenly among the
      parents.
    num_sweeps: at least 0; with 0, and a temperature of 1, this is dynamic
      routing.
    temperature: > 0, of the entropy, in units of <u_ij, V_j>.
    bias: added before squashing.
    gradient: "all" for gradients through all iterations; "last" for those of
      the last weighted sum alone, with c_ij as constants.

  Returns:
    Poses v_j, activations |v_j|, and the coefficients c_ij of the last
    iteration, which sum to 1 over parents.

  Raises:
    ValueError: if an option, or a known activation, is out of its range.

  Differs from paper: the plan routes capsules, which the paper does not
  consider. Sweeps are in logarithms, and their number is fixed: sums over
  parts are near the balanced ones, not equal to them.
  """
  linear_votes.check(
    votes, {"activations": (activations, "I"), "bias": (bias, "J D")}
  )
  checks.values(0.0, math.inf, activations=activations)
  checks.counts(at_least=0, num_sweeps=num_sweeps)
  checks.positive(temperature=temperature)
  dtype = numerics.accumulation_dtype(*jax.tree.leaves(votes))
  if activations is None:
    masses = jnp.ones(votes.shape[0], dtype)
  else:
    masses = activations.astype(dtype)
    masses /= jnp.maximum(jnp.max(masses), _ABSENT)

  def couple(scores):
    logits = scores / temperature
    offsets = jnp.zeros(logits.shape[1], logits.dtype)
    offsets = sharding.vary_alike(offsets, logits, masses)

    def sweep(_, offsets):
      shares = numerics.log_softmax(logits + offsets, 1)
      return offsets - _log_mass(shares, masses)

    # A loop: on a CPU the gradient of unrolled sweeps takes three times as
    # long.
    offsets = jax.lax.fori_loop(0, num_sweeps, sweep, offsets)
    return numerics.softmax(logits + offsets, 1)

  return linear_votes.route_by_agreement(
    votes,
    couple,
    num_iterations=num_iterations,
    bias=bias,
    gradient=gradient,
  )


def _log_mass(log_shares, masses):
  """Logarithms [J] of sum_i a_i e^(log c_ij); 0 where no part has mass."""
  present = masses[:, None] > 0
  top = jnp.max(jnp.where(present, log_shares, -jnp.inf), axis=0)
  top = jax.lax.stop_gradient(jnp.where(top == -jnp.inf, 0.0, top))
  total = jnp.sum(masses[:, None] * numerics.exp_below(log_shares, top), axis=0)
  return top + jnp.log(jnp.where(total > 0, total, 1.0))
