"""The outputs of trained models for images: classes, presences, images.

One row for each family of models names its outputs, and which of them are
scores of the classes.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from capjax import baselines
from capjax.capsnet import CapsNet
from capjax.efficient_capsnet import EfficientCapsNet
from capjax.energy import CapsuleHM, CapsuleRBM
from capjax.generative.guides import AmortisedCapsules
from capjax.kernels import numerics
from capjax.matrix_capsules import MatrixCapsules
from capjax.scae import SCAE, ConstellationAutoencoder
from capjax.slot_autoencoder import SlotAutoencoder
from capjax.transforming import TransformingAutoencoder

_PRESENT = 0.5  # the score above which a class counts as present

Outputs = dict[str, Float[Array, "B ..."]]


class Prediction(NamedTuple):
  """The predictions of a model for N images.

  Attributes:
    classes: int [N], the index of the class with the highest score; [N L], from
      the highest score on, for a model of images with L labels; bool [N J],
      whether the score is above 1/2, where an image may have any number of
      labels; None for a model that does not know classes.
    scores: [N J], of the classes; None without classes.
    kind: what the scores are: "activations" of class capsules, each in [0, 1],
      which do not sum to 1; or "probabilities". None without classes.
    outputs: the other outputs by name, each [N ...]; see `outputs`.
  """

  classes: np.ndarray | None
  scores: np.ndarray | None
  kind: str | None
  outputs: dict[str, np.ndarray]

  def __repr__(self) -> str:
    """Names the shapes of the scores and of the other outputs."""
    known = [("classes", self.classes), (self.kind, self.scores)]
    told = (
      f"{name} {list(x.shape)}"
      for name, x in [*known, *self.outputs.items()]
      if x is not None
    )
    return f"<Prediction: {', '.join(told)}>"


class _Family(NamedTuple):
  """How models of a class are read: `(model, images) -> outputs`.

  `scores` is the output that has the scores of the classes.
  """

  read: Callable[[nnx.Module, jax.Array], Outputs]
  scores: str | None = None


def outputs(
  model: nnx.Module,
  images: Float[Array, "B H W C"],
  *,
  num_labels: int | None = 1,
) -> Outputs:
  """The outputs of a model for prepared images, by name.

  - class capsules: `activations` [B J];
  - `CapsNetBaseline`: `probabilities` [B J], by a softmax of the logits, or by
    sigmoids where images have several labels;
  - `SCAE`: `probabilities` [B J] of the linear probe on the posterior
    presences, `objects` [B K] and `parts` [B M], the presences of both;
  - `AmortisedCapsules`: `presences_1`, ... [B I] of each layer from the parts
    up, and `reconstructions` [B H W C];
  - `CapsuleRBM` and `CapsuleHM`: `activities_1`, ... [B K], the probabilities
    of the switches of each layer (of hidden units in a plain RBM), and
    `reconstructions`;
  - `ConvVAE`: `latents` [B L], their means, and `reconstructions`;
  - `SlotAutoencoder`: `slots` [B J D], `masks` [B J H W], the share of each
    slot in a pixel, `reconstructions`, and of invariant slots `positions` and
    `scales` [B J 2];
  - `TransformingAutoencoder`: `presences` [B I], `poses` [B I ...], and
    `reconstructions` without a transformation.

  Args:
    model: a model in evaluation mode.
    images: the input of the model.
    num_labels: the number of labels of an image; None for any number, 0 for a
      model that was trained without labels, whose classes are left out.

  Raises:
    ValueError: if the model does not take images.
  """
  if isinstance(model, baselines.CapsNetBaseline) and num_labels not in (0, 1):
    return {"probabilities": jax.nn.sigmoid(model(images))}
  family = _family(model)
  found = family.read(model, images)
  if num_labels == 0:
    return {name: x for name, x in found.items() if name != family.scores}
  return found


def scores_name(model: nnx.Module) -> str | None:
  """The output that has the scores of the classes; None without classes.

  Args:
    model: a model of the library.

  Raises:
    ValueError: if the model does not take images.
  """
  return _family(model).scores


def has_class_capsules(model: nnx.Module) -> bool:
  """Whether a classifier has a capsule for each class; others give logits.

  Args:
    model: a classifier.
  """
  return any(
    isinstance(model, known)
    for known, family in _FAMILIES.items()
    if family.scores == "activations"
  )


def prediction(
  model: nnx.Module, found: dict[str, np.ndarray], *, num_labels: int | None = 1
) -> Prediction:
  """The classes with the highest scores, and all outputs.

  Args:
    model: the model.
    found: its `outputs`.
    num_labels: the number of labels of an image; None for any number, 0 for a
      model that was trained without labels.
  """
  kind = None if num_labels == 0 else scores_name(model)
  rest = {name: x for name, x in found.items() if name != kind}
  if kind is None:
    return Prediction(None, None, None, rest)
  scores = found[kind]
  if num_labels is None:
    return Prediction(scores > _PRESENT, scores, kind, rest)
  order = np.argsort(-scores, axis=1, kind="stable")
  classes = order[:, 0] if num_labels == 1 else order[:, :num_labels]
  return Prediction(classes, scores, kind, rest)


def _family(model: nnx.Module) -> _Family:
  for known, family in _FAMILIES.items():
    if isinstance(model, known):
      return family
  if isinstance(model, ConstellationAutoencoder):
    raise ValueError(
      "a ConstellationAutoencoder takes points [N M 2] in [-1, 1] and their "
      "presences [N M], not images; call the model with these."
    )
  names = ", ".join(x.__name__ for x in _FAMILIES)
  raise ValueError(
    f"predictions of a {type(model).__name__} are not defined; they are for "
    f"{names}."
  )


def _of_classes(model, images):
  return {"activations": model(images).activations}


def _of_baseline(model, images):
  return {"probabilities": numerics.softmax(model(images))}


def _of_scae(model, images):
  output = model(images)
  return {
    "probabilities": numerics.softmax(output.posterior_logits),
    "objects": output.objects.posterior_presence(),
    "parts": output.parts.presence,
  }


def _numbered(name, layers):
  return {f"{name}_{n}": layer for n, layer in enumerate(layers, start=1)}


def _of_generative(model, images):
  presences = _numbered("presences", model.activities(images))
  return presences | {"reconstructions": model.reconstruct(images)}


def _of_rbm(model, images):
  activities = _numbered("activities", model.activities(images))
  rendered = model.reconstruct(model.infer(images))
  return activities | {"reconstructions": rendered}


def _of_helmholtz(model, images):
  layers = model.infer(images)
  activities = _numbered("activities", [x.switches for x in layers])
  return activities | {"reconstructions": model.reconstruct(layers[0])}


def _of_vae(model, images):
  (latents,) = model.activities(images)
  return {"latents": latents, "reconstructions": model.reconstruct(images)}


def _of_transforming(model, images):
  poses, presences = model.recognise(images)
  return {
    "presences": presences,
    "poses": poses,
    "reconstructions": model.generate(poses, presences),
  }


def _of_slots(model, images):
  output = model(images)
  frames = output.slots.frames
  return {
    "slots": output.slots.contents,
    "masks": output.masks,
    "reconstructions": output.reconstructions,
    **({} if frames is None else frames._asdict()),
  }


_FAMILIES = {
  CapsNet: _Family(_of_classes, "activations"),
  EfficientCapsNet: _Family(_of_classes, "activations"),
  MatrixCapsules: _Family(_of_classes, "activations"),
  baselines.CapsNetBaseline: _Family(_of_baseline, "probabilities"),
  SCAE: _Family(_of_scae, "probabilities"),
  AmortisedCapsules: _Family(_of_generative),
  CapsuleRBM: _Family(_of_rbm),
  CapsuleHM: _Family(_of_helmholtz),
  baselines.ConvVAE: _Family(_of_vae),
  SlotAutoencoder: _Family(_of_slots),
  TransformingAutoencoder: _Family(_of_transforming),
}
