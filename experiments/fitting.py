"""Training on arrays in a run's folder, by plain arguments."""

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from capjax import data, saved, specs
from capjax.kernels import checks
from capjax.saved import TrainedModel

from . import pipeline
from .run import directory, processes
from .run.invocation import FREE_FLAGS, Invocation
from .training import loop_config
from .training import task as tasks
from .training.loop_config import LoopConfig

# Stands for a binary's name in the records of a run that `fit` made.
EXPERIMENT = "fit"


def fit(
  task: tasks.Task,
  *,
  workdir: str | os.PathLike[str],
  train: tuple[ArrayLike, ArrayLike | None] | data.Dataset,
  test: tuple[ArrayLike, ArrayLike | None] | data.Dataset | None = None,
  class_names: Sequence[str] | None = None,
  start_from: TrainedModel | None = None,
  **options: Any,
) -> TrainedModel:
  """Trains on arrays, or resumes; writes the same folder as the binaries.

  The folder has checkpoints, `metrics.jsonl`, `provenance.json` with the
  options, `data.json` with the fingerprints of the arrays, figures of training,
  `summary.json`, and `model.safetensors` with `model.json`. The same call
  resumes a run that was stopped, and returns the model of one that is finished.
  `task.json` has the options of the task, except functions. Functions and the
  optimiser are not recorded: pass the same ones to resume. `evaluate` takes the
  folder, with the arrays as an `.npz` archive.

  Where `jax.distributed.initialize` has connected several processes, all call
  this together with the same arguments; they train on all devices.

  Args:
    task: made by `make_task` of a module of `experiments.tasks`, for example
      `capsnet.make_task(specs.Spec(capjax.CapsNet, {}), optax.adam(1e-3))`.
    workdir: the folder of the run.
    train: images and labels, as for `data.from_arrays`; the labels may be None
      for a model that learns without them.
    test: the same for testing; None holds out a fifth of each class.
    class_names: the names of the classes, as for `data.from_arrays`.
    start_from: a model whose weights a new run starts from, where they fit.
    **options: fields of `LoopConfig`; `num_steps` is needed.

  Returns:
    The reported model, as `capjax.load(workdir)` gives it.

  Raises:
    TypeError: if an option is unknown, `num_steps` is missing, or JSON cannot
      hold an argument of the Spec.
    ValueError: if the arrays cannot be used, an option is out of range, the
      task of a new run was made for another number of updates, the
      model is not made by a class or function of capjax, so that it could not
      be loaded again, or the folder holds another run.
    FloatingPointError: if training has diverged (`windows.Diverged`); the last
      good state is kept.
    SystemExit: after a signal, with the state saved.
  """
  if not isinstance(task, tasks.Task):
    raise TypeError(
      f"task is {_named(task)}; give what make_task of a module of "
      "experiments.tasks returns, for example "
      "capsnet.make_task(specs.Spec(capjax.CapsNet, {}), optax.adam(1e-3))"
    )
  if start_from is not None and not isinstance(start_from, TrainedModel):
    raise TypeError(
      f"start_from is {start_from!r}; give a trained model, as capjax.load "
      "and capjax.pretrained.load return it"
    )
  for name in sorted(options.keys() - set(LoopConfig._fields)):
    known = *LoopConfig._fields, "test", "class_names", "start_from"
    raise TypeError(
      f"{name} is no option of fit or LoopConfig; "
      f"{checks.did_you_mean(name, known)}known: {', '.join(known)}"
    )
  if "num_steps" not in options:
    raise TypeError("num_steps is missing; give the number of updates")
  config = LoopConfig(**options)
  config = loop_config.check(config)
  train_set, test_set = data.from_arrays(train, test, class_names=class_names)
  tasks.require_labels(task, train_set, "train")
  _require_same_sizes(task, train_set)
  _require_class_of_capjax(task, train_set)
  processes.require_same("options", config)
  run = directory.Run(os.fspath(workdir))
  begun = processes.by_first(run.holds_a_run)
  if not begun and task.num_steps not in (None, config.num_steps):
    raise ValueError(
      f"num_steps is {config.num_steps}, and the task was made for "
      f"{task.num_steps}; give both the same number"
    )
  try:
    pipeline.complete(
      task,
      run,
      train_set,
      test_set,
      config,
      invocation=_invocation(config),
      source=start_from,
      source_name="a model in memory",
      load_train=lambda: train_set,
      of_length=lambda: ["the loss"] if task.num_steps else [],
      about={"task": task.record()},
    )
  finally:
    # A notebook keeps an error and its frames, which would keep the lock.
    run.unlock()
  return saved.load(run.workdir)


def _named(value: Any) -> str:
  """A class by its name, anything else by the name of its type."""
  if isinstance(value, type):
    return f"the class {value.__name__}"
  return f"a {type(value).__name__}"


def _require_same_sizes(task: tasks.Task, train_set: data.Dataset) -> None:
  """Checks that sizes in the task's Spec are those of the data."""
  given = task.model
  if given is None:
    return
  found = task.describe(train_set.images.shape[1:], train_set.num_classes)
  for name in ("image_shape", "num_classes"):
    if name in given.arguments and name in found.arguments:
      own, wanted = given.arguments[name], found.arguments[name]
      if not np.array_equal(own, wanted):
        raise ValueError(
          f"the Spec says {name}={own}, and the data need {wanted}; leave "
          f"{name} out of the Spec, it is taken from the data"
        )


def _require_class_of_capjax(task: tasks.Task, train_set: data.Dataset) -> None:
  """Checks that the model can be made again from its card."""
  spec = task.describe(train_set.images.shape[1:], train_set.num_classes)
  described = spec.as_json()
  try:
    specs.from_json(described)
  except ValueError as error:
    raise ValueError(
      f"the model is made by {described['class']}, which is not of capjax: its "
      "folder could not be loaded again; train it by a loop of your own, as "
      "docs/building.md shows"
    ) from error


def _invocation(config: LoopConfig) -> Invocation:
  """The record of a call of `fit`, with its options in place of flags."""
  options = config._asdict()
  recorded = {n: x for n, x in options.items() if n not in FREE_FLAGS}
  return Invocation(
    experiment=EXPERIMENT,
    command=f"experiments.fitting.fit(task, {_as_text(recorded)})",
    dataset="arrays",
    seed=config.seed,
    flags=recorded,
    words={
      name: f"--{name}={json.dumps(x)}"
      for name, x in options.items()
      if x is not None
    },
    defaults=frozenset(
      name
      for name, x in options.items()
      if x == LoopConfig._field_defaults.get(name)
    ),
    is_call=True,
  )


def _as_text(options) -> str:
  return ", ".join(f"{n}={x!r}" for n, x in options.items() if x is not None)
