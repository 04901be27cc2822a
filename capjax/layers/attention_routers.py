"""Routings by attention with parameters, in the form that `routers` describes.

Axes: I parts below, J objects above, C pose of a part, D pose of an object,
Q R transforms of poses or of their rows.
"""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from capjax.kernels import numerics, routing
from capjax.kernels.routing import (
  attention,
  linear_votes,
  orthogonal,
  prototypes,
)
from capjax.layers import routing_inputs
from capjax.layers.named_routing import ITERATIONS, Router


class SelfAttention(nnx.Module):
  """Self-attention routing with its learned priors (Mazzia et al., 2021).

  The priors b_ij [I J] start at zero, as in the authors' code.

  Differs from paper: the layer may have a bias; Efficient-CapsNet has none.
  """

  def __init__(self, num_parts: int, num_objects: int):
    """Initialises the priors.

    Args:
      num_parts: I, capsules below.
      num_objects: J, capsules above.
    """
    self.priors = nnx.Param(jnp.zeros((num_parts, num_objects), jnp.float32))

  def __call__(
    self,
    poses: Float[Array, " I *pose"],
    transforms: Float[Array, "I J Q R"],
    *,
    activations: Float[Array, " I"] | None = None,
    bias: Float[Array, "J D"] | None = None,
  ) -> routing.RoutingOutput:
    """Routes one example; the bias is added before squashing."""
    del activations  # lengths of poses count instead
    return attention.self_attention_routing(
      routing_inputs.linear_votes(poses, transforms),
      priors=self.priors[...],
      bias=bias,
    )


