"""Routings with parameters of their own, in the place of `DenseCaps`'s `route`.

Each is called as `layers.route_by_agreement` is, on one example: `(poses [I C],
transforms [I J C D], bias=[J D], batch_size=B) -> RoutingOutput`. A part's
activation is the length of its pose.

Axes: B batch, I parts below, J objects above, C pose of a part, D pose of an
object.
"""

from collections.abc import Callable

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from capjax import layers
from kernels import attention, numerics, routing, variational

NAMES = (
  "dynamic",
  "self",
  "inverted_attention",
  "variational",
  "self_attention",
)
_ONE_PASS = ("self", "self_attention")


class SelfAttention(nnx.Module):
  """Self-attention routing with its learned priors (Mazzia et al., 2021).

  The priors b_ij [I J] start at zero, as in the authors' code.
  """

  def __init__(self, num_parts: int, num_objects: int):
    """Makes the priors.

    Args:
      num_parts: I, capsules below.
      num_objects: J, capsules above.
    """
    self.priors = nnx.Param(jnp.zeros((num_parts, num_objects)))

  def __call__(
    self,
    poses: Float[Array, "I C"],
    transforms: Float[Array, "I J C D"],
    *,
    bias: Float[Array, "J D"],
    batch_size: int,
  ) -> routing.RoutingOutput:
    del batch_size
    votes = attention.LinearVotes(poses, transforms)
    return attention.self_attention_routing(
      votes, priors=self.priors[...], bias=bias
    )


class InvertedAttention(nnx.Module):
  """Inverted dot-product attention with layer norm (Tsai et al., 2020).

  The layer's bias [J D] is the offset of the layer norm; the scale [D] starts
  at one and the classifier [D] normal with variance 1 / D.
  """

  def __init__(
    self, pose_size: int, *, num_iterations: int = 2, rngs: nnx.Rngs
  ):
    """Draws the parameters.

    Args:
      pose_size: D, length of the poses of the capsules above.
      num_iterations: at least 1; with 1 every part is shared out evenly.
      rngs: its `params` stream draws the classifier.
    """
    init = nnx.initializers.normal(pose_size**-0.5)
    self.readout = nnx.Param(init(rngs.params(), (pose_size,), jnp.float32))
    self.scale = nnx.Param(jnp.ones(pose_size))
    self.num_iterations = num_iterations

  def __call__(
    self,
    poses: Float[Array, "I C"],
    transforms: Float[Array, "I J C D"],
    *,
    bias: Float[Array, "J D"],
    batch_size: int,
  ) -> routing.RoutingOutput:
    del batch_size
    return attention.inverted_attention_routing(
      attention.LinearVotes(poses, transforms),
      self.readout[...],
      num_iterations=self.num_iterations,
      scale=self.scale[...],
      offset=bias,
    )


class SelfRouting(nnx.Module):
  """Each part with a linear routing network of its own (Hahn et al., 2019).

  Its weights [I J C] and biases [I J] start at zero, as in the authors' code.
  Activations depend on these alone: the matrices of the layer, and its bias,
  which moves the poses, learn only from what is made of the poses.
  """

  def __init__(self, num_parts: int, part_size: int, num_objects: int):
    """Makes the routing networks.

    Args:
      num_parts: I, capsules below.
      part_size: C, length of their poses.
      num_objects: J, capsules above.
    """
    shape = (num_parts, num_objects, part_size)
    self.weights = nnx.Param(jnp.zeros(shape))
    self.biases = nnx.Param(jnp.zeros(shape[:2]))

  def __call__(
    self,
    poses: Float[Array, "I C"],
    transforms: Float[Array, "I J C D"],
    *,
    bias: Float[Array, "J D"],
    batch_size: int,
  ) -> routing.RoutingOutput:
    del batch_size
    logits = jnp.einsum("ic,ijc->ij", poses, self.weights[...])
    output = attention.self_routing(
      attention.LinearVotes(poses, transforms),
      logits + self.biases[...],
      numerics.safe_norm(poses),
    )
    return output._replace(poses=output.poses + bias)


class Variational(nnx.Module):
  """Variational Bayes routing with its learned offset (Ribeiro et al., 2020).

  The layer's bias [J D] is added to all votes for a parent. The offset beta [J]
  starts at zero, the gain [J] at one.
  """

  def __init__(self, num_objects: int, *, num_iterations: int = 3):
    """Makes the parameters.

    Args:
      num_objects: J, capsules above.
      num_iterations: at least 1; with 1 every part is shared out evenly.
    """
    self.beta = nnx.Param(jnp.zeros(num_objects))
    self.gain = nnx.Param(jnp.ones(num_objects))
    self.num_iterations = num_iterations

  def __call__(
    self,
    poses: Float[Array, "I C"],
    transforms: Float[Array, "I J C D"],
    *,
    bias: Float[Array, "J D"],
    batch_size: int,
  ) -> routing.RoutingOutput:
    del batch_size
    return variational.variational_routing(
      jnp.einsum("ic,ijcd->ijd", poses, transforms) + bias,
      numerics.safe_norm(poses),
      num_iterations=self.num_iterations,
      beta=self.beta[...],
      gain=self.gain[...],
    )


def router(
  name: str,
  *,
  num_iterations: int | None = None,
  leaky: bool = False,
  num_parts: int,
  part_size: int,
  num_objects: int,
  pose_size: int,
  rngs: nnx.Rngs,
) -> Callable[..., routing.RoutingOutput]:
  """Makes the routing called `name` for a `DenseCaps` of the given sizes.

  Args:
    name: one of `NAMES`.
    num_iterations: at least 1; by default the paper's.
    leaky: adds an orphan parent, which dynamic routing alone has.
    num_parts: I, capsules below.
    part_size: C, length of their poses.
    num_objects: J, capsules above.
    pose_size: D, length of their poses.
    rngs: its `params` stream draws the parameters.

  Returns:
    What `DenseCaps` takes as `route`.

  Raises:
    ValueError: if the name is unknown, or the routing has no iterations or no
      orphan parent and is asked for them.
  """
  if leaky and name != "dynamic":
    raise ValueError(f"{name} routing has no leaky form; only dynamic has.")
  if name in _ONE_PASS and num_iterations not in (None, 1):
    raise ValueError(
      f"{name} routing takes one pass, not num_iterations of {num_iterations};"
      " give None or 1."
    )
  given = {} if num_iterations is None else {"num_iterations": num_iterations}
  match name:
    case "dynamic":
      # By position: the cache tells keywords from positions.
      return layers.router(given.get("num_iterations", 3), leaky)
    case "self":
      return SelfRouting(num_parts, part_size, num_objects)
    case "inverted_attention":
      return InvertedAttention(pose_size, **given, rngs=rngs)
    case "variational":
      return Variational(num_objects, **given)
    case "self_attention":
      return SelfAttention(num_parts, num_objects)
  raise ValueError(f"routing {name!r} is unknown; give one of {NAMES}.")
