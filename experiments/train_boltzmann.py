r"""Trains a capsule RBM, or a plain RBM, by contrastive divergence.

  python -m experiments.train_boltzmann --workdir=runs/boltzmann \
    --data_dir=DIR --flagfile=experiments/presets/boltzmann/boltzmann_mnist.cfg

Li and Zhu (2019), Capsule generative models, sections 2.1 and 3.1.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from absl import app, flags

from capjax import data
from capjax.energy import rbm
from capjax.specs import Spec

from . import launch
from .evaluation import latents
from .flags import boltzmann, limits, runs
from .training import train_step
from .training.task import Task

_NUM_CAPSULES = flags.DEFINE_integer(
  "num_capsules", 40, "Number of capsules in the hidden layer.", lower_bound=1
)
_INTERACTION = flags.DEFINE_bool(
  "interaction",
  False,
  "Add direct weights between pixels and switches (Omega in the paper).",
)
_SWITCHES = flags.DEFINE_bool(
  "switches",
  True,
  "Let capsules be off. Without switches the model is a plain RBM.",
)
flags.set_default(runs.NUM_STEPS, 12000)


def describe(image_shape: Sequence[int], num_classes: int) -> Spec:
  """The model that the flags describe."""
  del num_classes
  return boltzmann.describe_machine(
    image_shape,
    _NUM_CAPSULES.value,
    interaction=_INTERACTION.value,
    switches=_SWITCHES.value,
  )


def begin(
  model: rbm.CapsuleRBM, train: data.Dataset, validation: data.Dataset
) -> None:
  """Sets the biases of the pixels from the statistics of the training set."""
  del validation
  images = train_step.as_intensities(jnp.asarray(train.images))
  model.visible[...] = rbm.independent_units(boltzmann.VISIBLE.value, images)


TASK = Task(
  describe,
  boltzmann.loss,
  boltzmann.measure,
  make_optimizer=boltzmann.make_optimizer,
  suites=lambda model: [
    "errors",
    "samples",
    "spectra",
    "fields",
    *([] if latents.has_gaussian_pixels(model) else ["log_likelihood"]),
  ],
  after_training=("errors", "samples", "spectra", "fields"),
  begin=begin,
  **boltzmann.COMMON,
)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  with runs.clear_errors():
    boltzmann.refuse_useless_flags()
    if not _SWITCHES.value:
      runs.refuse("--noswitches", ["mean_field_iterations", "sweep"])
  launch.train(TASK)


if __name__ == "__main__":
  flags.mark_flag_as_required("workdir")
  limits.run(main)