class InvertedAttention(nnx.Module):
  """Inverted dot-product attention with layer norm (Tsai et al., 2020).

  The layer's bias [J D] is the offset of the layer norm; the scale [D] starts
  at one and the classifier [D] normal with variance 1 / D.

  Differs from paper: activations are independent sigmoids; in the paper they
  are logits of a softmax over classes.
  """

  def __init__(
    self,
    pose_size: int,
    *,
    num_iterations: int = 2,
    gradient: str = "all",
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      pose_size: D >= 2, length of the poses of the capsules above.
      num_iterations: at least 1; with 1 every part is divided evenly among the
        parents.
      gradient: "all" or "last", as for `attention.inverted_attention_routing`.
      rngs: its `params` stream initialises the classifier.

    Raises:
      TypeError: if `num_iterations` is no whole number.
      ValueError: if `num_iterations` is below 1, `gradient` is unknown, or D is
        1: poses of one number have no layer norm.
    """
    linear_votes.require_iterations(num_iterations, gradient=gradient)
    linear_votes.require_normalisable(pose_size)
    init = nnx.initializers.normal(pose_size**-0.5)
    self.readout = nnx.Param(init(rngs.params(), (pose_size,), jnp.float32))
    self.scale = nnx.Param(jnp.ones(pose_size, jnp.float32))
    self.num_iterations = num_iterations
    self.gradient = gradient

  def __call__(
    self,
    poses: Float[Array, " I *pose"],
    transforms: Float[Array, "I J Q R"],
    *,
    activations: Float[Array, " I"] | None = None,
    bias: Float[Array, "J D"] | None = None,
  ) -> routing.RoutingOutput:
    """Routes one example; the bias is the offset of the layer norm."""
    del activations  # the kernel does not use them
    return attention.inverted_attention_routing(
      routing_inputs.linear_votes(poses, transforms),
      self.readout[...],
      num_iterations=self.num_iterations,
      scale=self.scale[...],
      offset=bias,
      gradient=self.gradient,
    )


class SelfRouting(nnx.Module):
  """Self-routing: a linear routing network for each part (Hahn et al., 2019).

  Its weights [I J C] and biases [I J] start at zero, as in the authors' code.
  Activations depend only on these. So the matrices of the layer, and its bias,
  which is added to the poses, learn only from losses on the poses.

  Activations sum to 1 over objects. This suits images of one object; several
  objects could not all have activations near 1.

  Differs from paper: the loss is the margin loss; the layer may have a bias.
  """

  def __init__(self, num_parts: int, part_size: int, num_objects: int):
    """Initialises the routing networks.

    Args:
      num_parts: I, capsules below.
      part_size: C, length of their poses.
      num_objects: J, capsules above.
    """
    shape = (num_parts, num_objects, part_size)
    self.weights = nnx.Param(jnp.zeros(shape, jnp.float32))
    self.biases = nnx.Param(jnp.zeros(shape[:2], jnp.float32))

  def __call__(
    self,
    poses: Float[Array, " I *pose"],
    transforms: Float[Array, "I J Q R"],
    *,
    activations: Float[Array, " I"] | None = None,
    bias: Float[Array, "J D"] | None = None,
  ) -> routing.RoutingOutput:
    """Routes one example; the bias is added to the poses of the objects.

    Raises:
      ValueError: if a known activation is below 0.
    """
    logits = numerics.einsum(
      "ic,ijc->ij", poses.reshape(len(poses), -1), self.weights[...]
    )
    output = attention.self_routing(
      routing_inputs.linear_votes(poses, transforms),
      logits + self.biases[...],
      routing_inputs.part_activations(poses, activations),
    )
    if bias is None:
      return output
    return output._replace(poses=output.poses + bias)


class Prototypes(nnx.Module):
  """Routing by trained prototypes in a shared space (Everett et al., 2023).

  The space has as many axes as a part's pose has numbers. The projection [C C]
  starts normal with variance 1 / C, the prototypes [J C] with variance 1.

  Differs from paper: the layer's votes, one matrix for each pair of part and
  object, make the poses; the loss is the margin loss.
  """

  def __init__(self, part_size: int, num_objects: int, *, rngs: nnx.Rngs):
    """Initialises the parameters.

    Args:
      part_size: C, length of the poses of the capsules below.
      num_objects: J, capsules above.
      rngs: its `params` stream initialises the parameters.
    """
    shapes = (part_size, part_size), (num_objects, part_size)
    scales = part_size**-0.5, 1.0
    self.projection, self.prototypes = (
      nnx.Param(
        nnx.initializers.normal(scale)(rngs.params(), shape, jnp.float32)
      )
      for shape, scale in zip(shapes, scales, strict=True)
    )

  def __call__(
    self,
    poses: Float[Array, " I *pose"],
    transforms: Float[Array, "I J Q R"],
    *,
    activations: Float[Array, " I"] | None = None,
    bias: Float[Array, "J D"] | None = None,
  ) -> routing.RoutingOutput:
    """Routes one example; the bias is added before squashing."""
    del activations  # lengths of poses count instead
    embeddings = numerics.einsum(
      "ic,cs->is", poses.reshape(len(poses), -1), self.projection[...]
    )
    return prototypes.prototype_routing(
      routing_inputs.linear_votes(poses, transforms),
      embeddings,
      self.prototypes[...],
      bias=bias,
    )


class SharedPrototypes(nnx.Module):
  """Routing by prototypes, of votes that objects share (Everett et al., 2023).

  A part has one matrix for all objects, [I 1 C D]. The prototypes [J D] start
  normal with variance 1.

  Differs from paper: as the kernel says; each part has a matrix of its own; the
  loss is the margin loss.
  """

  def __init__(self, num_objects: int, pose_size: int, *, rngs: nnx.Rngs):
    """Initialises the prototypes.

    Args:
      num_objects: J, capsules above.
      pose_size: D, length of their poses.
      rngs: its `params` stream initialises the parameters.
    """
    init, shape = nnx.initializers.normal(1.0), (num_objects, pose_size)
    self.prototypes = nnx.Param(init(rngs.params(), shape, jnp.float32))

  def __call__(
    self,
    poses: Float[Array, " I *pose"],
    transforms: Float[Array, "I N Q R"],
    *,
    activations: Float[Array, " I"] | None = None,
    bias: Float[Array, "J D"] | None = None,
  ) -> routing.RoutingOutput:
    """Routes one example; the bias is added before squashing.

    Raises:
      ValueError: if the transforms are not one matrix for each part.
    """
    del activations  # lengths of poses count instead
    if transforms.shape[1] != 1:
      raise ValueError(
        f"transforms are [{' '.join(map(str, transforms.shape))}]; give one "
        "matrix for each part, [I 1 Q R]."
      )
    votes = routing_inputs.stored_votes(poses, transforms)[:, 0]
    return prototypes.shared_prototype_routing(
      votes, self.prototypes[...], bias=bias
    )


class SparseAttention(nnx.Module):
  """Sparse attention between orthogonal views (OrthCaps; Geng et al., 2024).

  Redundant parts are pruned first, by cosines about the mean pose. About zero,
  the initial bias of the capsules of `CapsNet` would make all parts alike. Even
  about the mean, few parts remain where poses are short, which makes learning
  slow: initially 8 of 256 in a network for 8x8 digits (1 about zero). The two
  orthogonal matrices [D D], of keys and of values, are products of D
  reflections each, whose vectors [D D] start standard normal.

  Differs from paper: the layer's transforms are not orthogonal; the loss is the
  margin loss.
  """

  def __init__(self, pose_size: int, *, rngs: nnx.Rngs):
    """Initialises the reflections.

    Args:
      pose_size: D, length of the poses of the capsules above.
      rngs: its `params` stream initialises the parameters.
    """
    init, shape = nnx.initializers.normal(1.0), (pose_size, pose_size)
    self.keys = nnx.Param(init(rngs.params(), shape, jnp.float32))
    self.values = nnx.Param(init(rngs.params(), shape, jnp.float32))

  def __call__(
    self,
    poses: Float[Array, " I *pose"],
    transforms: Float[Array, "I J Q R"],
    *,
    activations: Float[Array, " I"] | None = None,
    bias: Float[Array, "J D"] | None = None,
  ) -> routing.RoutingOutput:
    """Routes one example; the bias is added before squashing."""
    del activations  # lengths of poses count instead
    parts = poses.reshape(len(poses), -1)
    return orthogonal.sparse_attention_routing(
      routing_inputs.linear_votes(poses, transforms),
      kept=orthogonal.prune(parts, centre=jnp.mean(parts, axis=0)),
      keys=orthogonal.householder(self.keys[...]),
      values=orthogonal.householder(self.values[...]),
      bias=bias,
    )


ROUTERS: dict[str, Router] = {
  "self": Router(
    "a network of each part (Hahn et al., 2019)",
    lambda sizes, rngs: SelfRouting(
      sizes.num_parts, sizes.part_size, sizes.num_objects
    ),
    uses_activations=True,
    is_mixture=True,
  ),
  "inverted_attention": Router(
    "parents compete for parts (Tsai et al., 2020)",
    lambda sizes, rngs, **options: InvertedAttention(
      sizes.pose_size, **options, rngs=rngs
    ),
    options=ITERATIONS,
  ),
  "self_attention": Router(
    "one pass (Mazzia et al., 2021)",
    lambda sizes, rngs: SelfAttention(sizes.num_parts, sizes.num_objects),
  ),
  "prototype": Router(
    "one pass, by distance to trained prototypes (Everett et al., 2023)",
    lambda sizes, rngs: Prototypes(
      sizes.part_size, sizes.num_objects, rngs=rngs
    ),
  ),
  "shared_prototype": Router(
    "one pass, by the direction of prototypes, of votes that all objects share "
    "(Everett et al., 2023)",
    lambda sizes, rngs: SharedPrototypes(
      sizes.num_objects, sizes.pose_size, rngs=rngs
    ),
    shares_votes=True,
  ),
  "orthcaps": Router(
    "one pass, sparse attention of parts that are not redundant (Geng et al., "
    "2024)",
    lambda sizes, rngs: SparseAttention(sizes.pose_size, rngs=rngs),
  ),
}
