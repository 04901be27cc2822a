"""Training for a task in a run's folder, by plain arguments.

`fit` trains on arrays; `complete` is what it shares with the binaries.
"""

import difflib
import functools
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from capjax import data, saved
from capjax.saved import TrainedModel

from .evaluation import models, suites
from .figures import grids
from .run import directory, processes, provenance
from .run.invocation import FREE_FLAGS, Invocation
from .training import (
  allocator,
  banner,
  cards,
  loop,
  memory,
  placing,
  streaming,
  train_step,
)
from .training import task as tasks
from .training.checkpoints import Checkpoints
from .training.loop import LoopConfig

# In the place of a binary's name, in the records of a run that `fit` made.
EXPERIMENT = "fit"


def fit(
  task: tasks.Task,
  *,
  workdir: str | os.PathLike[str],
  train: tuple[ArrayLike, ArrayLike],
  test: tuple[ArrayLike, ArrayLike] | None = None,
  class_names: Sequence[str] | None = None,
  start_from: TrainedModel | None = None,
  **options: Any,
) -> TrainedModel:
  """Trains on arrays, or resumes; writes the same folder as the binaries.

  The folder has checkpoints, `metrics.jsonl`, `provenance.json` with the
  options, `data.json` with the fingerprints of the arrays, figures of training,
  `summary.json`, and `model.safetensors` with `model.json`. The same call
  resumes a run that was stopped, and returns the model of one that is finished.
  `task.json` has the options of the task, but no functions; neither they nor
  the optimiser are recorded: give the same to resume. `evaluate` takes the
  folder, with the arrays as an `.npz` archive.

  Where `jax.distributed.initialize` has connected several processes, all call
  this together with the same arguments; they train on all devices.

  Args:
    task: made by `make_task` of a module of `experiments.tasks`, for example
      `capsnet.make_task(specs.Spec(capjax.CapsNet, {}), optax.adam(1e-3))`.
    workdir: the folder of the run.
    train: images and labels, as for `data.from_arrays`.
    test: the same for testing; None holds out a fifth of each class.
    class_names: the names of the classes, as for `data.from_arrays`.
    start_from: a model whose weights a new run starts from, where they fit.
    **options: fields of `LoopConfig`; `num_steps` is needed.

  Returns:
    The reported model, as `capjax.load(workdir)` gives it.

  Raises:
    TypeError: if an option is unknown or `num_steps` is missing.
    ValueError: if the arrays cannot be used, an option is out of range, or the
      folder holds another run.
    SystemExit: after a signal, with the state saved; and when training has
      diverged.
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
    near = difflib.get_close_matches(name, known, 1)
    remedy = f"; did you mean {near[0]}?" if near else ""
    raise TypeError(f"{name} is no option of fit or LoopConfig{remedy}")
  if "num_steps" not in options:
    raise TypeError("num_steps is missing; give the number of updates")
  config = LoopConfig(**options)
  loop.check(config)
  train_set, test_set = data.from_arrays(train, test, class_names=class_names)
  _require_same_sizes(task, train_set)
  processes.require_same("options", config)
  run = directory.Run(os.fspath(workdir))
  complete(
    task,
    run,
    train_set,
    test_set,
    config,
    invocation=_invocation(config),
    source=start_from,
    source_name="a model in memory",
    load_train=lambda: train_set,
    about={"task": task.record()},
  )
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
      if np.any(np.asarray(own) != np.asarray(wanted)):
        raise ValueError(
          f"the Spec says {name}={own}, and the data need {wanted}; leave "
          f"{name} out of the Spec, it is taken from the data"
        )


@processes.silent_but_first()
def complete(
  task: tasks.Task,
  run: directory.Run,
  train_set: data.Dataset,
  test: data.Dataset,
  config: LoopConfig,
  *,
  invocation: Invocation,
  source: TrainedModel | None = None,
  source_name: str = "",
  load_train: Callable[[], data.Dataset] | None = None,
  data_dir: str | None = None,
  flags_of_size: Callable[[Sequence[int]], str] = lambda shape: "batch_size",
  on_length: Callable[[], str] = lambda: "",
  about: Mapping[str, Mapping[str, Any]] = {},
) -> None:
  """Trains, or resumes, restores the best model, and writes all records.

  Several processes call this together, and train on all their devices. Process
  0 writes the files and, at the end, evaluates the model on its own devices,
  for which the others wait.

  Args:
    task: the task to train for.
    run: the folder, which is locked here.
    train_set: the training examples, with those for validation.
    test: the test set.
    config: the configuration of training.
    invocation: what the records say about how the run was started.
    source: a model whose weights a new run starts from, where they fit.
    source_name: its name, or the path of its folder; the records keep the last
      part.
    load_train: as in `models.Trained`.
    data_dir: as in `models.Trained`.
    flags_of_size: the `remedy` of `memory.check`.
    on_length: what to print besides where a run is lengthened.
    about: further records, each a file in the folder and an entry of the
      summary.

  Raises:
    ValueError: if the data, the model and the configuration do not fit
      together, or the folder holds another run.
  """
  if train_set.is_multi_hot and not task.multi_hot:
    raise ValueError(
      f"{invocation.dataset}: images belong to several classes at once, "
      "which only train_capsnet takes, without --routing=self; give one "
      "label for each image"
    )
  records = {
    "data": tasks.data_record(train_set, test),
    "model": tasks.model_record(task, train_set),
    **about,
  }
  processes.require_same("data or model", records)
  if task.split:
    train_set, validation = task.split(train_set, test)
    loop.require_a_batch(len(train_set.images), config.batch_size)
  else:
    train_set, validation = loop.split_validation(
      train_set, config.num_validation, config.batch_size
    )
  need = processes.together(
    lambda: memory.check(task, train_set, config, remedy=flags_of_size)
  )
  processes.by_first(run.lock, invocation)
  if run.lengthened_from:
    print(
      f"lengthened from {run.lengthened_from[-1]:,} to {config.num_steps:,} "
      f"steps{on_length()}",
      flush=True,
    )
  for name, record in records.items():
    processes.by_first(run.note, name, record)
  spec = task.describe(train_set.images.shape[1:], train_set.num_classes)
  told = banner.lines(
    device=provenance.device(),
    model=spec.shapes(),
    name=spec.maker.__name__,
    dataset=invocation.dataset,
    train=train_set,
    validation=validation,
    test=test,
    config=config,
  )
  told.append(f"memory: {need.describe()}, and activations")
  told += [f"data: {note}" for note in train_set.notes]
  told += allocator.advice()
  print("\n".join(told), flush=True)
  if source is not None:
    digest = source.card.get("sha256")
    origin = {"name": pathlib.PurePath(source_name).name, "sha256": digest}
    processes.by_first(run.note, "start_from", origin)
  step, seconds = optimise(
    task,
    run,
    train_set,
    validation,
    config,
    source=source,
    source_name=source_name,
  )

  def restore():
    return models.restore(
      run, task, config, test, load_train=load_train, data_dir=data_dir
    )

  finish = functools.partial(_finish, run, restore, records, step, seconds)
  processes.by_first_patiently(finish)


def _finish(
  run: directory.Run,
  restore: Callable[[], models.Trained],
  records: Mapping[str, Mapping[str, Any]],
  step: int,
  seconds: float,
) -> None:
  """Evaluates the reported model of a trained run; writes its summary.

  Args:
    run: the run.
    restore: gives the reported model.
    records: entries of the summary.
    step: the number of updates.
    seconds: that they took.
  """
  trained = restore()
  task, config = trained.task, trained.config
  reported = (
    "the last"
    if tasks.reports_last(task, config)
    else f"chosen on validation by {task.chosen_by}"
  )
  if config.average_decay:
    reported += ", averaged weights"
  metrics, num_images = {}, {}
  for name in task.after_training:
    if name in suites.fitting(trained):
      allocator.trim()  # Training, or another suite, has just freed memory.
      print(f"suite {name} of the test images", flush=True)
      scores = suites.SUITES[name](run, trained, models.Options())
      counts = suites.SUITES[name].counts
      num_images |= models.images_of(trained, scores, counts)
      metrics |= {x: y for x, y in scores.items() if x != "num_images"}
  run.write_summary(
    {
      "num_parameters": train_step.num_parameters(trained.model),
      "num_steps": step,
      "restarts": sum(x["split"] == "restart" for x in run.metrics()),
      "reported": reported,
      **records,
      "metrics": metrics,
      "num_images": num_images,
      "seconds": seconds,
      "images_per_second": run.images_per_second(),
      **run.noted("start_from"),
    }
  )
  cards.write(run, task, trained.model, trained.test)
  if "test_accuracy" in metrics:
    print(
      f"test accuracy {metrics['test_accuracy']:.2%} on "
      f"{len(trained.test.labels)} images (checkpoint of step {trained.step}, "
      f"{reported})"
    )
  else:
    for name in filter(lambda name: name.startswith("test_"), metrics):
      print(f"{name.replace('_', ' ')} {metrics[name]:.4g}")
  print(f"figures are in {run.workdir / 'figures'}")


def optimise(
  task: tasks.Task,
  run: directory.Run,
  train_set: data.Dataset,
  validation: data.Dataset,
  config: LoopConfig,
  *,
  source: TrainedModel | None = None,
  source_name: str = "",
) -> tuple[int, float]:
  """Trains for a task in a folder that is locked, or resumes there.

  Args:
    task: the task to train for.
    run: the run that gets checkpoints, metrics and their plot.
    train_set: the training examples.
    validation: the examples by which the checkpoint is chosen; may be empty.
    config: the configuration of training.
    source: a model whose weights a new run starts from, where they fit.
    source_name: its name, for a message.

  Returns:
    The number of updates and the seconds spent, summed over resumed processes.
  """
  mesh = placing.data_mesh(
    config.batch_size, model_parallel=config.model_parallel
  )
  model = tasks.make_model(task, train_set, config.seed)
  earlier = task.begin(model, train_set, validation) or 0.0
  if source is not None:
    copied, new = saved.start_from(model, source)
    print(
      f"{len(copied)} weights start from {source_name}; new: "
      f"{', '.join(new) or 'none'}",
      flush=True,
    )
  decay = config.average_decay
  state = train_step.init(
    model, task.optimizer, jax.random.key(config.seed), average=bool(decay)
  )
  checkpoints = tasks.saved_by(run, task, config)
  update = train_step.make_update(
    task.loss,
    task.optimizer,
    sample=task.sample,
    batch_size=config.batch_size,
    mesh=mesh,
    average_decay=decay,
    num_micro_batches=config.num_micro_batches,
    rematerialise=config.rematerialise,
  )
  if isinstance(train_set.images, data.StoredImages):
    update = streaming.Streamed(
      update,
      task.sample,
      train_set,
      batch_size=config.batch_size,
      num_steps=config.num_steps,
      mesh=mesh,
    )
  step, seconds = loop.fit(
    run,
    checkpoints,
    state,
    update=update,
    evaluate=tasks.make_evaluate(
      task.measure, task.sample_test, config.batch_size, mesh
    ),
    train=train_set,
    validation=validation,
    mesh=mesh,
    config=config,
    summarise=tasks.summarise,
    diverged=task.diverged,
    restart=task.restart,
    warn=task.warn,
  )
  chosen_by = None if tasks.reports_last(task, config) else task.chosen_by
  processes.by_first(_plot_curves, run, checkpoints, chosen_by)
  return step, earlier + seconds


def _plot_curves(
  run: directory.Run,
  checkpoints: Checkpoints,
  chosen_by: str | None,
) -> None:
  lines = run.metrics()
  if lines:  # without lines the file was lost, which resuming warns about
    grids.learning_curves(
      lines,
      run.figure("learning_curves"),
      reported=checkpoints.best_step(),
      chosen_by=chosen_by,
    )


def _invocation(config: LoopConfig) -> Invocation:
  """What the records say of a call of `fit`: its options, as if flags."""
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
  )


def _as_text(options) -> str:
  return ", ".join(f"{n}={x!r}" for n, x in options.items() if x is not None)
