"""Slot attention on images of two objects, without labels.

Locatello et al. (2020), Object-centric learning with slot attention; Biza et
al. (2023), Invariant slot attention. The two objects overlap as in MultiMNIST,
or are moved as in affNIST.
"""

import functools

import jax
import jax.numpy as jnp
import optax

from capjax import slot_autoencoder
from capjax.data.transforms.preprocessing import Preprocessing
from capjax.specs import Spec

from ..evaluation import multimnist as pairs
from ..training import train_step
from ..training.task import Task, described
from . import multimnist

SCENES = ("multimnist", "affnist_like")


@described
def make_task(
  model: Spec,
  optimizer: optax.GradientTransformation,
  *,
  scene: str = "multimnist",
  pad: int = 4,
  max_shift: int = 4,
  canvas: int = 40,
) -> Task:
  """Reconstruction of images of two objects by slots.

  Args:
    model: the autoencoder, without `image_shape`, which follows from the data.
    optimizer: the optimiser of the parameters.
    scene: "multimnist" overlays two images of different classes, as
      `overlap.overlay` does; "affnist_like" puts them anywhere on a canvas,
      each moved as `affnist.affnist_like` does.
    pad: of "multimnist", width in pixels of the frame around each image.
    max_shift: of "multimnist", largest shift of each object in pixels.
    canvas: of "affnist_like", side of the canvas in pixels.

  Raises:
    ValueError: if the scene is neither of the two.
  """
  if scene not in SCENES:
    raise ValueError(f"scene={scene!r}; pass 'multimnist' or 'affnist_like'.")
  is_overlaid = scene == "multimnist"

  def describe(image_shape, num_classes):
    del num_classes
    if is_overlaid:
      multimnist.check_shift(image_shape, pad, max_shift)
    return model.with_arguments(
      image_shape=steps(image_shape).output_shape(image_shape)
    )

  def steps(image_shape):
    """Puts an image in the middle of the canvas."""
    height, width, _ = image_shape
    frame = (height + 2 * pad, width + 2 * pad)
    return Preprocessing(canvas=frame if is_overlaid else (canvas, canvas))

  sample = (
    functools.partial(pairs.sample, pad=pad, max_shift=max_shift)
    if is_overlaid
    else functools.partial(pairs.sample_moved, canvas=(canvas, canvas))
  )
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
    steps=steps,
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
