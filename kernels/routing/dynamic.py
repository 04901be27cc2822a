"""Dynamic routing by agreement (Sabour, Frosst and Hinton, 2017).

Axes: I parts (children) below, J objects (parents) above, C pose of a part,
D pose of an object. One example, no batch axis: `jax.vmap` adds it.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import checks, numerics, sharding
from . import linear_votes
from .output import RoutingOutput


def dynamic_routing(
  votes: Float[Array, "I J D"],
  *,
  num_iterations: int = 3,
  bias: Float[Array, "J D"] | None = None,
  leaky: bool = False,
  gradient: str = "all",
) -> RoutingOutput:
  """Routes votes by agreement (Sabour et al., 2017, Procedure 1).

  In each iteration r, with u_ij the votes and V_j the sum of the outputs v_j of
  the iterations before,
    c_ij = softmax_j <u_ij, V_j>,  s_j = sum_i c_ij u_ij + bias_j,
    v_j = squash(s_j).
  Since the paper's logits start at zero and gain <u_ij, v_j> each time,
  b_ij = <u_ij, V_j>: the state between iterations is V [J D], not b [I J].

  >>> votes = jnp.array([[[1.0, 0.0]] * 2, [[1.0, 0.0], [-1.0, 0.0]]])
  >>> output = dynamic_routing(votes)  # two parts agree about parent 0
  >>> print(output.activations.round(2), output.coefficients.sum(axis=1))
  [0.69 0.  ] [1. 1.]

  Args:
    votes: the predictions u_ij of part i for the pose of parent j; in float32
      of magnitude up to 1e35, and up to 1e17 for finite gradients.
    num_iterations: at least 1; with 1 every part is divided evenly among the
      parents.
    bias: added to s_j before squashing, as the authors' code does.
    leaky: adds an orphan parent with logit 0, which takes parts that agree with
      no parent; its column is dropped (the authors' CIFAR-10 network).
    gradient: "all" for gradients through all iterations, as in the authors'
      code; "last" for those of the last weighted sum alone, whose c_ij count as
      constants, as in several other codes. Values are the same.

  Returns:
    Poses v_j, activations |v_j|, and the coefficients c_ij of the last
    iteration, which sum to 1 over parents (to less than 1 if leaky).

  Raises:
    ValueError: if `num_iterations` is below 1 or `gradient` is unknown.

  Differs from paper: nothing; the paper does not say through which iterations
  gradients flow.
  """
  checks.arrays({"votes": (votes, "I J D"), "bias": (bias, "J D")})
  dtype = jnp.result_type(votes)
  votes = numerics.widen(votes)

  def coefficients(consensus):
    shares = _couple(numerics.einsum("ijd,jd->ij", votes, consensus), leaky)
    return jax.lax.stop_gradient(shares) if gradient == "last" else shares

  def total_input(consensus):
    return numerics.einsum("ij,ijd->jd", coefficients(consensus), votes)

  return _route(
    jnp.sum(votes, axis=0),
    total_input,
    coefficients,
    num_iterations=num_iterations,
    bias=bias,
    leaky=leaky,
    gradient=gradient,
    dtype=dtype,
  )


def transform_and_route(
  poses: Float[Array, "I C"],
  transforms: Float[Array, "I J C D"],
  *,
  num_iterations: int = 3,
  bias: Float[Array, "J D"] | None = None,
  leaky: bool = False,
  gradient: str = "all",
  chunk_size: int = 192,
  parents_at_once: int = 1,
) -> RoutingOutput:
  """Routes votes u_ij = u_i W_ij that are never stored (Sabour et al., 2017).

  Equal to `dynamic_routing` of `einsum("ic,ijcd->ijd", poses, transforms)`.
  Votes enter only through
    <u_ij, V_j> = <u_i, W_ij V_j>  and  s_j = sum_i (c_ij u_i) W_ij,
  for each parent two matrix products that all examples share under `vmap`. The
  parts come in chunks, and the backward pass computes each chunk again: beside
  inputs, outputs and rearranged copies of both, memory holds
  O(J D + chunk_size (J + parents_at_once C)) numbers an example, not O(I J D).

  Args:
    poses: outputs u_i of the parts; in float32 of magnitude up to 1e17, the
      same as transforms, and up to 1e8 for finite gradients.
    transforms: matrices W_ij from the pose of part i to that of parent j.
    num_iterations: as for `dynamic_routing`.
    bias: as for `dynamic_routing`.
    leaky: as for `dynamic_routing`.
    gradient: as for `dynamic_routing`.
    chunk_size: parts handled at a time, at least 1.
    parents_at_once: parents handled at a time, at least 1. Accelerators are
      fastest with all at once. A CPU is fastest with one if it computes a
      gradient; else with all, up to about 16. The parts and transforms handled
      at a time should fit the cache of the CPU.

  Returns:
    As `dynamic_routing`.

  Raises:
    ValueError: if `num_iterations`, `chunk_size` or `parents_at_once` is below
      1, or `gradient` is unknown.

  Differs from paper: only in the order of summation.
  """
  checks.arrays(
    {
      "poses": (poses, "I C"),
      "transforms": (transforms, "I J C D"),
      "bias": (bias, "J D"),
    }
  )
  checks.counts(chunk_size=chunk_size, parents_at_once=parents_at_once)
  dtype = jnp.result_type(poses)
  accumulation = numerics.accumulation_dtype(poses, transforms)
  poses, transforms = (
    poses.astype(accumulation),
    transforms.astype(accumulation),
  )
  num_parts, num_parents, _, pose_size = transforms.shape
  sum_of_votes = numerics.einsum("ic,ijcd->jd", poses, transforms)
  chunks = _chunk(poses, transforms, min(chunk_size, num_parts))

  def for_each_parent(function, *arguments):
    function = jax.checkpoint(function)
    if parents_at_once >= num_parents:
      return function(*arguments)
    batch_size = None if parents_at_once == 1 else parents_at_once
    return jax.lax.map(lambda x: function(*x), arguments, batch_size=batch_size)

  def chunk_coefficients(chunk_poses, chunk_transforms, consensus):
    def agreement(consensus, transforms):
      beliefs = numerics.einsum("...d,...dm->...m", consensus, transforms)
      beliefs = beliefs.reshape(*beliefs.shape[:-1], *chunk_poses.shape)
      return jnp.sum(beliefs * chunk_poses, axis=-2)

    logits = for_each_parent(agreement, consensus, chunk_transforms)
    shares = _couple(logits, leaky, axis=0)
    return jax.lax.stop_gradient(shares) if gradient == "last" else shares

  @jax.checkpoint
  def chunk_input(chunk_poses, chunk_transforms, consensus):
    def weighted_sum(coefficients, transforms):
      weighted = coefficients[..., None, :] * chunk_poses
      weighted = weighted.reshape(*coefficients.shape[:-1], -1)
      return numerics.einsum("...m,...dm->...d", weighted, transforms)

    coefficients = chunk_coefficients(chunk_poses, chunk_transforms, consensus)
    return for_each_parent(weighted_sum, coefficients, chunk_transforms)

  def total_input(consensus):
    def add(total, chunk):
      return total + chunk_input(*chunk, consensus), None

    start = jnp.zeros((num_parents, pose_size), accumulation)
    start = sharding.vary_alike(start, chunks, consensus)
    return jax.lax.scan(add, start, chunks)[0]

  def coefficients(consensus):
    function = jax.checkpoint(chunk_coefficients)
    shares = jax.lax.map(lambda chunk: function(*chunk, consensus), chunks)
    return shares.swapaxes(1, 2).reshape(-1, num_parents)[:num_parts]

  return _route(
    sum_of_votes,
    total_input,
    coefficients,
    num_iterations=num_iterations,
    bias=bias,
    leaky=leaky,
    gradient=gradient,
    dtype=dtype,
  )


def _chunk(poses, transforms, chunk_size):
  """Splits the parts into K chunks of n: poses [K C n], transforms [K J D C*n].

  The last chunk is filled up with zeros: parts with zero votes have no effect.
  """
  missing = -len(poses) % chunk_size
  poses = jnp.pad(poses, ((0, missing), (0, 0)))
  transforms = jnp.pad(transforms, ((0, missing), (0, 0), (0, 0), (0, 0)))
  poses = poses.reshape(-1, chunk_size, poses.shape[1])
  transforms = transforms.reshape(-1, chunk_size, *transforms.shape[1:])
  transforms = transforms.transpose(0, 2, 4, 3, 1)
  return poses.swapaxes(1, 2), transforms.reshape(*transforms.shape[:3], -1)


def _couple(logits, leaky, axis=-1):
  """Softmax over parents; the logit of the orphan parent is 0."""
  top = jnp.max(logits, axis, keepdims=True, initial=0.0 if leaky else -jnp.inf)
  top = jax.lax.stop_gradient(top)
  weights = numerics.exp_below(logits, top)
  total = jnp.sum(weights, axis, keepdims=True)
  if leaky:
    total += numerics.exp_below(jnp.zeros_like(top), top)
  return numerics.share(weights, total)


def _route(
  sum_of_votes: Float[Array, "J D"],
  total_input: Callable[[Float[Array, "J D"]], Float[Array, "J D"]],
  coefficients: Callable[[Float[Array, "J D"]], Float[Array, "I J"]],
  *,
  num_iterations: int,
  bias: Float[Array, "J D"] | None,
  leaky: bool,
  gradient: str,
  dtype: jnp.dtype,
) -> RoutingOutput:
  """Runs the iterations; `total_input` and `coefficients` read the votes."""
  linear_votes.require_iterations(num_iterations, gradient=gradient)
  wide = sum_of_votes.dtype
  bias = jnp.zeros((), wide) if bias is None else bias.astype(wide)
  # With V = 0 each of the J (or J + 1) parents gets the same share.
  poses = numerics.squash(sum_of_votes / (len(sum_of_votes) + leaky) + bias)
  consensus = jnp.zeros_like(poses)
  for _ in range(num_iterations - 1):
    consensus += poses
    if gradient == "last":
      consensus = jax.lax.stop_gradient(consensus)
    poses = numerics.squash(total_input(consensus) + bias)
  output = RoutingOutput(
    poses, numerics.safe_norm(poses), coefficients(consensus)
  )
  return jax.tree.map(lambda x: x.astype(dtype), output)
