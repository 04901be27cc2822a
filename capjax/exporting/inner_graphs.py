"""Internal steps of trained models, as functions of one example.

They are for programs that show how a model finds its answer: the iterations of
routing, the parts that objects expect, the steps of a chain.

Axes: I parts, J classes or objects, D pose of a class, H W C image; P Q
positions and T types of parts, R iterations of routing; K capsules of U hidden
units in a Boltzmann machine.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from capjax import saved
from capjax.capsnet import CapsNet
from capjax.energy import CapsuleRBM
from capjax.generative.model import GenerativeCapsules
from capjax.kernels import energy, numerics, routing
from capjax.kernels.energy import families
from capjax.kernels.matching import selection
from capjax.layers import routers

Arrays = dict[str, Float[Array, "..."]]


def routing_by_iteration(
  trained: saved.TrainedModel,
) -> Callable[[jax.Array], Arrays]:
  """Makes a function that returns each iteration of dynamic routing.

  Args:
    trained: a `CapsNet` with dynamic routing and without hidden capsules.

  Returns:
    A function of an image, uint8 [H W C]. It returns `part_activations`
    [P Q T], the lengths of the parts' poses; and for each iteration
    `coefficients` [R P Q T J], `agreements` [R P Q T J], the scalar products of
    votes and outputs, `poses` [R J D] and `activations` [R J] of the classes.

  Raises:
    ValueError: if the model is no `CapsNet` with dynamic routing, or has hidden
      capsules.
  """
  model, steps = trained.model, trained.preprocessing
  if (
    not isinstance(model, CapsNet)
    or model.hidden
    or not isinstance(route := model.classes.route, routers.DynamicRouting)
  ):
    raise ValueError(
      f"this {type(model).__name__} has no iterations of dynamic routing from "
      "primary capsules; give a CapsNet with routing='dynamic' and without "
      "hidden capsules."
    )

  transforms = model.classes.transforms[...]
  num_parts, num_classes, part_size, pose_size = transforms.shape
  # One matrix for each part, so that no program rearranges them at each image.
  transforms = transforms.swapaxes(1, 2).reshape(num_parts, part_size, -1)

  def one(image):
    prepared = steps(image.astype(jnp.float32) / 255)[None]
    parts = model.primary(model.features(prepared))[0]
    votes = numerics.matmul(
      parts.reshape(num_parts, 1, part_size), transforms
    ).reshape(num_parts, num_classes, pose_size)
    outputs = [
      routing.dynamic_routing(
        votes,
        num_iterations=number,
        bias=model.classes.bias[...],
        leaky=route.leaky,
      )
      for number in range(1, route.num_iterations + 1)
    ]
    found = jax.tree.map(lambda *x: jnp.stack(x), *outputs)
    agreements = numerics.einsum("ijd,rjd->rij", votes, found.poses)
    shape = (len(outputs), *parts.shape[:3], -1)
    return {
      "part_activations": numerics.safe_norm(parts),
      "coefficients": found.coefficients.reshape(shape),
      "agreements": agreements.reshape(shape),
      "poses": found.poses,
      "activations": found.activations,
    }

  return one


def parts_of_objects(
  model: GenerativeCapsules,
) -> Callable[[jax.Array, jax.Array], Arrays]:
  """Makes a function that returns the parts that objects expect.

  The objects are those of the lowest layer of objects.

  Args:
    model: of at least two layers.

  Returns:
    A function of the `poses` [J 6] and `presences` [J] of the objects. In the
    results an axis 1+J holds the dummy parent, then the objects. It returns
    `part_poses` [I 1+J 6], the pose that each object expects of each part,
    `part_presences` [I 1+J], the probability that the part is present if it
    selects the object, and `choices` [I 1+J], the probability that the part
    selects the object.

  Raises:
    ValueError: if the model has no layer above the parts.
  """
  if not model.relations:
    raise ValueError(
      "this model has parts alone; give one with at least two layers."
    )

  def one(poses, presences):
    relations = model.relations[0]()
    logits = selection.selection_logits(
      jax.scipy.special.logit(presences), relations.log_affinities
    )
    return {
      "part_poses": selection.expected_poses(poses, relations.offsets),
      "part_presences": jax.nn.sigmoid(relations.presence_logits),
      "choices": numerics.softmax(logits, -1),
    }

  return one


def gibbs_sweep(model: nnx.Module) -> Callable[..., Arrays]:
  """Makes a function of one Gibbs sweep, with random numbers as arguments.

  First the capsules are sampled from their exact posterior given the image,
  then the image given the capsules, as in `CapsuleRBM.sweep` with `block=True`.

  Args:
    model: a `CapsuleRBM` with switches and Bernoulli units.

  Returns:
    A function of `images` [H W C], the state of the chain; `known` [H W C], 1
    where a pixel keeps its value and 0 where it is sampled; and uniform random
    numbers in [0, 1): `switch_uniforms` [K], `hidden_uniforms` [K U] and
    `image_uniforms` [H W C]. It returns `samples`, the new image, and its
    `means`, with the known pixels in both; `activities` [K], the probabilities
    of the switches given the old image; and of the sampled capsules `switches`
    [K] and `active` [K U], the hidden units times the switch.

  Raises:
    ValueError: if the model is no capsule RBM with switches and Bernoulli
      units.
  """
  if (
    not isinstance(model, CapsuleRBM)
    or model.switches is None
    or any(x is not families.BERNOULLI for x in model.families)
  ):
    raise ValueError(
      f"this {type(model).__name__} has no sweep with uniform random numbers; "
      "give a CapsuleRBM with switches and Bernoulli units."
    )

  def one(images, known, switch_uniforms, hidden_uniforms, image_uniforms):
    parameters = model.parameters
    bias = parameters.bias
    drive = energy.drive_from_below(images.ravel(), parameters)
    log_odds = energy.switch_log_odds(bias, drive)
    switches = _draw(switch_uniforms, log_odds)
    natural = energy.hidden_parameters(switches, bias, drive)
    capsules = energy.state(_draw(hidden_uniforms, natural[0]), switches)
    (below,) = energy.visible_parameters(capsules, parameters)
    below = below.reshape(images.shape)

    def keep(new):
      return known * images + (1 - known) * new

    return {
      "samples": keep(_draw(image_uniforms, below)),
      "means": keep(jax.nn.sigmoid(below)),
      "activities": jax.nn.sigmoid(log_odds),
      "switches": switches,
      "active": capsules.active,
    }

  return one


def _draw(uniforms, log_odds):
  """Bernoulli variables from uniform random numbers."""
  return (uniforms < jax.nn.sigmoid(log_odds)).astype(jnp.float32)
