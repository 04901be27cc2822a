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
from capjax.generative.guides import AmortisedCapsules
from capjax.generative.model import GenerativeCapsules
from capjax.kernels.matching.selection import Capsules
from capjax.matrix_capsules import MatrixCapsules
from capjax.scae import SCAE, parts
from capjax.transforming import TransformingAutoencoder

NAMES = ("model", "decoder")

Arrays = dict[str, Shaped[Array, "..."]]


class Graph(NamedTuple):
  """A function of a batch, with names for what it takes and returns.

  Attributes:
    function: takes the inputs [B ...] in order, returns outputs [B ...] by
      name.
    inputs: shape of one example and dtype of each input, by name.
    outputs: the same of each output, in the order of the exported files.
  """

  function: Callable[..., Arrays]
  inputs: dict[str, jax.ShapeDtypeStruct]
  outputs: dict[str, jax.ShapeDtypeStruct]

  def batch(self) -> list[jax.ShapeDtypeStruct]:
    """The inputs with a leading axis B of any size, as `jax.export` has it."""
    (size,) = jax.export.symbolic_shape("B")
    return [
      jax.ShapeDtypeStruct((size, *x.shape), x.dtype)
      for x in self.inputs.values()
    ]


def graph(trained: saved.TrainedModel, name: str = "model") -> Graph:
  """One of the graphs of a trained model.

  - "model" takes `images`, uint8 [B H W C] as `TrainedModel.predict` does, and
    returns `predictions.outputs`. It returns besides `poses` of the classes and
    the `reconstructions` from the class with the highest score (class
    capsules); `poses` of the classes (matrix capsules); `part_poses`,
    `part_features`, `object_poses` and `reconstructions` (SCAE); `part_poses`
    (generative capsules).
  - "decoder" returns `images` [B H W C]. It takes `poses` [B J D] of class
    capsules, with zeros for all classes but those to decode; or `poses`
    [B I 3 3], `presences` [B I] and `features` [B I F] of parts (SCAE); or
    `poses` [B I 6] and `presences` [B I] of parts (generative capsules);
    or `latents` [B L] (`ConvVAE`); or `poses` and `presences`
    (`TransformingAutoencoder`).

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

  shape = tuple(trained.card["image_shape"])
  return one, {"images": jax.ShapeDtypeStruct(shape, jnp.uint8)}


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
    output, targets = model(images), model.targets(images)
    return {
      "part_poses": output.parts.poses,
      "part_features": output.parts.features,
      "object_poses": output.objects.poses,
      "reconstructions": model.decoder.explain(targets, output.parts).mean,
    }
  if isinstance(model, AmortisedCapsules):
    _, layers = model.guide(images)
    return {"part_poses": layers[0].poses}
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
    features = model.decoder.hidden.kernel.shape[0]
    inputs = _floats(
      poses=(count, 3, 3), presences=(count,), features=(count, features)
    )
    return _of_scae(model), inputs
  if isinstance(model, baselines.ConvVAE):

    def draw(latents):
      return {"images": jax.nn.sigmoid(model.decode(latents[None]))[0]}

    means, _ = jax.eval_shape(model.encode, _blank(model))
    return draw, _floats(latents=means.shape[1:])
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
    return {"images": model.render(Capsules(logits[None], poses[None]))[0]}

  return one


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
