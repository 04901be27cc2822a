"""Layers that own parameters and call kernels, `vmap`ped once over the batch.

Axes: B batch, H W image, I parts below, J objects above, C pose of a part,
D pose of an object.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from capjax.kernels import numerics, routing
from capjax.layers import convolution

# Up to this many examples, a CPU is faster with stored votes.
_FEW_EXAMPLES = 8
# The name of the batch axis, over which routings are mapped.
_BATCH = "batch"


class Fixed(nnx.Variable):
  """Constants of a module, which are not trained."""


class Conv(nnx.Module):
  """A convolution with bias, in the form that is fastest on the platform."""

  def __init__(
    self,
    in_features: int,
    out_features: int,
    kernel_size: int,
    *,
    stride: int = 1,
    padding: str = "VALID",
    kernel_init: Callable = nnx.initializers.lecun_normal(),
    bias_init: Callable = nnx.initializers.zeros,
    scale: float = 1.0,
    dtype: jax.typing.DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      in_features: channels in.
      out_features: channels out.
      kernel_size: taps along each axis.
      stride: step of the window along each axis.
      padding: "VALID" or "SAME".
      kernel_init: initialiser of the kernel [k k in out].
      bias_init: initialiser of the bias [out].
      scale: factor of the convolution, but not of the bias.
      dtype: dtype of the arithmetic and of the result; parameters stay float32.
      rngs: its `params` stream initialises the parameters.
    """
    shape = (kernel_size, kernel_size, in_features, out_features)
    self.kernel = nnx.Param(kernel_init(rngs.params(), shape, jnp.float32))
    self.bias = nnx.Param(
      bias_init(rngs.params(), (out_features,), jnp.float32)
    )
    self.stride = stride
    self.padding = padding
    self.scale = scale
    self.dtype = dtype

  def __call__(
    self, images: Float[Array, "B H W C"]
  ) -> Float[Array, "B oH oW D"]:
    features = convolution.conv2d(
      images.astype(self.dtype),
      self.kernel[...].astype(self.dtype),
      stride=self.stride,
      padding=self.padding,
    )
    # As a matrix: a CPU sums its rows ten times faster for the gradient.
    rows = self.scale * features.reshape(-1, features.shape[-1])
    return (rows + self.bias[...].astype(self.dtype)).reshape(features.shape)


