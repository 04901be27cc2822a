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
import jax.scipy.special
from flax import nnx
from jaxtyping import Array, Shaped

from capjax import baselines, predictions, saved
from capjax.capsnet import CapsNet
from capjax.efficient_capsnet import EfficientCapsNet
from capjax.exporting import inner_graphs
from capjax.generative.guides import AmortisedCapsules
from capjax.generative.model import GenerativeCapsules
from capjax.kernels.matching.selection import Capsules
from capjax.kernels.routing import Frames
from capjax.matrix_capsules import MatrixCapsules
from capjax.scae import SCAE, parts
from capjax.slot_autoencoder import SlotAutoencoder
from capjax.transforming import TransformingAutoencoder

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
  """One of the graphs of a trained model.

  - "model" takes `images`, uint8 [B H W C] as `TrainedModel.predict` does, and
    returns `predictions.outputs`. It also returns `poses` of the classes and
    the `reconstructions` from the class with the highest score (class
    capsules); or `poses` of the classes (matrix capsules); or `part_poses`,
    `part_features`, `object_poses` and `reconstructions` (SCAE); or
    `part_poses` (generative capsules), and with objects `object_poses`
    [B J 6] and `routing` [B I 1+J], the probability that a part selected the
    dummy (the first column) or an object.
  - "decoder" returns `images` [B H W C]. It takes `poses` [B J D] of class
    capsules, with zeros for all classes but those to decode; or `poses`
    [B I 3 3], `presences` [B I] and `features` [B I F] of parts (SCAE); or
    `poses` [B I 6] and `presences` [B I] of parts (generative capsules);
    or `latents` [B L] (`ConvVAE`); or `slots` [B J D] and, of invariant slots,
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
    one, inputs = _decoder(trained.model)
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
  predictions.scores_name(model)  # raises where images are not taken

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
  """The outputs that `predictions.outputs` does not have."""
  if isinstance(model, CapsNet | EfficientCapsNet):
    output = model(images)
    found = {"poses": output.poses}
    if model.decoder is not None and num_labels == 1:
      best = jnp.argmax(output.activations, axis=1)
      found["reconstructions"] = model.decode(output.poses, best)
    return found
  if isinstance(model, MatrixCapsules):
    return {"poses": model(images).poses}
  if isinstance(model, SCAE):
    explained, targets = model(images), model.targets(images)
    return {
      "part_poses": explained.parts.poses,
      "part_features": explained.parts.features,
      "object_poses": explained.objects.poses,
      "reconstructions": model.decoder.explain(targets, explained.parts).mean,
    }
  if isinstance(model, AmortisedCapsules):
    _, layers = model.guide(images)
    found = {"part_poses": layers[0].poses}
    if len(layers) > 1:
      found["object_poses"] = layers[1].poses
      found["routing"] = model.capsules.select(layers)[0].routing
    return found
  return {}


def _decoder(model: nnx.Module):
  """The decoder of one example, and its inputs."""
  if isinstance(model, AmortisedCapsules):
    model = model.capsules
  if isinstance(model, GenerativeCapsules):
    count = model.num_capsules[0]
    return _of_generative(model), _floats(poses=(count, 6), presences=(count,))
  if isinstance(model, CapsNet | EfficientCapsNet) and model.decoder:
    decoder = model.decoder
    poses = jax.eval_shape(model, _blank(model)).poses
    inputs = _floats(poses=poses.shape[1:])
    return lambda poses: {"images": decoder(poses[None])[0]}, inputs
  if isinstance(model, SCAE):
    count = model.encoder.num_parts
    features = model.decoder.num_features
    inputs = _floats(
      poses=(count, 3, 3), presences=(count,), features=(count, features)
    )
    return _of_scae(model), inputs
  if isinstance(model, baselines.ConvVAE):

    def draw(latents):
      return {"images": jax.nn.sigmoid(model.decode(latents[None]))[0]}

    means, _ = jax.eval_shape(model.encode, _blank(model))
    return draw, _floats(latents=means.shape[1:])
  if isinstance(model, SlotAutoencoder):

    def render(slots, *frames):
      frames = Frames(*(x[None] for x in frames)) if frames else None
      return {"images": model.decode(slots[None], frames)[0][0]}

    found = jax.eval_shape(model.encode, _blank(model))
    frames = found.frames._asdict() if found.frames else {}
    shapes = {"slots": found.contents, **frames}
    return render, _floats(**{n: x.shape[1:] for n, x in shapes.items()})
  if isinstance(model, TransformingAutoencoder):

    def generate(poses, presences):
      return {"images": model.generate(poses[None], presences[None])[0]}

    found = jax.eval_shape(model.recognise, _blank(model))
    shapes = {"poses": found[0].shape[1:], "presences": found[1].shape[1:]}
    return generate, _floats(**shapes)
  raise ValueError(
    f"this {type(model).__name__} has no decoder that takes poses or latents; "
    "export the graph 'model'."
  )


def _of_generative(model):
  def one(poses, presences):
    logits = jax.scipy.special.logit(presences)
    shares = model.shares(Capsules(logits[None], poses[None]))[0]
    return {"images": jnp.sum(shares, axis=0), "shares": shares}

  return one


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
  return one, _floats(poses=(count, 6), presences=(count,))


def _sweep(model):
  one = inner_graphs.gibbs_sweep(model)
  image, (_, *hidden) = model.image_shape, model.hidden.shape
  return one, _floats(
    images=image,
    known=image,
    switch_uniforms=tuple(hidden[:1]),
    hidden_uniforms=tuple(hidden),
    image_uniforms=image,
  )


def _of_scae(model):
  def one(poses, presences, features):
    found = parts.Parts(poses[None], presences[None], features[None])
    canvas = jnp.zeros((1, *model.image_shape))  # only the likelihood reads it
    return {"images": model.decoder.explain(canvas, found).mean[0]}

  return one


def _blank(model) -> jax.ShapeDtypeStruct:
  """A batch of one image, as shape and dtype."""
  return jax.ShapeDtypeStruct((1, *model.image_shape), jnp.float32)


def _floats(**shapes: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
  return {
    name: jax.ShapeDtypeStruct(shape, jnp.float32)
    for name, shape in shapes.items()
  }
