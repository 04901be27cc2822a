"""A complete run: training, the reported model, its suites and all records."""

import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from capjax import data, saved
from capjax.saved import TrainedModel

from .evaluation import after_training, models
from .figures import grids
from .run import directory, processes, provenance
from .run.invocation import Invocation
from .training import (
  allocator,
  banner,
  loop,
  memory,
  placing,
  splits,
  streaming,
  train_step,
)
from .training import task as tasks
from .training.checkpoints import Checkpoints
from .training.loop_config import LoopConfig


def has_state(run: directory.Run, task: tasks.Task, config: LoopConfig) -> bool:
  """Whether a run, or its pretraining, has a state to resume from.

  All processes must call this together.
  """
  return processes.by_first(
    lambda: (
      run.has_earlier_phase()
      or (run.has_updates() and _last_step(run, task, config) is not None)
    )
  )


def _last_step(
  run: directory.Run, task: tasks.Task, config: LoopConfig
) -> int | None:
  """The number of updates in the state to resume from; None without a state."""
  return tasks.saved_by(run, task, config).last_step()


def lock(
  run: directory.Run,
  task: tasks.Task,
  config: LoopConfig,
  invocation: Invocation,
  *,
  shortest: Callable[[], int],
  check: Callable[[], None] = lambda: None,
) -> None:
  """Locks a run's folder by `Run.lock`, in process 0 alone.

  A saved state without any update is deleted: it may be of another model or
  other data, since a run without updates may start again with other flags.
  """

  def lock_first():
    run.lock(invocation, shortest=shortest, check=check)
    saved = tasks.saved_by(run, task, config)
    if not run.has_updates() and saved.last_step() is not None:
      print(f"starting again, since {run.workdir} has no update yet")
      saved.drop_all()

  processes.by_first(lock_first)


def length_remark(names: Sequence[str]) -> str:
  """Part of a message: what depends on the length of a run, if anything."""
  if not names:
    return ""
  verb = "depend" if len(names) > 1 else "depends"
  return (
    f"; {' and '.join(names)} {verb} on the length, so that the numbers are "
    "not those of an uninterrupted run"
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
  of_length: Callable[[], Sequence[str]] = list,
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
    of_length: names what depends on the length of a run, for a message if it
      changes.
    about: further records, each a file in the folder and an entry of the
      summary.

  Raises:
    ValueError: if the data, the task and the configuration do not fit
      together, or the folder holds another run.
  """
  tasks.require_labels(task, train_set, invocation.dataset)
  processes.by_first(run.refuse_others, invocation)
  if config.stop_accuracy is not None and task.chosen_by != "accuracy":
    raise ValueError(
      f"stop_accuracy is {config.stop_accuracy}, and this task's checkpoints "
      "are not chosen by accuracy; leave it out"
    )
  if config.num_micro_batches > 1 and task.of_batch:
    raise ValueError(
      f"num_micro_batches is {config.num_micro_batches}, and {task.of_batch} "
      "squares sums over a batch, so that its weight would be smaller in parts "
      f"of a batch; give num_micro_batches=1, or {task.of_batch} a weight of 0"
    )
  records = {
    "data": tasks.data_record(train_set, test),
    "model": tasks.model_record(task, train_set),
    **about,
  }
  processes.require_same("data or model", records)
  train_set, validation = _split(task, train_set, test, config)
  need = processes.together(
    lambda: memory.check(task, train_set, config, remedy=flags_of_size)
  )

  def check():
    for name, record in records.items():
      run.require_same(name, record)

  # Without an update there is no model to report.
  lock(
    run,
    task,
    config,
    invocation,
    shortest=lambda: max(_last_step(run, task, config) or 0, 1),
    check=check,
  )
  resumes = has_state(run, task, config)
  if resumes:
    source = None
  elif source is None:
    processes.by_first(run.drop_note, "start_from")  # of a failed start
  for verb in ("lengthened", "shortened"):
    if former := getattr(run, f"{verb}_from"):
      print(
        f"{verb} from {former[-1]:,} to {config.num_steps:,} "
        f"steps{length_remark(of_length())}",
        flush=True,
      )
  for name, record in records.items():
    processes.by_first(run.note, name, record, fixed=resumes)
  _announce(task, train_set, validation, test, config, invocation, need)
  if source is not None:
    _note_source(run, source, source_name, invocation, records["data"])
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

  finish = functools.partial(
    after_training.finish, run, restore, records, step, seconds
  )
  processes.by_first_patiently(finish)


def _split(
  task: tasks.Task,
  train_set: data.Dataset,
  test: data.Dataset,
  config: LoopConfig,
) -> tuple[data.Dataset, data.Dataset]:
  """Divides examples into those for training and those for validation."""
  if not task.split:
    return splits.split_validation(
      train_set, config.num_validation, config.batch_size
    )
  if config.num_validation is not None:
    raise ValueError(
      f"num_validation is {config.num_validation}, and this task divides the "
      "images by their viewpoints; leave it out"
    )
  train_set, validation = task.split(train_set, test)
  splits.require_a_batch(len(train_set.images), config.batch_size)
  return train_set, validation


def _announce(
  task: tasks.Task,
  train_set: data.Dataset,
  validation: data.Dataset,
  test: data.Dataset,
  config: LoopConfig,
  invocation: Invocation,
  need: memory.Estimate,
) -> None:
  """Prints what is trained, on which device and data, and the memory needed."""
  spec = task.describe(train_set.images.shape[1:], train_set.num_classes)
  lines = banner.lines(
    device=provenance.device(),
    model=spec.shapes(),
    name=spec.maker.__name__,
    dataset=invocation.dataset,
    train=train_set,
    validation=validation,
    test=test,
    config=config,
  )
  lines.append(f"memory: {need.describe()}, and activations")
  lines += [f"data: {note}" for note in train_set.notes]
  lines += allocator.advice()
  print("\n".join(lines), flush=True)


def _note_source(
  run: directory.Run,
  source: TrainedModel,
  source_name: str,
  invocation: Invocation,
  now: Mapping[str, Any],
) -> None:
  """Writes in the run which model's weights it starts from.

  Warns if that model was trained on another version of the same data, whose
  record in this run is `now`.
  """
  if is_of_other_images(source.card.get("data"), invocation, now):
    print(
      f"warning: {source_name} was trained on another version of "
      f"{invocation.dataset}; test images of this run may be among the images "
      "that it was trained on",
      flush=True,
    )
  origin = {
    "name": pathlib.PurePath(source_name).name,
    "sha256": source.card.get("sha256"),
  }
  processes.by_first(run.note, "start_from", origin)


def is_of_other_images(
  card: Mapping[str, Any] | None,
  invocation: Invocation,
  now: Mapping[str, Any],
) -> bool:
  """Whether a model was trained on the same data set with another test set.

  Args:
    card: the record of the data on the model's card, if it has one.
    invocation: names the data set.
    now: the record of the data in this run.
  """
  known = card or {}
  classes, others = known.get("class_names") or (), now["class_names"] or ()
  # A class that was added or removed changes which images are held out.
  alike = bool(set(classes) & set(others)) or not (classes or others)
  same = known.get("name") == invocation.dataset and alike
  return same and known.get("test") != now["test"]


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