class PrimaryCaps(nnx.Module):
  """The first capsules: a convolution cut into squashed vectors.

  Every position has `num_types` capsules of `pose_size` numbers (Sabour et al.,
  2017, section 4).

  In the authors' code this layer is also computed by one iteration of routing,
  from a single capsule below, which is shared out evenly: the squashed vectors
  are convolution / num_types + bias (num_types + 1 with leaky routing, which we
  do not follow). The paper does not print this factor. Without it, at the
  paper's widths and the authors' initial weights, capsules start saturated:
  most lengths are above 0.95, where the squash passes on less than a hundredth
  of a gradient along the pose. With the factor lengths are 0.05 to 0.2, where
  it passes on half.
  """

  def __init__(
    self,
    in_features: int,
    num_types: int,
    pose_size: int,
    kernel_size: int,
    *,
    stride: int,
    kernel_init: Callable,
    bias_init: Callable,
    scale: float | None = None,
    dtype: jax.typing.DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      in_features: channels in.
      num_types: capsules at each position.
      pose_size: length of each capsule's vector.
      kernel_size: taps along each axis.
      stride: step of the window along each axis.
      kernel_init: initialiser of the kernel.
      bias_init: initialiser of the bias.
      scale: factor of the convolution; None for the authors' 1 / num_types.
      dtype: dtype of the convolution; poses are float32.
      rngs: its `params` stream initialises the parameters.
    """
    self.conv = Conv(
      in_features,
      num_types * pose_size,
      kernel_size,
      stride=stride,
      kernel_init=kernel_init,
      bias_init=bias_init,
      scale=1 / num_types if scale is None else scale,
      dtype=dtype,
      rngs=rngs,
    )
    self.num_types = num_types
    self.pose_size = pose_size

  def __call__(
    self, features: Float[Array, "B H W F"]
  ) -> Float[Array, "B I C"]:
    features = self.conv(features).astype(jnp.float32)
    poses = features.reshape(len(features), -1, self.pose_size)
    return numerics.squash(poses)


class DenseCaps(nnx.Module):
  """Each pair of part and object has its own matrix for votes; then routing."""

  def __init__(
    self,
    num_parts: int,
    part_size: int,
    num_objects: int,
    pose_size: int,
    *,
    route: Callable[..., routing.RoutingOutput],
    transforms_init: Callable,
    bias_init: Callable | None,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      num_parts: I, capsules below.
      part_size: C, length of their poses.
      num_objects: J, capsules above.
      pose_size: D, length of their poses.
      route: routes one example,
        `(poses [I C], transforms [I J C D], bias=[J D] or None) ->
        RoutingOutput`: for example a result of `routers.router`, or the kernel
        `transform_and_route`.
      transforms_init: initialiser of the matrices [I J C D].
      bias_init: initialiser of the bias [J D]; None for a bias that stays zero
        and is no parameter.
      rngs: its `params` stream initialises the parameters.
    """
    shape = (num_parts, num_objects, part_size, pose_size)
    self.transforms = nnx.Param(
      transforms_init(rngs.params(), shape, jnp.float32)
    )
    shape = (num_objects, pose_size)
    self.bias = (
      nnx.Param(bias_init(rngs.params(), shape, jnp.float32))
      if bias_init is not None
      else None
    )
    self.route = route

  def __call__(self, poses: Float[Array, "B I C"]) -> routing.RoutingOutput:
    """Returns poses [B J D], activations [B J] and coefficients [B I J]."""
    transforms = self.transforms[...]
    bias = None if self.bias is None else self.bias[...]

    def route(part_poses):
      return self.route(part_poses, transforms, bias=bias)

    return jax.vmap(route, axis_name=_BATCH)(poses)


def batch_size() -> int:
  """The number of examples that `DenseCaps` routes at once; 1 elsewhere."""
  try:
    return jax.lax.axis_size(_BATCH)
  except NameError:  # no such axis
    return 1


def route_by_agreement(
  poses: Float[Array, "I C"],
  transforms: Float[Array, "I J C D"],
  *,
  bias: Float[Array, "J D"] | None = None,
  num_iterations: int = 3,
  leaky: bool = False,
  batch_size: int,
) -> routing.RoutingOutput:
  """Dynamic routing of one example, in the fastest form for batch and platform.

  On a CPU that is chunks that fit its cache, or stored votes for a few
  examples; on accelerators few, large steps.

  Args:
    poses: as for `routing.transform_and_route`.
    transforms: as for `routing.transform_and_route`.
    bias: as for `routing.transform_and_route`.
    num_iterations: as for `routing.transform_and_route`.
    leaky: as for `routing.transform_and_route`.
    batch_size: examples that this is `vmap`ped over; decides the form only.

  Returns:
    As `routing.transform_and_route`.
  """
  options = {"num_iterations": num_iterations, "leaky": leaky}

  def store_votes(poses, transforms, bias):
    votes = jnp.einsum("ic,ijcd->ijd", poses, transforms, precision="highest")
    return routing.dynamic_routing(votes, bias=bias, **options)

  def in_pieces(poses, transforms, bias):
    return routing.transform_and_route(poses, transforms, bias=bias, **options)

  def in_one_piece(poses, transforms, bias):
    num_parts, num_objects = transforms.shape[:2]
    return routing.transform_and_route(
      poses,
      transforms,
      bias=bias,
      chunk_size=num_parts,
      parents_at_once=num_objects,
      **options,
    )

  return jax.lax.platform_dependent(
    poses,
    transforms,
    bias,
    cpu=in_pieces if batch_size > _FEW_EXAMPLES else store_votes,
    default=in_one_piece,
  )
