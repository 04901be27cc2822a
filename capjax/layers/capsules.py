"""Layers that own parameters and call kernels, `vmap`ped once over the batch.

`PrimaryCaps` makes capsules of an image's features; `DenseCaps` routes them by
any routing, and so does `conv_capsules.ConvCaps` in windows.

Axes: B batch, H W image, I parts below, J objects above, C pose of a part,
D pose of an object; P Q pose matrix of a part, P R of an object.
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from capjax import memory
from capjax.kernels import checks, numerics, routing
from capjax.layers import convolution, routers

# A vector's length, or the rows and columns of a matrix.
PoseSize = int | tuple[int, int]
# Those of the authors' code of CapsNet.
TRANSFORMS_INIT = nnx.initializers.truncated_normal(0.1)
BIAS_INIT = nnx.initializers.constant(0.1)
_LONGEST = 1.001  # the length of a squashed pose, with its rounding


class Fixed(nnx.Variable):
  """Constants of a module, which are not trained.

  The modules here stop their gradients, so that an optimiser of all arrays does
  not change them either, unless it decays weights.
  """


class PrimaryCaps(nnx.Module):
  """The first capsules: a convolution cut into squashed vectors.

  Every position has `num_types` capsules of `pose_size` numbers (Sabour et al.,
  2017, section 4).

  In the authors' code this layer is also computed by one iteration of routing,
  from a single capsule below, which is divided evenly among all types: the
  squashed vectors are convolution / num_types + bias. The paper does not print
  this factor. Without it, at the paper's widths and the authors' initial
  weights, capsules start saturated: more than half of the lengths are above
  0.97, where the squash passes on a hundredth or less of a gradient along the
  pose. With the factor, lengths are 0.05 to 0.2, where the squash passes on
  half.

  Differs from the authors' code: with leaky routing the factor there is
  1 / (num_types + 1).
  """

  def __init__(
    self,
    in_features: int,
    num_types: int,
    pose_size: int,
    kernel_size: int,
    *,
    stride: int = 1,
    padding: str = "VALID",
    kernel_init: Callable = nnx.initializers.lecun_normal(),
    bias_init: Callable = nnx.initializers.zeros,
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
      padding: "VALID" or "SAME".
      kernel_init: initialiser of the kernel.
      bias_init: initialiser of the bias.
      scale: factor of the convolution; None for 1 / sqrt(pose_size): lengths
        then start near the middle of (0, 1) if the features have variance 1.
        `CapsNet` has the authors' 1 / num_types.
      dtype: dtype of the convolution; poses are float32.
      rngs: its `params` stream initialises the parameters.

    Raises:
      ValueError: if a number is below 1, or the padding is unknown.
    """
    checks.rngs(rngs)
    checks.counts(num_types=num_types, pose_size=pose_size)
    self.conv = convolution.Conv(
      in_features,
      num_types * pose_size,
      kernel_size,
      stride=stride,
      padding=padding,
      kernel_init=kernel_init,
      bias_init=bias_init,
      scale=pose_size**-0.5 if scale is None else scale,
      dtype=dtype,
      rngs=rngs,
    )
    self.num_types = num_types
    self.pose_size = pose_size

  def __call__(
    self, features: Float[Array, "B H W F"]
  ) -> Float[Array, "B oH oW I C"]:
    """Returns poses; their lengths, below 1, are the activations.

    Args:
      features: as for `convolution.Conv`.

    Returns:
      Poses in float32 at each position; I is `num_types`, C is `pose_size`.

    Raises:
      TypeError: as for `convolution.Conv`.
      ValueError: as for `convolution.Conv`.
    """
    features = self.conv(features).astype(jnp.float32)
    shape = (*features.shape[:3], self.num_types, self.pose_size)
    return numerics.squash(features.reshape(shape))


