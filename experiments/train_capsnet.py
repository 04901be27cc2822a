r"""Trains CapsNet, a related network or a convolutional baseline on images.

  python -m experiments.train_capsnet --workdir=runs/mnist --dataset=mnist \
    --data_dir=DIR --flagfile=experiments/presets/capsnet/mnist_paper.cfg

Sabour, Frosst, Hinton (2017), Dynamic routing between capsules, section 5.
"""

from absl import flags

from . import launch
from .flags import (
  augmentation,
  errors,
  limits,
  networks,
  optimizer,
  photometry,
  viewpoints,
)
from .tasks import capsnet
from .training.task import Task


def make_task() -> Task:
  """The task that the flags describe."""
  return capsnet.make_task(
    networks.spec(),
    optimizer.make_optimizer(),
    placement=photometry.place(augmentation.placement()),
    reconstruction_weight=networks.reconstruction_weight(),
    viewpoints=viewpoints.VIEWPOINTS.value,
  )


def main() -> None:
  with errors.clear_errors():
    optimizer.check_flags()
    photometry.refuse_decoder(flags.FLAGS["model"].value)
    viewpoints.check_flags()
  launch.train(make_task)


if __name__ == "__main__":
  limits.require_folder_of_run()
  limits.run(main)
