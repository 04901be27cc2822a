"""CapsNet, Efficient-CapsNet and the convolutional baseline, on single images.

Sabour, Frosst, Hinton (2017), Dynamic routing between capsules, section 5. An
image has one label, or a multi-hot label of several classes. With multi-hot
labels, classes with an activation above 1/2, midway between the margins, count
as predicted; without capsules, classes with a probability above 1/2.
"""

import functools
import math

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from capjax import losses, predictions
from capjax.baselines import CapsNetBaseline
from capjax.capsnet import CapsNet
from capjax.efficient_capsnet import EfficientCapsNet
from capjax.evaluation import diagnostics
from capjax.kernels import checks
from capjax.specs import Spec

from ..evaluation import suites
from ..training import augmentation, train_step
from ..training import viewpoints as viewpoints_of
from ..training.augmentation import Placement
from ..training.task import Task, described
from . import class_scores

_PRESENT = 0.5  # the activation above which a class counts as predicted


@described(CapsNet, EfficientCapsNet, CapsNetBaseline)
def make_task(
  model: Spec,
  optimizer: optax.GradientTransformation,
  *,
  placement: Placement | None = None,
  reconstruction_weight: float = losses.RECONSTRUCTION_WEIGHTS["paper"],
  viewpoints: str = "all",
) -> Task:
  """Classification of single images, by capsules or by a network of logits.

  Args:
    model: the network, without `image_shape` and `num_classes`, which follow
      from the data.
    optimizer: the optimiser of the parameters.
    placement: how training images are shifted and deformed, and the canvas that
      all images are placed on; None for shifts by up to 2 pixels.
    reconstruction_weight: weight of the squared error of an image in the loss;
      0 for capsules without a decoder.
    viewpoints: to train on, as for `viewpoints.held_out`.

  Raises:
    TypeError: if the weight is no number, or the model is not of this task.
    ValueError: if the weight is negative, or there is a weight and no decoder.
  """
  check_weight(model, reconstruction_weight)
  placement = placement or Placement()

  def place(function):
    return functools.partial(function, placement=placement)

  def describe(image_shape, num_classes):
    return model.with_arguments(
      image_shape=augmentation.canvas_of(image_shape, placement),
      num_classes=num_classes,
    )

  def suites_of(model):
    unfit = []
    if placement.crop or placement.downsample:
      unfit = ["multimnist", "affnist_like"]  # place whole images on a canvas
    if placement.standardise:
      unfit.append("multimnist")  # shows intensities, and two of them overlaid
    scored_by = viewpoints_of.scored_by(viewpoints)
    return suites.of_classifier(model, scored_by=scored_by, unfit=unfit)

  steps = augmentation.steps(placement)
  return Task(
    describe,
    functools.partial(loss, reconstruction_weight=reconstruction_weight),
    measure,
    sample=train_step.sample_labelled(place(augmentation.augment_image)),
    sample_test=train_step.sample_labelled(place(augmentation.place_image)),
    optimizer=optimizer,
    suites=suites_of,
    after_training=(
      "accuracy",
      "viewpoints",
      "reconstructions",
      "perturbations",
    ),
    steps=lambda shape: steps,
    scores=functools.partial(class_scores.scores, steps=steps),
    attack_loss=functools.partial(class_scores.attack_loss, steps=steps),
    # Activations of self-routing sum to 1: two cannot both be present.
    multi_hot=model.arguments.get("routing") != "self",
    **viewpoints_of.held_out(viewpoints),
  )


def check_weight(model: Spec, reconstruction_weight: float) -> None:
  """Checks the weight of reconstructions, and that there is a decoder for it.

  Raises:
    TypeError: if it is no number.
    ValueError: if it is negative, or not 0 for capsules without a decoder.
  """
  checks.within(0.0, math.inf, reconstruction_weight=reconstruction_weight)
  if reconstruction_weight and model.arguments.get("decoder_features") in (
    (), []
  ):  # fmt: skip
    raise ValueError(
      f"reconstruction_weight is {reconstruction_weight}, and the model has no "
      "decoder (decoder_features is empty); give a weight of 0, or widths of a "
      "decoder"
    )


