"""Votes as two factors, for routings that need not store their product.

Axes: I parts (children) below, J objects (parents) above, C pose of a part,
D pose of an object. One example, no batch axis: `jax.vmap` adds it.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import checks, numerics
from .output import RoutingOutput


class LinearVotes(NamedTuple):
  """Votes u_ij = u_i W_ij as two factors.

  Most routings read votes only through <u_ij, V_j> =
  <u_i, W_ij V_j> and sum_i c_ij u_ij = sum_i (c_ij u_i) W_ij. For these,
  `vmap` over examples stores [I J min(C, D)] numbers for each example: fewer
  than the votes [I J D] where C is below D, else as many.

  Attributes:
    poses: [I C], outputs u_i of the parts.
    transforms: [I J C D], matrices W_ij to the pose of parent j.
  """

  poses: Float[Array, "I C"]
  transforms: Float[Array, "I J C D"]

  @property
  def shape(self) -> tuple[int, int, int]:
    """I, J, D: the shape of the votes."""
    num_parts, num_parents, _, pose_size = self.transforms.shape
    return num_parts, num_parents, pose_size

  @property
  def dtype(self) -> jnp.dtype:
    """The dtype of the poses, in which results are returned."""
    return self.poses.dtype


def check(
  votes: Float[Array, "I J D"] | LinearVotes,
  arguments: Mapping[str, tuple[Any, str]],
) -> None:
  """Checks the votes, or their factors, and the other arguments.

  Args:
    votes: u_ij, or their two factors.
    arguments: as for `checks.arrays`.

  Raises:
    TypeError: as `checks.arrays`.
    ValueError: as `checks.arrays`.
  """
  given = {"votes": (votes, "I J D")}
  if isinstance(votes, LinearVotes):
    given = {
      "poses": (votes.poses, "I C"),
      "transforms": (votes.transforms, "I J C D"),
    }
  checks.arrays(given | dict(arguments))


def contractions(
  votes: Float[Array, "I J D"] | LinearVotes,
) -> tuple[Callable[[jax.Array], jax.Array], Callable[[jax.Array], jax.Array]]:
  """The two products through which routings read votes u_ij.

  Args:
    votes: u_ij, or their two factors.

  Returns:
    <u_ij, V_j> [I J] as a function of V [J D], and sum_i c_ij u_ij [J D] as a
    function of c [I J].
  """
  if isinstance(votes, LinearVotes):
    dtype = numerics.accumulation_dtype(*votes)
    poses, transforms = (factor.astype(dtype) for factor in votes)
    return (
      functools.partial(numerics.einsum, "ic,ijcd,jd->ij", poses, transforms),
      functools.partial(numerics.einsum, "ic,ijcd,ij->jd", poses, transforms),
    )
  votes = numerics.widen(votes)
  return (
    functools.partial(numerics.einsum, "ijd,jd->ij", votes),
    functools.partial(numerics.einsum, "ijd,ij->jd", votes),
  )


def route_by_agreement(
  votes: Float[Array, "I J D"] | LinearVotes,
  couple: Callable[[Float[Array, "I J"]], Float[Array, "I J"]],
  *,
  num_iterations: int,
  bias: Float[Array, "J D"] | None = None,
  gradient: str = "all",
) -> RoutingOutput:
  """Runs dynamic routing with a given rule in place of the softmax.

  In each iteration, with u_ij the votes and V_j the sum of the outputs v_j of
  the iterations before (Sabour et al., 2017, Procedure 1),
    c = couple(<u_ij, V_j>),  v_j = squash(sum_i c_ij u_ij + bias_j).
  In the first iteration every part is divided evenly among the parents.

  Args:
    votes: u_ij, or their two factors.
    couple: computes the coefficients c_ij from scores, both [I J].
    num_iterations: at least 1.
    bias: added before squashing.
    gradient: "all" for gradients through all iterations; "last" for those of
      the last weighted sum alone, whose coefficients count as constants.

  Returns:
    Poses v_j, activations |v_j|, and the coefficients of the last iteration.

  Raises:
    ValueError: if `num_iterations` is below 1 or `gradient` is unknown.
  """
  require_iterations(num_iterations, gradient=gradient)
  agreement, weighted_sum = contractions(votes)
  num_parts, num_parents, pose_size = votes.shape
  dtype = numerics.accumulation_dtype(*jax.tree.leaves(votes))
  coefficients = jnp.full((num_parts, num_parents), 1 / num_parents, dtype)
  consensus = jnp.zeros((num_parents, pose_size), dtype)

  def poses_of(coefficients):
    total = weighted_sum(coefficients)
    return numerics.squash(total if bias is None else total + bias)

  poses = poses_of(coefficients)
  for _ in range(num_iterations - 1):
    consensus += poses
    coefficients = couple(agreement(consensus))
    if gradient == "last":
      coefficients = jax.lax.stop_gradient(coefficients)
    poses = poses_of(coefficients)
  return output(votes, poses, numerics.safe_norm(poses), coefficients)


def require_normalisable(pose_size: int) -> None:
  """Checks that poses are long enough for a layer norm.

  Args:
    pose_size: D.

  Raises:
    ValueError: if D is 1.
  """
  if pose_size == 1:
    raise ValueError(
      "votes are poses of 1 number, and the layer norm needs at least 2; give "
      "longer poses."
    )


def require_iterations(num_iterations: int, *, gradient: str = "all") -> None:
  """Checks the iterations and the gradient of a routing.

  Args:
    num_iterations: the number of iterations.
    gradient: "all" or "last".

  Raises:
    TypeError: if the number of iterations is not a whole number, or is traced.
    ValueError: if it is below 1, or the gradient is unknown.
  """
  checks.counts(num_iterations=num_iterations)
  if gradient not in ("all", "last"):
    raise ValueError(f"gradient is {gradient!r}; give 'all' or 'last'.")


def output(
  votes: Float[Array, " I *J D"] | LinearVotes,
  poses: Float[Array, "J D"],
  activations: Float[Array, " J"],
  coefficients: Float[Array, "I J"],
) -> RoutingOutput:
  """Returns the result of a routing, in the dtype of the votes.

  Args:
    votes: u_ij, or their two factors; only their dtype counts.
    poses: of the parents.
    activations: of the parents, in [0, 1].
    coefficients: c_ij.
  """
  outputs = poses, activations, coefficients
  return RoutingOutput(*(x.astype(jnp.result_type(votes)) for x in outputs))
