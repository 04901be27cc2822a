"""Convolutions of capsules whose parents compete over the whole grid.

Axes: B batch, H W grid of capsules, K window, I types below, J types above,
C pose of a part, D pose of an object.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from capjax.kernels import checks, routing
from capjax.kernels.routing import linear_votes
from capjax.layers import capsules, convolution


class GridCaps(nnx.Module):
  """A layer of capsules by 3D convolution (Rajasegaran et al., 2019, DeepCaps).

  A type below has one vote for each parent at a position: a convolution of its
  poses in the window of K x K positions. All types below share the kernel,
  since the 3D kernel takes one of them at a time. `routing.grid_routing` then
  divides each type among the parents at all positions.

  Votes cost as many products as those of `ConvCaps`; the routing reads K K
  times fewer of them, 4 oH oW I J D bytes for each example in float32.

  Differs from paper: a bias [J D] as in `DenseCaps`; no batch normalisation.
  """

  def __init__(
    self,
    num_below: int,
    part_size: int,
    num_types: int,
    pose_size: int,
    kernel_size: int,
    *,
    stride: int = 1,
    padding: str = "VALID",
    num_iterations: int | None = None,
    routing_gradient: str = "all",
    transforms_init: Callable = capsules.TRANSFORMS_INIT,
    bias_init: Callable = capsules.BIAS_INIT,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      num_below: I, types of capsules at each position below.
      part_size: C, length of their poses.
      num_types: J, types of capsules at each position above.
      pose_size: D, length of their poses.
      kernel_size: K, capsules along each axis of a window.
      stride: between windows, at least 1.
      padding: "VALID", or "SAME" with zeros around the grid.
      num_iterations: at least 1; None for the 3 of the paper.
      routing_gradient: as for `DenseCaps`.
      transforms_init: initialiser of the kernel [K K C J*D].
      bias_init: initialiser of the bias [J D].
      rngs: its `params` stream initialises the parameters.

    Raises:
      ValueError: if a number is below 1, or the padding or `routing_gradient`
        is unknown.
    """
    checks.rngs(rngs)
    checks.counts(
      num_below=num_below,
      part_size=part_size,
      num_types=num_types,
      pose_size=pose_size,
      kernel_size=kernel_size,
      stride=stride,
    )
    checks.padding(padding)
    self.num_iterations = 3 if num_iterations is None else num_iterations
    linear_votes.require_iterations(
      self.num_iterations, gradient=routing_gradient
    )
    shape = (kernel_size, kernel_size, part_size, num_types * pose_size)
    self.transforms = nnx.Param(
      transforms_init(rngs.params(), shape, jnp.float32)
    )
    self.bias = nnx.Param(
      bias_init(rngs.params(), (num_types, pose_size), jnp.float32)
    )
    self.num_below = num_below
    self.num_types = num_types
    self.part_size = part_size
    self.stride = stride
    self.padding = padding
    self.gradient = routing_gradient

  def __call__(
    self,
    poses: Float[Array, "B H W I C"],
    activations: Float[Array, "B H W I"] | None = None,
  ) -> routing.RoutingOutput:
    """Routes the capsules of all positions.

    Args:
      poses: of the parts.
      activations: not used: the lengths of poses count instead.

    Returns:
      Poses [B oH oW J D], activations [B oH oW J] and coefficients
      [B I oH oW J], the share of a type below that each parent gets.

    Raises:
      TypeError: if the poses do not hold floating-point numbers.
      ValueError: if their shape does not fit, or the window is larger than the
        grid.
    """
    del activations
    wanted = f"B H W {self.num_below} {self.part_size}"
    checks.arrays({"poses": (poses, wanted)})
    count, height, width, num_below, size = poses.shape
    by_type = jnp.moveaxis(poses, 3, 1).reshape(-1, height, width, size)
    transforms = self.transforms[...]
    dtype = jnp.promote_types(poses.dtype, transforms.dtype)
    votes = convolution.conv2d(
      by_type.astype(dtype),
      transforms.astype(dtype),
      stride=self.stride,
      padding=self.padding,
    )
    bias = self.bias[...]
    votes = votes.reshape(count, num_below, *votes.shape[1:3], *bias.shape)

    def route(votes):
      return routing.grid_routing(
        votes,
        num_iterations=self.num_iterations,
        bias=bias,
        gradient=self.gradient,
      )

    output = jax.vmap(route)(votes)
    return jax.tree.map(lambda x: x.astype(poses.dtype), output)