def loss(
  model: nnx.Module,
  images: jax.Array,
  labels: jax.Array,
  key: jax.Array,
  step: jax.Array,
  *,
  reconstruction_weight: float,
) -> tuple[jax.Array, train_step.Metrics]:
  """The loss of a batch and its metrics.

  With `reconstruction_weight` bound, it is a `train_step.Loss`.

  Args:
    model: the network.
    images: [B H W C] in [0, 1].
    labels: [B], the classes; or [B J] of 0 and 1.
    key: samples the dropout of a network without capsules.
    step: not used.
    reconstruction_weight: as for `make_task`.

  Returns:
    The margin and reconstruction loss of capsules, or the cross-entropy of
    logits. With several classes in an image, the margin loss requires all, the
    decoder sees the capsules of all, and the cross-entropy is that of sigmoids,
    summed over the classes.
  """
  del step
  if labels.ndim == 2:
    measures = _measure_sets(model, images, labels, key, decoded=labels)
    metrics = {n: jnp.mean(x) for n, x in measures.items() if x.ndim == 1}
    if predictions.has_class_capsules(model):
      metrics["loss"] = metrics["margin_loss"]
      if reconstruction_weight:
        error = metrics["reconstruction_loss"]
        metrics["loss"] += reconstruction_weight * error
    return metrics["loss"], metrics
  if not predictions.has_class_capsules(model):
    return losses.classifier_loss(model(images, key), labels)
  return losses.capsnet_loss(
    model, images, labels, reconstruction_weight=reconstruction_weight
  )


def measure(
  model: nnx.Module, images: jax.Array, labels: jax.Array
) -> train_step.Metrics:
  """Measures each image [H W C]; it is reconstructed from the predicted class.

  Args:
    model: the network.
    images: [B H W C] in [0, 1].
    labels: [B], the classes; or [B J] of 0 and 1.

  Returns:
    `prediction` and `accuracy` [B]; without capsules `loss` [B]; with capsules
    `margin_loss` and `routing_entropy` [B], `activations` [B J], and with a
    decoder `reconstruction_loss` [B]. With several classes in an image there is
    no `prediction`; `accuracy` is whether exactly the true classes are
    predicted, and `class_accuracy` the share of the classes that are right.
  """
  if labels.ndim == 2:
    return _measure_sets(model, images, labels)
  if not predictions.has_class_capsules(model):
    logits = model(images)
    return {
      **_right(jnp.argmax(logits, axis=-1), labels),
      "loss": optax.softmax_cross_entropy_with_integer_labels(logits, labels),
    }
  output = model(images)
  classes = jnp.argmax(output.activations, axis=-1)
  present = jax.nn.one_hot(labels, output.activations.shape[1])
  measures = {
    **_right(classes, labels),
    "margin_loss": losses.margin_loss(output.activations, present),
    "activations": output.activations,
    "routing_entropy": diagnostics.routing_entropy(output.coefficients),
  }
  if model.decoder is not None:
    reconstructions = model.decode(output.poses, classes)
    measures["reconstruction_loss"] = losses.reconstruction_loss(
      reconstructions, images
    )
  return measures


def _measure_sets(model, images, present, key=None, decoded=None):
  """Measures of images that belong to several classes, `present` [B J].

  Args:
    model: the network.
    images: [B H W C].
    present: [B J] of 0 and 1.
    key: samples dropout in training.
    decoded: [B J], the capsules to decode; None for those predicted.
  """
  if not predictions.has_class_capsules(model):
    logits = model(images) if key is None else model(images, key)
    entropies = optax.sigmoid_binary_cross_entropy(logits, present)
    return {**_right_sets(logits > 0, present), "loss": entropies.sum(axis=-1)}
  output = model(images)
  predicted = output.activations > _PRESENT
  marks = present.astype(output.activations.dtype)
  measures = {
    **_right_sets(predicted, present),
    "margin_loss": losses.margin_loss(output.activations, marks),
    "activations": output.activations,
    "routing_entropy": diagnostics.routing_entropy(output.coefficients),
  }
  if model.decoder is not None:
    decoded = predicted.astype(jnp.int32) if decoded is None else decoded
    reconstructions = model.decode(output.poses, decoded)
    measures["reconstruction_loss"] = losses.reconstruction_loss(
      reconstructions, images
    )
  return measures


def _right_sets(predicted, present):
  right = predicted == (present > 0)
  return {
    "accuracy": jnp.all(right, axis=-1).astype(jnp.float32),
    "class_accuracy": jnp.mean(right, axis=-1),
  }


def _right(classes: jax.Array, labels: jax.Array) -> train_step.Metrics:
  accuracy = (classes == labels).astype(jnp.float32)
  return {"prediction": classes, "accuracy": accuracy}
