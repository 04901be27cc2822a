"""Sparse attention between orthogonal views of votes, and pruning of parts.

Axes: I parts (children) below, J objects (parents) above, C pose of a part,
D pose of an object, K reflections. One example: `jax.vmap` adds a batch.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import checks, numerics, sharding
from . import linear_votes
from .linear_votes import LinearVotes
from .output import RoutingOutput


def sparse_attention_routing(
  votes: Float[Array, "I J D"] | LinearVotes,
  *,
  kept: Float[Array, " I"] | None = None,
  keys: Float[Array, "D D"] | None = None,
  values: Float[Array, "D D"] | None = None,
  bias: Float[Array, "J D"] | None = None,
) -> RoutingOutput:
  """Routes by sparse self-attention of kept parts (after Geng et al., 2024).

  The shallow form of OrthCaps, in one pass: the self-attention of
  `attention.self_attention_routing` with a sparse softmax over parents. With
  u_ij the votes and m_i whether part i is kept,
    c_ij = entmax_j(<u_ij, keys sum_i' m_i' u_i'j> / sqrt(D)),
    v_j = squash((sum_i m_i c_ij u_ij) values + bias_j).

  Args:
    votes: the predictions u_ij of part i for the pose of parent j; in float32
      of magnitude up to 1e8, and up to 1e4 as two factors.
    kept: m_i, 1 or 0, as from `prune`; all by default.
    keys: an orthogonal matrix, as from `householder`; the identity by default.
      It stands for the product of the matrices of queries and of keys.
    values: the same for values.
    bias: added before squashing.

  Returns:
    Poses v_j, activations |v_j|, and the coefficients c_ij, which sum to 1 over
    parents and are often exactly 0.

  Differs from paper: we chose which of its matrices the shallow form shares.
  The layer's own matrices W_ij make the votes, and only `keys` and `values` are
  orthogonal. Poses are squashed as in Sabour et al. (2017).
  """
  linear_votes.check(
    votes,
    {
      "kept": (kept, "I"),
      "keys": (keys, "D D"),
      "values": (values, "D D"),
      "bias": (bias, "J D"),
    },
  )
  agreement, weighted_sum = linear_votes.contractions(votes)
  num_parts, num_parents, pose_size = votes.shape
  dtype = numerics.accumulation_dtype(*jax.tree.leaves(votes))
  present = jnp.ones(num_parts, dtype) if kept is None else kept.astype(dtype)
  mask = jnp.broadcast_to(present[:, None], (num_parts, num_parents))
  sums = weighted_sum(mask)
  if keys is not None:
    sums = numerics.einsum("jd,ed->je", sums, keys.astype(dtype))
  coefficients = entmax15(agreement(sums / math.sqrt(pose_size)))
  total = weighted_sum(mask * coefficients)
  if values is not None:
    total = numerics.einsum("jd,de->je", total, values.astype(dtype))
  poses = numerics.squash(total if bias is None else total + bias)
  lengths = numerics.safe_norm(poses)
  return linear_votes.output(votes, poses, lengths, coefficients)


def prune(
  poses: Float[Array, "I C"],
  *,
  threshold: numerics.Scalar = 0.7,
  centre: Float[Array, " C"] | None = None,
) -> Float[Array, " I"]:
  """Finds the parts that are unlike all longer ones (after Geng et al., 2024).

  Part i is redundant if the cosine of its pose and that of a longer part is
  above the threshold; length is importance. Of equally long parts the first
  counts as the longest. A redundant part can make others redundant.

  Args:
    poses: of the parts.
    threshold: of the cosine, in [-1, 1].
    centre: subtracted from poses before cosines are taken, but not for lengths;
      zero by default. A component that all poses share, such as a bias, would
      otherwise make all parts alike.

  Returns:
    1 for parts to keep, 0 for redundant ones; the gradient is 0. Memory is
    O(I^2) for each example.

  Raises:
    TypeError: if the threshold is no number.
    ValueError: if it is out of its range.

  Differs from paper: the rule and its threshold follow the description of a
  layer that discards redundant capsules, not the authors' code; all pairs are
  compared at once.
  """
  checks.arrays({"poses": (poses, "I C"), "centre": (centre, "C")})
  checks.within(-1.0, 1.0, threshold=threshold)
  x = jax.lax.stop_gradient(poses)
  x = numerics.widen(x)
  lengths = numerics.safe_norm(x)
  y = x if centre is None else x - jax.lax.stop_gradient(centre)
  units = numerics.unit_vectors(y)
  cosines = numerics.einsum("ic,kc->ik", units, units)
  alike = jnp.minimum(cosines, 1) > threshold  # 1 may be rounded up
  order = jnp.arange(len(x))
  first = (lengths == lengths[:, None]) & (order < order[:, None])
  longer = (lengths > lengths[:, None]) | first
  return 1 - jnp.any(alike & longer, axis=1).astype(jnp.result_type(poses))


def householder(vectors: Float[Array, "K D"]) -> Float[Array, "D D"]:
  """Makes an orthogonal matrix of reflections (Householder, 1958).

  H = prod_k (I - 2 w_k w_k' / |w_k|^2), the first on the left.

  Args:
    vectors: w_k, of magnitude up to 1e17 in float32; a zero vector reflects
      nothing.

  Returns:
    H, orthogonal for all vectors.

  Differs from paper: nothing; K = D reflections make every orthogonal matrix
  whose determinant is (-1)^D.
  """
  checks.arrays({"vectors": (vectors, "K D")})
  dtype = numerics.accumulation_dtype(vectors)
  given, vectors = jnp.result_type(vectors), vectors.astype(dtype)
  units = numerics.unit_vectors(vectors)

  def reflect(matrix, unit):
    along = numerics.einsum("de,e->d", matrix, unit)
    return matrix - 2 * along[:, None] * unit, None

  start = sharding.vary_alike(jnp.eye(vectors.shape[1], dtype=dtype), units)
  return jax.lax.scan(reflect, start, units)[0].astype(given)


def entmax15(x: Float[Array, "I J"]) -> Float[Array, "I J"]:
  """Computes 1.5-entmax along the last axis (Peters et al., 2019, Algorithm 2).

  A softmax with exact zeros: p_j = max(x_j / 2 - tau, 0)^2, where tau makes the
  sum 1.

  Args:
    x: finite scores.

  Returns:
    Shares in [0, 1], which sum to 1.

  Differs from paper: nothing; the derivative is its equation for the Jacobian,
  not that of the algorithm's steps.
  """
  checks.arrays({"x": (x, "I J")})
  dtype = numerics.accumulation_dtype(x)
  return jnp.square(_roots(x.astype(dtype))).astype(jnp.result_type(x))


@jax.custom_jvp
def _roots(x):
  """Roots of the shares: max(x / 2 - tau, 0)."""
  # After division by 2, scores 1 below the largest get no share: tau >= -1.
  # They are clipped to -2, not to -1, since tau may be rounded to below -1.
  largest = jnp.max(x, axis=1, keepdims=True)
  below = jnp.clip(x / 2 - largest / 2, -2, 0)
  ordered = -jnp.sort(-below, axis=1)
  count = jnp.arange(1, x.shape[1] + 1, dtype=x.dtype)
  mean = jnp.cumsum(ordered, axis=1) / count
  spread = jnp.cumsum(jnp.square(ordered), axis=1) - count * mean**2
  tau = mean - jnp.sqrt(jnp.maximum((1 - spread) / count, 0))
  inside = jnp.maximum(jnp.sum(tau <= ordered, axis=1, keepdims=True), 1)
  tau = jnp.take_along_axis(tau, inside - 1, axis=1)
  roots = jnp.maximum(below - tau, 0)
  return roots / jnp.sqrt(jnp.sum(jnp.square(roots), axis=1, keepdims=True))


@_roots.defjvp
def _roots_jvp(arguments, tangents):
  """Tangent of x / 2 - tau where positive; tau keeps the sum of squares 1."""
  (x,), (step,) = arguments, tangents
  roots = _roots(x)
  step = jnp.where(roots > 0, step / 2, 0.0)
  shift = jnp.sum(roots * step, axis=1, keepdims=True)
  shift /= jnp.sum(roots, axis=1, keepdims=True)
  return roots, jnp.where(roots > 0, step - shift, 0.0)
