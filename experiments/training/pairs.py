"""Two objects in an image: how examples are sampled, and their measures."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from capjax import losses, predictions
from capjax.data.transforms import affnist, overlap

from . import train_step

MAX_SHIFT = 4  # pixels, that of Sabour et al. (2017, section 6)


class Objects(NamedTuple):
  """The two objects in an image.

  Attributes:
    labels: [2], the classes.
    parts: [2 H W C] in [0, 1], each object alone.
  """

  labels: jax.Array
  parts: jax.Array


def sample(
  key: jax.Array,
  index: jax.Array,
  images: jax.Array,
  labels: jax.Array,
  *,
  pad: int,
  max_shift: int = MAX_SHIFT,
) -> tuple[jax.Array, Objects]:
  """Overlays an image with one of another class, as `overlap.overlay` does.

  With `pad` and `max_shift` bound, it is a `train_step.Sample`.
  """
  place_key, both = _choose_pair(key, index, labels)
  image, parts = overlap.overlay(
    place_key, *images[both], pad=pad, max_shift=max_shift
  )
  objects = Objects(labels[both], train_step.as_intensities(parts))
  return train_step.as_intensities(image), objects


def sample_moved(
  key: jax.Array,
  index: jax.Array,
  images: jax.Array,
  labels: jax.Array,
  *,
  canvas: tuple[int, int],
) -> tuple[jax.Array, Objects]:
  """Puts an image and one of another class anywhere on a canvas.

  Both are moved as affNIST moves its digits, by `affnist.affnist_like`. With
  `canvas` bound, it is a `train_step.Sample`.
  """
  place_key, both = _choose_pair(key, index, labels)
  move = functools.partial(affnist.affnist_like, canvas=canvas)
  image, parts = overlap.merge(
    jax.vmap(move)(
      jax.random.split(place_key), train_step.as_intensities(images[both])
    )
  )
  return image, Objects(labels[both], parts)


def require_three_classes(num_classes: int) -> None:
  """Raises a ValueError if each image holds all classes of a data set."""
  if num_classes < 3:
    raise ValueError(
      f"the data set has {num_classes} classes, and each image holds two: any "
      "network finds both; give a data set of three classes or more"
    )


def measure(
  model: nnx.Module, images: jax.Array, objects: Objects
) -> train_step.Metrics:
  """Measures each image; `accuracy` is 1 where both classes are right."""
  if not predictions.has_class_capsules(model):
    logits = model(images)
    present = losses.multi_hot(objects.labels, logits.shape[1])
    entropies = optax.sigmoid_binary_cross_entropy(logits, present)
    return {
      **verdict(logits, objects.labels),
      "loss": jnp.sum(entropies, axis=-1),
    }
  output = model(images)
  present = losses.multi_hot(objects.labels, output.activations.shape[1])
  measures = {
    **verdict(output.activations, objects.labels),
    "activations": output.activations,
    "margin_loss": losses.margin_loss(output.activations, present),
  }
  if model.decoder is not None:
    measures["reconstruction_loss"] = losses.overlap_reconstruction_loss(
      model, output.poses, objects.labels, objects.parts
    )
  return measures


def _choose_pair(key, index, labels):
  """A key to place two examples with, and their indices [2]."""
  partner_key, place_key = jax.random.split(key)
  classes = overlap.group_by_class(labels)
  partner = overlap.choose_partner(partner_key, labels[index], classes)
  return place_key, jnp.stack([index, partner])


def verdict(scores: jax.Array, labels: jax.Array) -> train_step.Metrics:
  predictions = jax.lax.top_k(scores, 2)[1]
  found = jnp.any(predictions[:, :, None] == labels[:, None], axis=1)
  exact = losses.exact_set(scores, labels)
  return {
    "prediction": predictions,
    "accuracy": exact.astype(jnp.float32),
    "found": jnp.mean(found.astype(jnp.float32), axis=1),
  }
