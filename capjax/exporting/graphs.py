"""The functions of a trained model that are exported.

Each takes one example. The graph has a batch axis of any size by `jax.vmap`,
so that no model needs code for a size that is not known.

Axes: B batch, I parts, J classes or objects, H W C image.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.export  # not a part of `jax` until it is imported
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Shaped

from capjax import predictions, saved
from capjax.capsnet import CapsNet
from capjax.efficient_capsnet import EfficientCapsNet
from capjax.exporting import decoders, inner_graphs
from capjax.generative.guides import AmortisedCapsules
from capjax.generative.model import GenerativeCapsules
from capjax.matrix_capsules import MatrixCapsules
from capjax.scae import SCAE

NAMES = ("model", "decoder", "routing", "parts", "sweep")

Arrays = dict[str, Shaped[Array, "..."]]


class Graph(NamedTuple):
  """A function of a batch, with named inputs and outputs.

  Attributes:
    function: takes the inputs [B ...] in order, returns outputs [B ...] by
      name.
    inputs: shape of one example and dtype of each input, by name.
    outputs: the same of each output, in the order of the exported files.
  """

  function: Callable[..., Arrays]
  inputs: dict[str, jax.ShapeDtypeStruct]
  outputs: dict[str, jax.ShapeDtypeStruct]

  def batch(self, size: int | None = None) -> list[jax.ShapeDtypeStruct]:
    """The inputs with a leading axis B, as `jax.export` has it.

    Args:
      size: B; None for any size.
    """
    (any_size,) = jax.export.symbolic_shape("B")
    axis = any_size if size is None else size
    return [
      jax.ShapeDtypeStruct((axis, *x.shape), x.dtype)
      for x in self.inputs.values()
    ]


def graph(trained: saved.TrainedModel, name: str = "model") -> Graph:
  """Returns one of the graphs of a trained model.

  - "model" takes `images`, uint8 [B H W C] as `TrainedModel.predict` does, and
    returns `predictions.outputs`. It also returns `poses` of the classes and,
    where an image has one label and the model a decoder, the `reconstructions`
    from the class with the highest score (class capsules); or `poses` of the
    classes (matrix capsules); or `part_poses`, `part_features`, `object_poses`
    and `reconstructions` (SCAE); or `part_poses` (generative capsules), and
    with objects `object_poses` [B J 6] and `routing` [B I 1+J], the probability
    that a part selected the dummy (the first column) or an object.
  - "decoder" returns `images` [B H W C]. It takes `poses` [B J D] of class
    capsules, with zeros for all classes but those to decode; or `poses`
    [B I 3 3], `presences` [B I] and `features` [B I F] of parts (SCAE); or
    `poses` [B I 6] and `presences` [B I] of parts (generative capsules), for
    which it also returns `shares` [B I H W C], of each part in each pixel; or
    `latents` [B L] (`ConvVAE`); or `slots` [B J D] and, of invariant slots,
    `positions` and `scales` [B J 2] (`SlotAutoencoder`); or `poses` and
    `presences` (`TransformingAutoencoder`).
  - "routing" of a CapsNet: `inner_graphs.routing_by_iteration` of `images`,
    uint8 [B H W C].
  - "parts" of generative capsules: `inner_graphs.parts_of_objects` of `poses`
    [B J 6] and `presences` [B J] of the objects.
  - "sweep" of a capsule RBM: `inner_graphs.gibbs_sweep`.

  Args:
    trained: the model.
    name: one of `NAMES`.

  Raises:
    ValueError: if the model has no such graph, or the name is unknown.
  """
  if name == "model":
    one, inputs = _whole(trained)
  elif name == "decoder":
    one, inputs = decoders.decoder(trained.model)
  elif name == "routing":
    one, inputs = inner_graphs.routing_by_iteration(trained), _images(trained)
  elif name == "parts":
    one, inputs = _parts(trained.model)
  elif name == "sweep":
    one, inputs = _sweep(trained.model)
  else:
    raise ValueError(f"graph {name!r} is unknown; give one of {NAMES}.")
  shapes = jax.eval_shape(one, *inputs.values())
  outputs = dict(sorted(shapes.items()))
  return Graph(jax.vmap(one), inputs, outputs)


def _whole(trained):
  model, steps = trained.model, trained.preprocessing
  num_labels = trained.card["num_labels"]
  predictions.scores_name(model)  # raises if the model takes no images

  def one(image):
    prepared = steps(image.astype(jnp.float32) / 255)[None]
    found = predictions.outputs(model, prepared, num_labels=num_labels)
    found |= _besides(model, prepared, num_labels)
    return {name: x[0] for name, x in found.items()}

  return one, _images(trained)


def _images(trained) -> dict[str, jax.ShapeDtypeStruct]:
  shape = tuple(trained.card["image_shape"])
  return {"images": jax.ShapeDtypeStruct(shape, jnp.uint8)}


def _besides(model: nnx.Module, images, num_labels) -> Arrays:
  """Computes the outputs that `predictions.outputs` does not have."""
  for known, read in _BESIDES.items():
    if isinstance(model, known):
      return read(model, images, num_labels)
  return {}


def _beside_classes(model, images, num_labels):
  output = model(images)
  found = {"poses": output.poses}
  if model.decoder is not None and num_labels == 1:
    best = jnp.argmax(output.activations, axis=1)
    found["reconstructions"] = model.decode(output.poses, best)
  return found


def _beside_matrices(model, images, num_labels):
  del num_labels
  return {"poses": model(images).poses}


def _beside_scae(model, images, num_labels):
  del num_labels
  explained, targets = model(images), model.targets(images)
  return {
    "part_poses": explained.parts.poses,
    "part_features": explained.parts.features,
    "object_poses": explained.objects.poses,
    "reconstructions": model.decoder.explain(targets, explained.parts).mean,
  }


def _beside_generative(model, images, num_labels):
  del num_labels
  _, layers = model.guide(images)
  found = {"part_poses": layers[0].poses}
  if len(layers) > 1:
    found["object_poses"] = layers[1].poses
    found["routing"] = model.capsules.select(layers)[0].routing
  return found


# `(model, images, labels of an image) -> outputs`.
_BESIDES = {
  CapsNet: _beside_classes,
  EfficientCapsNet: _beside_classes,
  MatrixCapsules: _beside_matrices,
  SCAE: _beside_scae,
  AmortisedCapsules: _beside_generative,
}


def _parts(model: nnx.Module):
  if isinstance(model, AmortisedCapsules):
    model = model.capsules
  if not isinstance(model, GenerativeCapsules):
    raise ValueError(
      f"this {type(model).__name__} has no objects that expect parts; give "
      "generative capsules."
    )
  one = inner_graphs.parts_of_objects(model)
  count = model.num_capsules[1]
  return one, decoders.floats(poses=(count, 6), presences=(count,))


def _sweep(model):
  one = inner_graphs.gibbs_sweep(model)
  image, (_, *hidden) = model.image_shape, model.hidden.shape
  return one, decoders.floats(
    images=image,
    known=image,
    switch_uniforms=tuple(hidden[:1]),
    hidden_uniforms=tuple(hidden),
    image_uniforms=image,
  )
