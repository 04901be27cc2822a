r"""Trains a capsule Helmholtz machine: layer by layer, then by wake-sleep.

  python -m experiments.train_helmholtz --workdir=runs/helmholtz \
    --data_dir=DIR --flagfile=experiments/presets/helmholtz/helmholtz_mnist.cfg

Each layer's capsule RBM has a folder of its own, layer_1 and so on.

Li and Zhu (2019), Capsule generative models, sections 2.2 and 3.2.
"""

import functools
from typing import Any

from absl import flags

from capjax import data
from capjax.energy.helmholtz import CapsuleHM
from capjax.energy.wake_sleep import Stack
from capjax.specs import Spec

from . import launch, pipeline
from .flags import boltzmann as flagged
from .flags import errors, limits, runs
from .run import directory, processes, provenance
from .tasks import helmholtz
from .training import memory
from .training import task as tasks
from .training.loop_config import LoopConfig
from .training.task import Task

_NUM_CAPSULES = flags.DEFINE_list(
  "num_capsules",
  ["40", "40"],
  "Number of capsules in each layer, from the lowest.",
)
_PRETRAIN_STEPS = flags.DEFINE_integer(
  "pretrain_steps",
  None,
  "Number of updates of each layer's capsule RBM, by default --num_steps; 0 "
  "starts with wake-sleep training.",
  lower_bound=0,
)
_PRETRAIN_RATE = flags.DEFINE_float(
  "pretrain_learning_rate",
  0.02,
  "Learning rate of pretraining, at the start.",
  lower_bound=0.0,
)
limits.require_counts(_NUM_CAPSULES, example="40,40")
flags.set_default(runs.NUM_STEPS, 6000)


def make_task() -> Task:
  """The task that the flags describe."""
  arguments = dict(
    num_capsules=[int(count) for count in _NUM_CAPSULES.value],
    **flagged.sizes_and_families(),
  )
  pretraining = None
  if _PRETRAIN_STEPS.value:
    config = runs.loop_config(_PRETRAIN_STEPS.value)
    pretraining = helmholtz.Pretraining(
      functools.partial(_fit_layer, runs.WORKDIR.value, config),
      flagged.make_optimizer(_PRETRAIN_RATE.value),
      num_sweeps=flagged.NUM_SWEEPS.value,
      block=flagged.block(),
      num_chains=flagged.NUM_CHAINS.value,
      seed=runs.SEED.value,
    )
  return helmholtz.make_task(
    Spec(CapsuleHM, arguments),
    flagged.make_optimizer(),
    pretraining=pretraining,
    **flagged.task_options(),
  )


def _fit_layer(
  workdir: str,
  config: LoopConfig,
  number: int,
  task: Task,
  record: dict[str, Any],
  train: data.Dataset,
  validation: data.Dataset,
) -> tuple[Stack, float]:
  """Trains a layer's RBM in a folder of its own; see `helmholtz.FitLayer`."""
  whole = directory.Run(workdir).workdir
  run = runs.open_run(f"{workdir}/layer_{number}")
  processes.together(
    lambda: memory.check(task, train, config, remedy=limits.flags_of_size)
  )
  # Its length is that of pretraining, whatever --num_steps is.
  pipeline.lock(run, task, config, runs.invocation(), shortest=lambda: 1)
  # Code that trains a layer is recorded with the whole run, as of its updates.
  processes.by_first(provenance.note_resumption, whole, runs.invocation())
  processes.by_first(run.note, "model", record)
  _, seconds = pipeline.optimise(task, run, train, validation, config)
  _, stack, _ = tasks.restore_model(run, task, train, config)
  return stack, seconds


def _check_default() -> None:
  """Refuses to change the length of a run and of its pretraining together.

  Raises:
    ValueError: if --num_steps changes, and the run in the folder was started
      with the default of --pretrain_steps, which is --num_steps.
  """
  run = directory.Run(runs.WORKDIR.value)
  if not run.holds_a_run():  # such a folder takes any flags
    return
  try:
    recorded = run.flags()
  except (OSError, ValueError):  # damaged
    return
  steps = recorded.get("pretrain_steps")
  if steps == recorded.get("num_steps") != runs.NUM_STEPS.value:
    raise ValueError(
      f"--pretrain_steps is --num_steps by default, {steps} for the run in "
      f"{runs.WORKDIR.value}; give --pretrain_steps={steps} to change its "
      "--num_steps alone"
    )


def main() -> None:
  with errors.clear_errors():
    if _PRETRAIN_STEPS.value is None:
      _check_default()
      flags.FLAGS.pretrain_steps = runs.NUM_STEPS.value  # recorded as a number
    flagged.refuse_useless_flags()
    if runs.START_FROM.value and _PRETRAIN_STEPS.value:
      raise ValueError(
        "--start_from replaces what pretraining learns; give --pretrain_steps=0"
      )
    if not _PRETRAIN_STEPS.value:
      limits.refuse(
        "without pretraining, train_helmholtz",
        ["pretrain_learning_rate", "num_sweeps", "sweep", "num_chains"],
      )
  launch.train(make_task)


if __name__ == "__main__":
  limits.require_folder_of_run()
  limits.run(main)
