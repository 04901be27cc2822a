r"""Trains a capsule RBM, or a plain RBM, by contrastive divergence.

  python -m experiments.train_boltzmann --workdir=runs/boltzmann \
    --data_dir=DIR --flagfile=experiments/presets/boltzmann/boltzmann_mnist.cfg

Li and Zhu (2019), Capsule generative models, sections 2.1 and 3.1.
"""

from absl import flags

from capjax.energy import rbm
from capjax.specs import Spec

from . import launch
from .flags import boltzmann as flagged
from .flags import errors, limits, runs
from .tasks import boltzmann
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


def make_task() -> Task:
  """The task that the flags describe."""
  arguments = dict(
    num_capsules=_NUM_CAPSULES.value,
    num_chains=flagged.NUM_CHAINS.value,
    **flagged.sizes_and_families(),
    interaction=_INTERACTION.value,
    switches=_SWITCHES.value,
  )
  return boltzmann.make_task(
    Spec(rbm.CapsuleRBM, arguments),
    flagged.make_optimizer(),
    num_sweeps=flagged.NUM_SWEEPS.value,
    block=flagged.block(),
    **flagged.task_options(),
  )


def main() -> None:
  with errors.clear_errors():
    flagged.refuse_useless_flags()
    if not _SWITCHES.value:
      limits.refuse("--noswitches", ["mean_field_iterations", "sweep"])
  launch.train(make_task)


if __name__ == "__main__":
  limits.require_folder_of_run()
  limits.run(main)
