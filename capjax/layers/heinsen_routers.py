"""Heinsen's routings with parameters, in the form that `routers` describes.

Axes: I parts below, J objects above, C pose of a part, D pose of an object,
Q R transforms of poses or of their rows.
"""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from capjax.kernels import routing
from capjax.kernels.routing import heinsen, linear_votes
from capjax.layers import routing_inputs
from capjax.layers.named_routing import ITERATIONS, Router


class HeinsenEM(nnx.Module):
  """EM routing with gains of use and costs of ignoring (Heinsen, 2019).

  The layer's bias [J D] is added to all votes for a parent. beta_use and
  beta_ignore [I J] start at zero, as in the authors' code. Activations then do
  not depend on the votes: at the start only the betas learn from a loss on
  activations, by gradients as small as the activations of the parts. Lengths of
  poses start small in `CapsNet`, which makes the beginning slow; the paper's
  parts have learned scores.

  Differs from paper: activations of parts are given, or the lengths of their
  poses, where the paper has scores; the bias is shared by all parts; the loss
  is the margin loss.
  """

  def __init__(
    self,
    num_parts: int,
    num_objects: int,
    *,
    num_iterations: int = 3,
    gradient: str = "all",
  ):
    """Initialises the parameters.

    Args:
      num_parts: I, capsules below.
      num_objects: J, capsules above.
      num_iterations: at least 1; with 1 every part is divided evenly among the
        parents.
      gradient: "all" or "last", as for `heinsen.heinsen_em_routing`.

    Raises:
      TypeError: if `num_iterations` is no whole number.
      ValueError: if it is below 1, or `gradient` is unknown.
    """
    linear_votes.require_iterations(num_iterations, gradient=gradient)
    self.beta_use = nnx.Param(jnp.zeros((num_parts, num_objects), jnp.float32))
    self.beta_ignore = nnx.Param(
      jnp.zeros((num_parts, num_objects), jnp.float32)
    )
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
    """Routes one example; the bias is added to the votes.

    Raises:
      ValueError: if a known activation is outside of [0, 1].
    """
    votes = routing_inputs.stored_votes(poses, transforms)
    if bias is not None:
      votes += bias
    return heinsen.heinsen_em_routing(
      votes,
      routing_inputs.part_activations(poses, activations),
      self.beta_use[...],
      self.beta_ignore[...],
      num_iterations=self.num_iterations,
      gradient=self.gradient,
    )


class HeinsenVectors(nnx.Module):
  """Routing to the parents that best predict the parts (Heinsen, 2022).

  The layer's bias [J D] is the bias of the votes. Parameters start as in the
  authors' code: the costs [I J] and the scales [J C] of predictions standard
  normal, their shared matrix [D C] normal with variance 1 / D, the scales [I J]
  of scores with variance 1 / C, all biases at zero. The readout [D] starts
  normal with variance 1 / D.

  Differs from paper: activations of parts are given, or the lengths of their
  poses, not learned from the poses; those of objects come from the readout; the
  loss is the margin loss.
  """

  def __init__(
    self,
    num_parts: int,
    part_size: int,
    num_objects: int,
    pose_size: int,
    *,
    num_iterations: int = 2,
    gradient: str = "all",
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      num_parts: I, capsules below.
      part_size: C, length of their poses.
      num_objects: J, capsules above.
      pose_size: D >= 2, length of their poses.
      num_iterations: at least 1; with 1 every part is divided evenly among the
        parents.
      gradient: "all" or "last", as for `heinsen.heinsen_vector_routing`.
      rngs: its `params` stream initialises the parameters.

    Raises:
      TypeError: if `num_iterations` is no whole number.
      ValueError: if `num_iterations` is below 1, `gradient` is unknown, or D is
        1: poses of one number have no layer norm.
    """
    linear_votes.require_iterations(num_iterations, gradient=gradient)
    linear_votes.require_normalisable(pose_size)
    pairs = (num_parts, num_objects)
    below = (num_objects, part_size)

    def normal(shape, scale=1.0):
      init = nnx.initializers.normal(scale)
      return nnx.Param(init(rngs.params(), shape, jnp.float32))

    self.beta_use = normal(pairs)
    self.beta_ignore = normal(pairs)
    self.prediction = normal((pose_size, part_size), pose_size**-0.5)
    self.prediction_scale = normal(below)
    self.prediction_bias = nnx.Param(jnp.zeros(below, jnp.float32))
    self.score_scale = normal(pairs, part_size**-0.5)
    self.score_bias = nnx.Param(jnp.zeros(pairs, jnp.float32))
    self.readout = normal((pose_size,), pose_size**-0.5)
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
    """Routes one example; the bias is added to the votes.

    Raises:
      ValueError: if a known activation is outside of [0, 1].
    """
    return heinsen.heinsen_vector_routing(
      routing_inputs.linear_votes(poses, transforms),
      poses.reshape(len(poses), -1),
      routing_inputs.part_activations(poses, activations),
      self.beta_use[...],
      self.beta_ignore[...],
      prediction=self.prediction[...],
      prediction_scale=self.prediction_scale[...],
      prediction_bias=self.prediction_bias[...],
      score_scale=self.score_scale[...],
      score_bias=self.score_bias[...],
      readout=self.readout[...],
      bias=bias,
      num_iterations=self.num_iterations,
      gradient=self.gradient,
    )


ROUTERS: dict[str, Router] = {
  "heinsen_em": Router(
    "EM with gains of use and costs of ignoring (Heinsen, 2019)",
    lambda sizes, rngs, **options: HeinsenEM(
      sizes.num_parts, sizes.num_objects, **options
    ),
    options=ITERATIONS,
    uses_activations=True,
    is_mixture=True,
    takes_probabilities=True,
  ),
  "heinsen_vectors": Router(
    "to parents that best predict the parts (Heinsen, 2022)",
    lambda sizes, rngs, **options: HeinsenVectors(*sizes, **options, rngs=rngs),
    options=ITERATIONS,
    uses_activations=True,
    takes_probabilities=True,
  ),
}
