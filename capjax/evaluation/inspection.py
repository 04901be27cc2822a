"""Inspects networks of class capsules: iterations of routing, and layers.

Axes: R iterations, B batch, I parts, J classes, D pose of a class, K capsules
of a layer, or their types.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from capjax import capsnet, matrix_capsules
from capjax.kernels import numerics
from capjax.kernels.routing import em
from capjax.layers import routers, routing_inputs


class Iterations(NamedTuple):
  """The votes for the classes, and the results of each routing iteration.

  Attributes:
    votes: [B I J D], with the layer's bias or coordinates if these are added to
      votes.
    activations: [B I], of the parts; 1 where the routing is no mixture,
      since activations do not scale its votes.
    coefficients: [R B I J], after each iteration.
    poses: [R B J D], of the classes.
    class_activations: [R B J].
  """

  votes: Float[Array, "B I J D"]
  activations: Float[Array, "B I"]
  coefficients: Float[Array, "R B I J"]
  poses: Float[Array, "R B J D"]
  class_activations: Float[Array, "R B J"]


def iterations(
  model: nnx.Module, images: Float[Array, "B H W C"], *, at_least: int = 1
) -> Iterations | None:
  """Computes the results of each iteration of the routing to the classes.

  Votes are stored, and the routing runs once for each number of iterations.

  Args:
    model: `CapsNet` or `MatrixCapsules`.
    images: its input.
    at_least: iterations to run if the network has fewer. Not for EM, which has
      temperatures for its own iterations only.

  Returns:
    The iterations; None if the routing has none, or the model is of another
    type.
  """
  if isinstance(model, matrix_capsules.MatrixCapsules):
    return _of_matrices(model, images)
  if not isinstance(model, capsnet.CapsNet):
    return None
  layer = model.classes
  with_iterations = _with_iterations(layer.route)
  if with_iterations is None:
    return None
  make, own = with_iterations
  count = own if isinstance(layer.route, routers.EM) else max(own, at_least)
  poses, activations = model.capsules(images)[-1]
  poses = poses.reshape(len(images), layer.num_parts, -1)
  if activations is None:
    activations = numerics.safe_norm(poses)
  activations = activations.reshape(len(images), layer.num_parts)
  transforms = layer.transforms[...]
  bias = None if layer.bias is None else layer.bias[...]
  outputs = []
  for r in range(count):
    changed = make(r + 1)

    def route(poses, activations, changed=changed):
      return changed(poses, transforms, activations=activations, bias=bias)

    outputs.append(jax.vmap(route)(poses, activations))
  votes = jax.vmap(routing_inputs.stored_votes, (0, None))(poses, transforms)
  if bias is not None and layer.is_mixture:
    votes += bias
  return Iterations(
    votes,
    activations if layer.is_mixture else jnp.ones_like(activations),
    jnp.stack([x.coefficients for x in outputs]),
    jnp.stack([x.poses for x in outputs]),
    jnp.stack([x.activations for x in outputs]),
  )


def own_iterations(model: nnx.Module) -> int:
  """Returns the number of iterations of the last routing; 1 if it has none.

  Args:
    model: any module.
  """
  if isinstance(model, matrix_capsules.MatrixCapsules):
    return len(model.classes.em.inverse_temperatures)
  if not isinstance(model, capsnet.CapsNet):
    return 1
  found = _with_iterations(model.classes.route)
  return found[1] if found else 1


def positioned_types(model: nnx.Module) -> int | None:
  """The number of types of the parts below the classes, if they have positions.

  None if the parts have no positions, as in dense layers, or the model is of
  another type.

  Args:
    model: any module.
  """
  if isinstance(model, matrix_capsules.MatrixCapsules):
    return model.classes.transforms.shape[0]
  if not isinstance(model, capsnet.CapsNet):
    return None
  below = model.hidden[-1] if model.hidden else model.primary
  return getattr(below, "num_types", None)


def vote_distances(
  found: Iterations,
) -> tuple[Float[Array, "R B I J"], Float[Array, "R B I J"]]:
  """Distances of votes from their mean, and the weights of both.

  As in a figure of Hinton et al. (2018): w_ij = c_ij a_i after each iteration,
    distance_ij = |u_ij - sum_k w_kj u_kj / sum_k w_kj|.
  Parents are clusters where distances fall from iteration to iteration.

  Args:
    found: the result of `iterations`.

  Returns:
    Distances, in the unit of the votes, and w_ij >= 0; negative coefficients,
    which learned priors can make, count as 0.
  """
  weights = jnp.maximum(found.coefficients, 0) * found.activations[..., None]

  def of_iteration(weights):
    total = jnp.sum(weights, axis=1)[..., None]
    means = numerics.einsum("bij,bijd->bjd", weights, found.votes)
    means /= jnp.where(total > 0, total, 1)
    return numerics.safe_norm(found.votes - means[:, None])

  return jax.lax.map(of_iteration, weights), weights


def logit_changes(found: Iterations) -> Float[Array, "R B"]:
  """The mean change of a routing logit in each iteration.

  The mean over pairs of |<u_ij, v_j>|, where v_j is the pose after the
  iteration; Procedure 1 of Sabour et al. (2017) adds <u_ij, v_j> to the logits
  b_ij (a figure of its appendix). Only for dynamic routing.

  Args:
    found: the result of `iterations`.

  Returns:
    Mean changes, >= 0.
  """
  changes = numerics.einsum("bijd,rbjd->rbij", found.votes, found.poses)
  return jnp.mean(jnp.abs(changes), axis=(2, 3))


def layer_activations(
  model: nnx.Module, images: Float[Array, "B H W C"]
) -> list[Float[Array, "B K"]]:
  """The highest activation of each type of capsules, from the first layer up.

  Args:
    model: a network of class capsules. For types other than `CapsNet` and
      `MatrixCapsules` only the classes are given.
    images: its input.
  """
  layers = _layers(model, images)
  found = [jnp.max(x, axis=tuple(range(1, x.ndim - 1))) for x in layers]
  return [*found, model(images).activations]


def capsule_activations(
  model: nnx.Module, images: Float[Array, "B H W C"]
) -> list[Float[Array, "B K"]]:
  """The activation of each capsule at each position, from the first layer up.

  Args:
    model: as for `layer_activations`.
    images: its input.
  """
  layers = _layers(model, images)
  found = [x.reshape(len(x), -1) for x in layers]
  return [*found, model(images).activations]


def _layers(model, images) -> list[jax.Array]:
  """Activations [B ... K] below the classes."""
  if not isinstance(model, matrix_capsules.MatrixCapsules | capsnet.CapsNet):
    return []
  return [
    numerics.safe_norm(poses) if activations is None else activations
    for poses, activations in model.capsules(images)
  ]


def _with_iterations(route) -> tuple[Callable, int] | None:
  """Returns a function of the number of iterations, and the present number.

  The function makes the routing with another number of iterations. Returns None
  for routings without iterations.
  """
  if isinstance(route, routers.DynamicRouting):
    own = route.num_iterations
    return lambda r: dataclasses.replace(route, num_iterations=r), own
  if isinstance(route, routers.Kernel):
    parameters = inspect.signature(route.function).parameters
    if "num_iterations" not in parameters:
      return None
    options = dict(route.options)
    own = options.get("num_iterations", parameters["num_iterations"].default)

    def with_options(count):
      pairs = (options | {"num_iterations": count}).items()
      return dataclasses.replace(route, options=tuple(pairs))

    return with_options, own
  if isinstance(route, routers.EM):

    def first(count):
      other = nnx.clone(route)
      other.inverse_temperatures = route.inverse_temperatures[:count]
      return other

    return first, len(route.inverse_temperatures)
  if not hasattr(route, "num_iterations"):
    return None

  def changed(count):
    other = nnx.clone(route)
    other.num_iterations = count
    return other

  return changed, route.num_iterations


def _of_matrices(model, images) -> Iterations:
  *_, (poses, activations) = model.capsules(images)
  layer = model.classes
  votes = layer.votes(poses)
  activations = activations.reshape(len(images), -1)
  temperatures = layer.em.inverse_temperatures
  outputs = []
  for r in range(len(temperatures)):
    options = layer.em._replace(
      inverse_temperatures=temperatures[: r + 1]
    )._asdict()

    def route(votes, activations, options=options):
      betas = layer.beta_a[...], layer.beta_u[...]
      return em.em_routing(votes, activations, *betas, **options)

    outputs.append(jax.vmap(route)(votes, activations))
  return Iterations(
    votes,
    activations,
    jnp.stack([x.coefficients for x in outputs]),
    jnp.stack([x.poses for x in outputs]),
    jnp.stack([x.activations for x in outputs]),
  )
