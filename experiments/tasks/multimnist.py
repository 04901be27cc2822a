"""CapsNet, or the convolutional baseline, on images of two overlapping digits.

Two images of different classes, each shifted independently, are overlaid on the
device in each step, from any data set. An image counts as correct if both
classes are (Sabour, Frosst, Hinton, 2017, section 6).
"""

import functools
from collections.abc import Sequence

import jax
import numpy as np
import optax
from flax import nnx

from capjax import data, losses, predictions
from capjax.baselines import CapsNetBaseline
from capjax.capsnet import CapsNet
from capjax.data.transforms import overlap
from capjax.data.transforms.preprocessing import Preprocessing
from capjax.efficient_capsnet import EfficientCapsNet
from capjax.kernels import checks
from capjax.specs import Spec

from ..training import pairs, train_step
from ..training.task import Task, described
from .capsnet import check_weight


@described(CapsNet, EfficientCapsNet, CapsNetBaseline)
def make_task(
  model: Spec,
  optimizer: optax.GradientTransformation,
  *,
  pad: int = 4,
  max_shift: int = 4,
  reconstruction_weight: float = losses.RECONSTRUCTION_WEIGHTS["paper"],
) -> Task:
  """Recognition of both objects in an image.

  Args:
    model: the network, without `image_shape` and `num_classes`, which follow
      from the data.
    optimizer: the optimiser of the parameters.
    pad: width in pixels of the black frame around each image.
    max_shift: largest shift of each object in pixels.
    reconstruction_weight: weight of the squared error of each object in the
      loss; 0 for capsules without a decoder.

  Raises:
    TypeError: if the weight is no number, or the model is not of this task.
    ValueError: if the weight is negative, or there is a weight and no decoder.
  """
  check_weight(model, reconstruction_weight)

  def describe(image_shape, num_classes):
    check_shift(image_shape, pad, max_shift)
    shape = steps(image_shape).output_shape(image_shape)
    return model.with_arguments(image_shape=shape, num_classes=num_classes)

  def steps(image_shape):
    """Puts a black frame around an image."""
    height, width, _ = image_shape
    return Preprocessing(canvas=(height + 2 * pad, width + 2 * pad))

  sample = functools.partial(pairs.sample, pad=pad, max_shift=max_shift)
  return Task(
    describe,
    functools.partial(loss, reconstruction_weight=reconstruction_weight),
    pairs.measure,
    sample=sample,
    sample_test=sample,
    optimizer=optimizer,
    suites=lambda model: ["accuracy", "multimnist"],
    after_training=("accuracy", "multimnist"),
    begin=_begin,
    steps=steps,
    num_labels=2,
  )


def loss(
  model: nnx.Module,
  images: jax.Array,
  objects: pairs.Objects,
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
    objects: labels [B 2] and parts [B 2 H W C] of the two objects.
    key: samples the dropout of a network without capsules.
    step: not used.
    reconstruction_weight: as for `make_task`.

  Returns:
    The margin loss of capsules, with the reconstruction loss of each object; or
    the sigmoid cross-entropy of logits.
  """
  del step
  if not predictions.has_class_capsules(model):
    return losses.multilabel_loss(model(images, key), objects.labels)
  return losses.overlap_loss(
    model,
    images,
    objects.labels,
    objects.parts,
    reconstruction_weight=reconstruction_weight,
  )


def check_shift(image_shape: Sequence[int], pad: int, max_shift: int) -> None:
  """Checks that objects stay partly within the frame around an image.

  Raises:
    checks.ImageShapeError: if they would leave it.
  """
  height, width, _ = image_shape
  if max_shift >= min(height, width) + pad:
    raise checks.ImageShapeError(
      f"objects of {height}x{width} leave a frame of {pad} pixels around them "
      f"when shifted by {max_shift}; give a smaller max_shift (--max_shift) or "
      "a larger pad (--pad)"
    )


def _begin(
  model: nnx.Module, train: data.Dataset, validation: data.Dataset
) -> None:
  """As `begin`, and raises a ValueError for fewer than three classes."""
  begin(model, train, validation)
  pairs.require_three_classes(train.num_classes)


def begin(
  model: nnx.Module, train: data.Dataset, validation: data.Dataset
) -> None:
  """Raises a ValueError unless each set has images of two classes or more."""
  del model
  overlap.require_two_classes(train.labels)
  if len(validation.labels) and len(np.unique(validation.labels)) < 2:
    raise ValueError(
      f"the {len(validation.labels)} images kept for validation are of one "
      "class, and each is laid over one of another class; keep more, as "
      "num_validation (--num_validation), or 0"
    )
