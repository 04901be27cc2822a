"""Images of two overlapping objects: sampling, measures and figures."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from capjax import losses
from capjax.data.transforms import affnist, augment, overlap

from ..figures import multimnist as overlap_figures
from ..run import directory
from ..training import task as tasks
from ..training import train_step
from . import models
from .models import Options, Scores, Trained
from .suite import suite

_MAX_SHIFT = 4  # pixels, the paper's
_NUM_SHOWN = (8, 8)  # correct and wrong examples in the figure


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
  max_shift: int = _MAX_SHIFT,
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


def measure(
  model: nnx.Module, images: jax.Array, objects: Objects
) -> train_step.Metrics:
  """Measures each image; `accuracy` is 1 where both classes are right."""
  if not hasattr(model, "decode"):  # a network without capsules
    logits = model(images)
    present = losses.multi_hot(objects.labels, logits.shape[1])
    entropies = optax.sigmoid_binary_cross_entropy(logits, present)
    return {
      **_verdict(logits, objects.labels),
      "loss": jnp.sum(entropies, axis=-1),
    }
  output = model(images)
  present = losses.multi_hot(objects.labels, output.activations.shape[1])
  measures = {
    **_verdict(output.activations, objects.labels),
    "activations": output.activations,
    "margin_loss": losses.margin_loss(output.activations, present),
  }
  if model.decoder is not None:
    measures["reconstruction_loss"] = losses.overlap_reconstruction_loss(
      model, output.poses, objects.labels, objects.parts
    )
  return measures


def overlaid(
  trained: Trained, *, whole: bool = False
) -> tuple[train_step.Sample, int, int]:
  """How two test images are overlaid on the canvas of a model.

  As in training, where that was on overlaid images; else in the middle of the
  canvas, shifted by up to 4 pixels.

  Args:
    trained: the model.
    whole: whether shifts are small enough that no image is cut.

  Returns:
    The sample, the width of the frame around each image, and the largest shift,
    in pixels.
  """
  canvas = models.canvas(trained)[:2]
  height, width = trained.test.images.shape[1:3]
  options = trained.task.options
  scene = options.get("scene")
  if getattr(scene, "is_overlaid", False):
    options = scene._asdict()
  pad = options.get("pad", min(canvas[0] - height, canvas[1] - width) // 2)
  max_shift = options.get("max_shift", _MAX_SHIFT)
  if whole:
    max_shift = min(max_shift, max(pad, 0))

  def on_canvas(key, index, images, labels):
    image, objects = sample(
      key, index, images, labels, pad=pad, max_shift=max_shift
    )
    # A margin that is odd, or wider along one axis, is not all in the frame.
    place = functools.partial(augment.centre_pad, canvas=canvas)
    return place(image), objects._replace(parts=jax.vmap(place)(objects.parts))

  return on_canvas, pad, max_shift


@suite("images")
def multimnist(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Measures whether both of two overlapping test images are recognised.

  Sabour et al. (2017, section 6). Each test image, centred on the model's
  canvas, is overlaid with one of another class; both are shifted by up to 4
  pixels, or as far as in training on such images. The paper's frame of 4 pixels
  keeps the shifted digits whole. A model trained without a frame (`pad` is 0 in
  the scores) sees digits that are cut.

  Returns:
    The share of images whose two classes have the two highest scores, and the
    share of all classes that are among the two highest, which is larger.
  """
  sample_on_canvas, pad, max_shift = overlaid(trained)
  evaluate = tasks.make_evaluate(
    measure, sample_on_canvas, trained.config.batch_size
  )
  images, labels = models.first(trained, options.images, two_classes=True)
  measures = evaluate(trained.model, images, labels)
  decodes = getattr(trained.model, "decoder", None) is not None
  if decodes and models.canvas(trained)[2] == 1:  # two colours show two digits
    _picture(run, trained, sample_on_canvas, measures["accuracy"])
  exact = float(np.mean(measures["accuracy"]))
  return {
    "multimnist_accuracy": exact,
    "multimnist_error_percent": 100 * (1 - exact),
    "multimnist_digits_found": float(np.mean(measures["found"])),
    "num_images": len(measures["accuracy"]),
    "pad": pad,
    "max_shift": max_shift,
  }


SUITES = (multimnist,)


def _choose_pair(key, index, labels):
  """A key to place two examples with, and their indices [2]."""
  partner_key, place_key = jax.random.split(key)
  classes = overlap.group_by_class(labels)
  partner = overlap.choose_partner(partner_key, labels[index], classes)
  return place_key, jnp.stack([index, partner])


def _verdict(scores: jax.Array, labels: jax.Array) -> train_step.Metrics:
  predictions = jax.lax.top_k(scores, 2)[1]
  found = jnp.any(predictions[:, :, None] == labels[:, None], axis=1)
  exact = losses.exact_set(scores, labels)
  return {
    "prediction": predictions,
    "accuracy": exact.astype(jnp.float32),
    "found": jnp.mean(found.astype(jnp.float32), axis=1),
  }


def _picture(
  run: directory.Run,
  trained: Trained,
  sample: train_step.Sample,
  accuracy: np.ndarray,
) -> None:
  """Plots a few images, reconstructed from the two most active capsules."""
  right, wrong = (
    np.flatnonzero(accuracy == kind)[:count]
    for kind, count in zip((1, 0), _NUM_SHOWN, strict=True)
  )
  shown = np.concatenate([right, wrong])
  images, objects = models.make_examples(trained, sample, shown)

  @jax.jit
  def reconstruct(model, images, labels):
    output = model(images)
    predictions = jax.lax.top_k(output.activations, 2)[1]
    used = losses.multi_hot(
      jnp.concatenate([predictions, labels], axis=1),
      output.activations.shape[1],
    )
    absent = jnp.argmin(used, axis=1)  # the first class that is in neither
    classes = jnp.concatenate([predictions, absent[:, None]], axis=1)
    decode = functools.partial(model.decode, output.poses)
    return classes, jax.vmap(decode, 1, 1)(classes)

  classes, reconstructions = reconstruct(trained.model, images, objects.labels)
  overlap_figures.overlaps(
    images,
    reconstructions[:, :2],
    reconstructions[:, 2],
    objects.labels,
    classes[:, :2],
    classes[:, 2],
    run.figure("multimnist"),
  )