class DenseCaps(nnx.Module):
  """Votes with a matrix for each pair of part and object, then routes.

  With "shared_prototype" each part has one matrix and one vote for all objects,
  which takes 4 I D bytes for each example.

  Most routings by name do not store the votes [I J D] of vectors (except
  "dynamic" of up to 8 examples on a CPU, or where those of a batch take at most
  0.5 GB on each GPU). Votes are stored by "variational", "em", "heinsen_em" and
  functions, and if poses are matrices. They take 4 I J D bytes for each example
  in float32, and about as much again for gradients.
  """

  def __init__(
    self,
    num_parts: int,
    part_size: PoseSize,
    num_objects: int,
    pose_size: PoseSize,
    *,
    routing: str | Callable = "dynamic",
    num_iterations: int | None = None,
    leaky: bool = False,
    routing_gradient: str = "all",
    transforms_init: Callable | None = None,
    bias_init: Callable | None = BIAS_INIT,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      num_parts: I, capsules below.
      part_size: C, length of their poses; or (P, Q) of matrices.
      num_objects: J, capsules above.
      pose_size: D, length of their poses; or (P, R) of matrices.
      routing: one of `routers.NAMES`, or a function with the signature of the
        kernels, `votes [I J D] -> RoutingOutput`, see
        `custom_routing.FromFunction`.
      num_iterations: iterations of a routing by name; by default the number in
        its paper.
      leaky: adds an orphan parent; for "dynamic" alone.
      routing_gradient: "all" for gradients through all iterations, "last" for
        those through the last one alone; as the kernels say.
      transforms_init: initialiser of the matrices [I J C D], or [I J Q R];
        J is 1 where all objects share votes. By default truncated normal
        numbers with a standard deviation of 0.1, as in the authors' code of
        CapsNet; of 1 / sqrt(C), or 1 / sqrt(Q), for mixtures
        (`routers.is_mixture`), whose poses are not squashed, so that poses of
        several layers stay about as large.
      bias_init: initialiser of the bias [J D]; None for a bias that stays zero
        and is no parameter.
      rngs: its `params` stream initialises the parameters.

    Raises:
      TypeError: as `routers.router`.
      ValueError: as `routers.router`, or if a number is below 1, or matrices
        above have other rows than those below, or the matrices do not fit the
        memory (which is not checked where the module is made under jit).
    """
    checks.rngs(rngs)
    checks.counts(num_parts=num_parts, num_objects=num_objects)
    below, above = _pose_shapes(part_size, pose_size)
    self.num_parts = num_parts
    self.part_shape, self.pose_shape = below, above
    self.is_mixture = routers.is_mixture(routing)
    self.takes_probabilities = routers.takes_probabilities(routing)
    num_votes = 1 if routers.shares_votes(routing) else num_objects
    shape = (num_parts, num_votes, below[-1], above[-1])
    key = rngs.params()
    if not isinstance(key, jax.core.Tracer):  # a tracer in eval_shape or jit
      memory.require(
        "transforms",
        shape,
        remedy="fewer capsules: smaller images, larger strides, fewer types",
      )
    if transforms_init is None:
      transforms_init = TRANSFORMS_INIT
      if self.is_mixture:
        transforms_init = nnx.initializers.truncated_normal(below[-1] ** -0.5)
    self.transforms = nnx.Param(transforms_init(key, shape, jnp.float32))
    self.route = routers.router(
      routing,
      num_iterations=num_iterations,
      leaky=leaky,
      gradient=routing_gradient,
      num_parts=num_parts,
      part_size=math.prod(below),
      num_objects=num_objects,
      pose_size=math.prod(above),
      rngs=rngs,
    )
    bias_shape = (num_objects, math.prod(above))
    takes_bias = getattr(self.route, "takes_bias", True)
    self.bias = (
      nnx.Param(bias_init(rngs.params(), bias_shape, jnp.float32))
      if bias_init is not None and takes_bias
      else None
    )

  def __call__(
    self,
    poses: Float[Array, " B *parts"],
    activations: Float[Array, " B *I"] | None = None,
  ) -> routing.RoutingOutput:
    """Routes the parts of each example.

    Args:
      poses: [B I C], or [B I P Q] of matrices; for the axis I there may be
        several, as in the results of `PrimaryCaps` and `ConvCaps`, with I
        capsules in all.
      activations: [B I] of the parts in [0, 1], or with the same axes for I;
        the lengths of their poses by default, which are in [0, 1] if these are
        squashed. Routings whose row of `routers.ROUTERS` has
        `uses_activations=False` take poses alone.

    Returns:
      Poses [B J D] or [B J P R], activations [B J] and coefficients [B I J].

    Raises:
      TypeError: if an array does not hold floating-point numbers, or a custom
        routing returns anything but a `RoutingOutput`.
      ValueError: if the numbers of parts or the sizes of their poses differ; if
        a known activation is outside of [0, 1]; or if the routing needs
        probabilities, no activations are given, and a pose is longer than 1.
    """
    given = {"poses": (poses, self.part_shape)}
    if activations is not None:
      given["activations"] = (activations, ())
    checks.floats({name: array for name, (array, _) in given.items()})
    for name, (array, pose) in given.items():
      between = array.shape[1 : array.ndim - len(pose)]
      if (
        array.shape[array.ndim - len(pose) :] != pose
        or math.prod(between) != self.num_parts
      ):
        wanted = " ".join(map(str, ("B", self.num_parts, *pose)))
        raise ValueError(
          f"{name} are [{' '.join(map(str, array.shape))}]; give [{wanted}], "
          f"or several axes of {self.num_parts} capsules in all."
        )
    poses = poses.reshape(-1, self.num_parts, *self.part_shape)
    if activations is not None:
      checks.values(0.0, 1.0, activations=activations)
      activations = activations.reshape(-1, self.num_parts)
      checks.same_shape(poses.shape[:2], activations=activations)
    elif self.takes_probabilities and checks.are_known(poses):
      # By NumPy: within a transformation JAX would trace the lengths.
      rows = np.asarray(poses, np.float64).reshape(*poses.shape[:2], -1)
      longest = np.linalg.norm(rows, axis=-1).max(initial=0.0)
      if longest > _LONGEST:
        raise ValueError(
          f"poses have lengths up to {longest:g}, which this routing takes as "
          "activations in [0, 1]; give activations."
        )
    transforms = self.transforms[...]
    bias = None if self.bias is None else self.bias[...]

    route = self.route
    if isinstance(route, routers.DynamicRouting):  # the batch decides its form
      route = dataclasses.replace(route, batch_size=len(poses))

    def of_example(poses, activations):
      return route(poses, transforms, activations=activations, bias=bias)

    output = jax.vmap(of_example)(poses, activations)
    shape = (*output.poses.shape[:2], *self.pose_shape)
    return output._replace(poses=output.poses.reshape(shape))


def _pose_shapes(part_size, pose_size):
  """Poses below and above as shapes, checked."""
  below, above = (
    tuple(size) if np.iterable(size) else (size,)
    for size in (part_size, pose_size)
  )
  if not below or len(below) != len(above) or below[:-1] != above[:-1]:
    raise ValueError(
      f"part_size is {part_size} and pose_size is {pose_size}; give two "
      "lengths of vectors, or (rows, columns) of matrices with as many rows."
    )
  for size in zip(below, above, strict=True):
    checks.counts(part_size=size[0], pose_size=size[1])
  return below, above
