r"""Trains a capsule RBM, or a plain RBM, by contrastive divergence.

  python -m experiments.train_boltzmann --workdir=runs/boltzmann \
    --data_dir=DIR --flagfile=experiments/presets/boltzmann_mnist.cfg

Li and Zhu (2019), Capsule generative models, sections 2.1 and 3.1.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from absl import app, flags

from capjax import boltzmann, data
from capjax.specs import Spec
from experiments.common import (
  contrastive,
  latents,
  limits,
  program,
  runs,
  training,
)
from experiments.common.task import Task

_NUM_CAPSULES = flags.DEFINE_integer(
  "num_capsules", 40, "Capsules of the hidden layer.", lower_bound=1
)
_INTERACTION = flags.DEFINE_bool(
  "interaction", False, "Let pixels meet the switches directly (Omega)."
)
_SWITCHES = flags.DEFINE_bool(
  "switches", True, "Capsules can be off; without, it is a plain RBM."
)
flags.set_default(runs.NUM_STEPS, 12000)


def describe(image_shape: Sequence[int], num_classes: int) -> Spec:
  """The model that the flags describe."""
  del num_classes
  return contrastive.describe_machine(
    image_shape,
    _NUM_CAPSULES.value,
    interaction=_INTERACTION.value,
    switches=_SWITCHES.value,
  )


def begin(
  model: boltzmann.CapsuleRBM, train: data.Dataset, validation: data.Dataset
) -> None:
  """Gives the pixels the biases of the training set."""
  del validation
  images = training.as_intensities(jnp.asarray(train.images))
  model.visible[...] = boltzmann.independent_units(
    contrastive.VISIBLE.value, images
  )


TASK = Task(
  describe,
  contrastive.loss,
  contrastive.measure,
  make_optimizer=contrastive.make_optimizer,
  suites=lambda model: [
    "errors",
    "samples",
    "spectra",
    "fields",
    *([] if latents.has_gaussian_pixels(model) else ["log_likelihood"]),
  ],
  after_training=("errors", "samples", "spectra", "fields"),
  begin=begin,
  **contrastive.COMMON,
)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  with runs.clear_errors():
    contrastive.refuse_useless_flags()
    if not _SWITCHES.value:
      runs.refuse("--noswitches", ["mean_field_iterations", "sweep"])
  program.train(TASK)


if __name__ == "__main__":
  flags.mark_flag_as_required("workdir")
  limits.run(main)
