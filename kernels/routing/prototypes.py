"""Routing by prototypes: parts go to the parents whose prototypes are near.

Axes: I parts (children) below, J objects (parents) above, D pose of an object,
S shared space of parts and prototypes. One example: `jax.vmap` adds a batch.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import checks, numerics
from . import linear_votes
from .linear_votes import LinearVotes
from .output import RoutingOutput


def prototype_routing(
  votes: Float[Array, "I J D"] | LinearVotes,
  embeddings: Float[Array, "I S"],
  prototypes: Float[Array, "J S"],
  *,
  bias: Float[Array, "J D"] | None = None,
) -> RoutingOutput:
  """Routes by distance to trained prototypes (after Everett et al., 2023).

  One pass, without agreement. One projection, shared by all parents, takes the
  parts to a space in which every parent has a prototype. With u_ij the votes,
  z_i the projected parts and q_j the prototypes,
    c_ij = softmax_j(-|z_i - q_j|^2),
    v_j = squash(sum_i c_ij u_ij + bias_j).

  Args:
    votes: the predictions u_ij of part i for the pose of parent j; in float32
      of magnitude up to 1e17, and up to 1e8 as two factors.
    embeddings: z_i; of magnitude up to 1e8, the same as the prototypes.
    prototypes: q_j, learned.
    bias: added before squashing.

  Returns:
    Poses v_j, activations |v_j|, and the coefficients c_ij, which sum to 1 over
    parents.

  Differs from paper: it follows the idea of ProtoCaps, trained prototypes in a
  shared space in place of iterations; that coefficients are a softmax of
  squared distances, and activations lengths, is our choice. The paper's parents
  are made in the shared space too, as by `shared_prototype_routing`; here they
  are sums of the layer's votes.
  """
  linear_votes.check(
    votes,
    {
      "embeddings": (embeddings, "I S"),
      "prototypes": (prototypes, "J S"),
      "bias": (bias, "J D"),
    },
  )
  _, weighted_sum = linear_votes.contractions(votes)
  dtype = numerics.accumulation_dtype(embeddings, prototypes)
  steps = embeddings.astype(dtype)[:, None] - prototypes.astype(dtype)
  coefficients = numerics.softmax(-jnp.sum(jnp.square(steps), axis=2), 1)
  return _parents(votes, weighted_sum(coefficients), coefficients, bias)


def shared_prototype_routing(
  votes: Float[Array, "I D"],
  prototypes: Float[Array, "J D"],
  *,
  concentration: numerics.Scalar = 10.0,
  bias: Float[Array, "J D"] | None = None,
) -> RoutingOutput:
  """Routes votes that all parents share (after Everett et al., 2023).

  One pass, without agreement. A part has one vote, in the space of the parents'
  poses, where every parent has a prototype; a pair of part and parent needs no
  matrix. With u_i the votes, q_j the prototypes and kappa the concentration,
    c_ij = softmax_j(kappa <u_i, q_j> / (|u_i| |q_j|)),
    v_j = squash(sum_i c_ij u_i + bias_j).
  The c_ij are the responsibilities of a mixture of von Mises-Fisher
  distributions with equal weights and this concentration, about the directions
  of the prototypes.

  Args:
    votes: the predictions u_i of part i, the same for all parents; in float32
      of magnitude up to 1e17. A vote of zero is divided evenly among the
      parents, and adds nothing.
    prototypes: q_j, learned; of magnitude up to 1e17.
    concentration: kappa >= 0; with 0 every part is divided evenly among the
      parents.
    bias: added before squashing.

  Returns:
    Poses v_j, activations |v_j|, and the coefficients c_ij, which sum to 1 over
    parents.

  Raises:
    TypeError: if the concentration is no number.
    ValueError: if it is negative or not finite.

  Differs from paper: it follows the idea of ProtoCaps, trained prototypes in a
  shared space in place of iterations and of a matrix for each pair. That
  coefficients are a softmax of cosines, and activations lengths, is our choice.
  """
  checks.arrays(
    {
      "votes": (votes, "I D"),
      "prototypes": (prototypes, "J D"),
      "bias": (bias, "J D"),
    }
  )
  checks.within(0.0, math.inf, concentration=concentration)
  dtype = numerics.accumulation_dtype(votes, prototypes)
  x, q = votes.astype(dtype), prototypes.astype(dtype)
  cosines = numerics.einsum(
    "id,jd->ij", numerics.unit_vectors(x), numerics.unit_vectors(q)
  )
  coefficients = numerics.softmax(concentration * cosines, 1)
  total = numerics.einsum("id,ij->jd", x, coefficients)
  return _parents(votes, total, coefficients, bias)


def _parents(votes, total, coefficients, bias):
  poses = numerics.squash(total if bias is None else total + bias)
  lengths = numerics.safe_norm(poses)
  return linear_votes.output(votes, poses, lengths, coefficients)
