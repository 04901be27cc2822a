r"""Trains CapsNet, or a convolutional baseline, on overlapping digits.

  python -m experiments.train_multimnist --workdir=runs/multimnist \
    --data_dir=DIR \
    --flagfile=experiments/presets/multimnist/multimnist_paper.cfg

Two images of different classes, each shifted independently, are overlaid on the
device in each step, from any data set. An image counts as correct if both
classes are (Sabour, Frosst, Hinton, 2017, section 6).
"""

from absl import flags

from . import launch
from .flags import augmentation, errors, limits, networks, optimizer
from .tasks import multimnist
from .training.task import Task

_PAD = flags.DEFINE_integer(
  "pad",
  4,
  "Width in pixels of the black frame around each image.",
  lower_bound=0,
  upper_bound=10_000,
)
flags.set_default(augmentation.MAX_SHIFT, 4)


def make_task() -> Task:
  """The task that the flags describe."""
  return multimnist.make_task(
    networks.spec(),
    optimizer.make_optimizer(),
    pad=_PAD.value,
    max_shift=augmentation.MAX_SHIFT.value,
    reconstruction_weight=networks.reconstruction_weight(),
  )


def main() -> None:
  with errors.clear_errors():
    optimizer.check_flags()
    limits.refuse("train_multimnist", augmentation.DEFORMATIONS)
    if networks.ROUTING.value == "self":
      raise ValueError(
        "--routing=self: its activations sum to 1 over the classes, so that "
        "two cannot both be present; give another"
      )
  launch.train(make_task)


if __name__ == "__main__":
  limits.require_folder_of_run()
  limits.run(main)
