r"""Trains CapsNet, or a convolutional baseline, on overlapping digits.

  python -m experiments.train_multimnist --workdir=runs/multimnist \
    --data_dir=DIR \
    --flagfile=experiments/presets/multimnist/multimnist_paper.cfg

Two images of different classes, each shifted independently, are overlaid on the
device in each step, from any data set. An image counts as correct if both
classes are (Sabour, Frosst, Hinton, 2017, section 6).
"""

from collections.abc import Sequence

import jax
from absl import app, flags
from flax import nnx

from capjax import data, losses
from capjax.data.transforms import augment, overlap
from capjax.specs import Spec

from . import launch
from .evaluation import multimnist
from .flags import augmentation, limits, networks, optimizer, runs
from .training import train_step
from .training.task import Task

_PAD = flags.DEFINE_integer(
  "pad",
  4,
  "Width in pixels of the black frame around each image.",
  lower_bound=0,
  upper_bound=10_000,
)
flags.set_default(augmentation.MAX_SHIFT, 4)


def describe(image_shape: Sequence[int], num_classes: int) -> Spec:
  """The network that the flags describe, for images with their frame."""
  height, width, channels = image_shape
  limits.check_shift(
    (height + _PAD.value, width + _PAD.value),
    augmentation.MAX_SHIFT.value,
    ["max_shift"],
  )
  frame = 2 * _PAD.value
  return networks.describe(
    (height + frame, width + frame, channels), num_classes
  )


def loss(
  model: nnx.Module,
  images: jax.Array,
  objects: multimnist.Objects,
  key: jax.Array,
  step: jax.Array,
) -> tuple[jax.Array, train_step.Metrics]:
  """The loss of a batch and its metrics."""
  del step
  if networks.is_baseline():
    return losses.multilabel_loss(model(images, key), objects.labels)
  return losses.overlap_loss(
    model,
    images,
    objects.labels,
    objects.parts,
    reconstruction_weight=networks.reconstruction_weight(),
  )


def sample(
  key: jax.Array, index: jax.Array, images: jax.Array, labels: jax.Array
) -> tuple[jax.Array, multimnist.Objects]:
  """Makes one image of two objects, as the flags say."""
  return multimnist.sample(
    key,
    index,
    images,
    labels,
    pad=_PAD.value,
    max_shift=augmentation.MAX_SHIFT.value,
  )


def prepare_image(image: jax.Array) -> jax.Array:
  """Puts the frame around one image."""
  frame = 2 * _PAD.value
  canvas = (image.shape[0] + frame, image.shape[1] + frame)
  return augment.centre_pad(image, canvas=canvas)


def begin(
  model: nnx.Module, train: data.Dataset, validation: data.Dataset
) -> None:
  """Checks that there are images of at least two classes."""
  del model, validation
  overlap.require_two_classes(train.labels)


TASK = Task(
  describe,
  loss,
  multimnist.measure,
  sample=sample,
  sample_test=sample,
  make_optimizer=optimizer.make_optimizer,
  suites=lambda model: ["accuracy", "multimnist"],
  after_training=("accuracy", "multimnist"),
  begin=begin,
  prepare=prepare_image,
)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  with runs.clear_errors():
    runs.refuse("train_multimnist", augmentation.DEFORMATIONS)
    if networks.ROUTING.value == "self":
      raise ValueError(
        "--routing=self: its activations sum to 1 over the classes, so that "
        "two cannot both be present; give another"
      )
  launch.train(TASK)


if __name__ == "__main__":
  flags.mark_flag_as_required("workdir")
  limits.run(main)
