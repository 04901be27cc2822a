r"""Trains CapsNet, a related network or a convolutional baseline on images.

  python -m experiments.train_capsnet --workdir=runs/mnist --dataset=mnist \
    --data_dir=DIR --flagfile=experiments/presets/capsnet/mnist_paper.cfg

Sabour, Frosst, Hinton (2017), Dynamic routing between capsules, section 5.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
from absl import app, flags
from flax import nnx

from capjax import losses
from capjax.evaluation import diagnostics
from capjax.specs import Spec

from . import launch
from .evaluation import suites
from .flags import augmentation, limits, networks, optimizer
from .training import train_step
from .training.task import Task


def describe(image_shape: Sequence[int], num_classes: int) -> Spec:
  """The network that the flags describe, for images of a data set."""
  return networks.describe(augmentation.canvas_of(image_shape), num_classes)


def loss(
  model: nnx.Module,
  images: jax.Array,
  labels: jax.Array,
  key: jax.Array,
  step: jax.Array,
) -> tuple[jax.Array, train_step.Metrics]:
  """The loss of a batch and its metrics."""
  del step
  if networks.is_baseline():
    return losses.classifier_loss(model(images, key), labels)
  weight = networks.reconstruction_weight()
  return losses.capsnet_loss(
    model, images, labels, reconstruction_weight=weight
  )


def measure(
  model: nnx.Module, images: jax.Array, labels: jax.Array
) -> train_step.Metrics:
  """Measures each image; it is reconstructed from the predicted class."""
  if networks.is_baseline():
    logits = model(images)
    return {
      **_right(jnp.argmax(logits, axis=-1), labels),
      "loss": optax.softmax_cross_entropy_with_integer_labels(logits, labels),
    }
  output = model(images)
  predictions = jnp.argmax(output.activations, axis=-1)
  present = jax.nn.one_hot(labels, output.activations.shape[1])
  measures = {
    **_right(predictions, labels),
    "margin_loss": losses.margin_loss(output.activations, present),
    "activations": output.activations,
    "routing_entropy": diagnostics.routing_entropy(output.coefficients),
  }
  if model.decoder is not None:
    drawn = model.decode(output.poses, predictions)
    measures["reconstruction_loss"] = losses.reconstruction_loss(drawn, images)
  return measures


def _right(predictions: jax.Array, labels: jax.Array) -> train_step.Metrics:
  accuracy = (predictions == labels).astype(jnp.float32)
  return {"prediction": predictions, "accuracy": accuracy}


TASK = Task(
  describe,
  loss,
  measure,
  sample=train_step.sample_labelled(augmentation.augment_image),
  sample_test=train_step.sample_labelled(augmentation.place_image),
  make_optimizer=optimizer.make_optimizer,
  suites=suites.of_classifier,
  after_training=("accuracy", "reconstructions", "perturbations"),
  prepare=augmentation.prepare_image,
  scores=networks.scores,
  losses=networks.losses_of,
)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  launch.train(TASK)


if __name__ == "__main__":
  flags.mark_flag_as_required("workdir")
  limits.run(main)
