"""Routing by attention: a softmax of scores over parents, with no clustering.

Self-attention scores a vote by its agreement with all votes for that parent,
inverted attention by its agreement with the parent, self-routing by a separate
network for each child.

In float32 values are finite for arguments of magnitude up to 1e17, or up to
1e35 for votes alone. Gradients are finite for arguments up to 1e17; for
inverted attention, and for votes as two factors, up to 1e6.

Axes: I parts (children) below, J objects (parents) above, C pose of a part,
D pose of an object. One example, no batch axis: `jax.vmap` adds it.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import checks, numerics
from . import linear_votes
from .linear_votes import LinearVotes
from .output import RoutingOutput

# Parts whose activations sum to less than this count as absent.
_ABSENT = 1e-6


def self_attention_routing(
  votes: Float[Array, "I J D"] | LinearVotes,
  *,
  priors: Float[Array, "I J"] | None = None,
  bias: Float[Array, "J D"] | None = None,
) -> RoutingOutput:
  """Routes by self-attention, in one pass (Mazzia et al., 2021).

  With u_ij the votes,
    c_ij = softmax_j(sum_i' <u_ij, u_i'j> / sqrt(D)) + b_ij,
    s_j = sum_i c_ij u_ij + bias_j,  v_j = exponential_squash(s_j).
  No [I I] array is needed: the sum over i' is <u_ij, sum_i' u_i'j>.

  Args:
    votes: the predictions u_ij of part i for the pose of parent j.
    priors: b_ij, learned, of any sign; none by default.
    bias: added to s_j before squashing, as in dynamic routing.

  Returns:
    Poses v_j, activations |v_j|, and the coefficients c_ij, which sum to 1 over
    parents; with `priors` to 1 + sum_j b_ij, and may then leave [0, 1].

  Differs from paper: `bias`, zero there. The authors' code divides by the root
  of the size of the votes, which we follow, and adds b_ij after the softmax.
  """
  linear_votes.check(votes, {"priors": (priors, "I J"), "bias": (bias, "J D")})
  agreement, weighted_sum = linear_votes.contractions(votes)
  sum_of_votes = weighted_sum(jnp.ones(votes.shape[:2], votes.dtype))
  # Scores are as large as squares of votes.
  excess = numerics.excess(sum_of_votes)
  scores = agreement(sum_of_votes / (excess * math.sqrt(votes.shape[2])))
  coefficients = numerics.softmax(scores, 1, scale=excess)
  if priors is not None:
    coefficients += priors
  total_input = weighted_sum(coefficients)
  if bias is not None:
    total_input += bias
  poses = numerics.exponential_squash(total_input)
  return linear_votes.output(
    votes, poses, numerics.safe_norm(poses), coefficients
  )


def inverted_attention_routing(
  votes: Float[Array, "I J D"] | LinearVotes,
  readout: Float[Array, " D"],
  *,
  num_iterations: int = 2,
  scale: Float[Array, " D"] | None = None,
  offset: Float[Array, "J D"] | None = None,
  gradient: str = "all",
) -> RoutingOutput:
  """Routes by inverted dot-product attention (Tsai et al., 2020, Procedure 1).

  Parents compete for children, whereas in ordinary attention keys compete for a
  query. In each iteration, with u_ij the votes and v_j the previous poses,
    r_ij = softmax_j(<v_j, u_ij> / sqrt(D)),
    v_j = scale LayerNorm(sum_i r_ij u_ij) + offset_j,
  with v_j = 0 before the first iteration, in which every part is divided evenly
  among the parents.

  Args:
    votes: the predictions u_ij of part i for the pose of parent j; D above 1.
    readout: the classifier that all parents share.
    num_iterations: at least 1; the paper's best networks use 2.
    scale: scale of the layer norm, one by default.
    offset: offset of the layer norm, zero by default.
    gradient: "all" for gradients through all iterations; "last" for those of
      the last update of v_j alone, with r_ij as constants.

  Returns:
    Poses v_j, activations sigmoid(<readout, v_j>), and the coefficients r_ij of
    the last iteration, which sum to 1 over parents.

  Raises:
    ValueError: if `num_iterations` is below 1, `gradient` is unknown, or D is
      1, where the layer norm is always 0.

  Differs from paper: scores are divided by sqrt(D), as in the authors' code.
  The softmax of <readout, v_j> over classes becomes a sigmoid, so that several
  objects may be present; `offset` takes the place of the classifier's bias; the
  paper shares it among parents. A single layer has no concurrent updates.
  """
  linear_votes.check(
    votes,
    {
      "readout": (readout, "D"),
      "scale": (scale, "D"),
      "offset": (offset, "J D"),
    },
  )
  num_parts, num_parents, pose_size = votes.shape
  linear_votes.require_iterations(num_iterations, gradient=gradient)
  linear_votes.require_normalisable(pose_size)
  agreement, weighted_sum = linear_votes.contractions(votes)

  def update(coefficients):
    poses = numerics.layer_norm(weighted_sum(coefficients))
    if scale is not None:
      poses *= scale
    return poses if offset is None else poses + offset

  coefficients = jnp.full(
    (num_parts, num_parents), 1 / num_parents, votes.dtype
  )
  poses = update(coefficients)
  for _ in range(num_iterations - 1):
    scores = agreement(poses) / math.sqrt(pose_size)
    coefficients = numerics.softmax(scores, 1)
    if gradient == "last":
      coefficients = jax.lax.stop_gradient(coefficients)
    poses = update(coefficients)
  logits = numerics.einsum("jd,d->j", poses, readout)
  return linear_votes.output(votes, poses, jax.nn.sigmoid(logits), coefficients)


def self_routing(
  votes: Float[Array, "I J D"] | LinearVotes,
  logits: Float[Array, "I J"],
  activations: Float[Array, " I"],
) -> RoutingOutput:
  """Routes each part by a network of its own (Hahn et al., 2019).

  A mixture of experts, without agreement: with u_ij the votes,
    c_ij = softmax_j(logits_ij),  a_j = sum_i c_ij a_i / sum_i a_i,
    v_j = sum_i c_ij a_i u_ij / sum_i c_ij a_i.

  Args:
    votes: the predictions u_ij of part i for the pose of parent j.
    logits: output of the routing network of part i for its pose; in the paper
      this network is linear.
    activations: a_i of the parts, >= 0.

  Returns:
    Poses v_j, and activations a_j and coefficients c_ij, which both sum to 1
    over parents.

  Raises:
    ValueError: if a known activation is below 0.

  Differs from paper: where a denominator would fall below 1e-6, it is 1e-6, so
  that absent parts give absent parents with pose 0; the authors' code gives NaN
  there.
  """
  linear_votes.check(
    votes, {"logits": (logits, "I J"), "activations": (activations, "I")}
  )
  checks.values(0.0, math.inf, activations=activations)
  _, weighted_sum = linear_votes.contractions(votes)
  dtype = numerics.accumulation_dtype(logits, activations)
  logits, activations = logits.astype(dtype), activations.astype(dtype)
  coefficients = numerics.softmax(logits, 1)
  weights = coefficients * activations[:, None]
  mass = jnp.sum(weights, axis=0)
  poses = weighted_sum(weights) / jnp.maximum(mass, _ABSENT)[:, None]
  shares = mass / jnp.maximum(jnp.sum(activations), _ABSENT)
  return linear_votes.output(votes, poses, shares, coefficients)
