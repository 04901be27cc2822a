"""Slot attention on images of two objects, without labels.

Locatello et al. (2020), Object-centric learning with slot attention; Biza et
al. (2023), Invariant slot attention. The two objects overlap as in MultiMNIST,
or are moved as in affNIST.
"""

import jax
import jax.numpy as jnp
import optax

from capjax import slot_autoencoder
from capjax.specs import Spec

from ..training import pairs, train_step
from ..training.task import Task, described
from . import multimnist
from .scenes import Scene


@described(slot_autoencoder.SlotAutoencoder)
def make_task(
  model: Spec,
  optimizer: optax.GradientTransformation,
  *,
  scene: Scene,
) -> Task:
  """Reconstruction of images of two objects by slots.

  Args:
    model: the autoencoder, without `image_shape`, which follows from the data.
    optimizer: the optimiser of the parameters.
    scene: how two images are combined into one.

  Raises:
    ValueError: if the scene's kind is unknown.
  """
  sample = scene.sampler()

  def describe(image_shape, num_classes):
    del num_classes
    return model.with_arguments(image_shape=scene.shape(image_shape))

  return Task(
    describe,
    loss,
    measure,
    sample=sample,
    sample_test=sample,
    optimizer=optimizer,
    suites=lambda model: ["errors", "object_masks"],
    after_training=("errors", "object_masks"),
    chosen_by=None,
    begin=multimnist.begin,
    steps=scene.steps,
    explain=explain,
  )


def loss(
  model: slot_autoencoder.SlotAutoencoder,
  images: jax.Array,
  objects: pairs.Objects,
  key: jax.Array,
  step: jax.Array,
) -> tuple[jax.Array, train_step.Metrics]:
  """The squared error of a batch; it is a `train_step.Loss`.

  Args:
    model: the autoencoder.
    images: [B H W C] in [0, 1].
    objects: not used.
    key: samples where slots start.
    step: not used.
  """
  del objects, step
  return slot_autoencoder.loss(model, images, key)


def measure(
  model: slot_autoencoder.SlotAutoencoder,
  images: jax.Array,
  objects: pairs.Objects,
) -> train_step.Metrics:
  """Errors of reconstructions, and the share of the ink that each slot has.

  Args:
    model: the autoencoder.
    images: [B H W C] in [0, 1].
    objects: not used.

  Returns:
    Measures [B]; `activations` [B J] are the shares.
  """
  del objects
  output = model(images)
  errors = output.reconstructions - images
  ink = jnp.mean(images, axis=-1)[:, None]
  won = jnp.sum(output.masks * ink, axis=(2, 3))
  total = jnp.sum(ink, axis=(1, 2, 3))[:, None]
  return {
    "loss": jnp.sum(jnp.square(errors), axis=(1, 2, 3)),
    "reconstruction_error": jnp.mean(jnp.abs(errors), axis=(1, 2, 3)),
    "activations": won / jnp.maximum(total, 1e-6),
  }


def explain(
  model: slot_autoencoder.SlotAutoencoder, images: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Reconstructions [B H W C] and masks [B J H W]."""
  output = model(images)
  return output.reconstructions, output.masks
