"""The main part of every training binary: train, then evaluate the best model.

Flags are turned into arguments by the binaries and here; `training`, `tasks`,
`evaluation` and `figures` do not read flags.
"""

import functools
import pathlib
from collections.abc import Callable

from capjax import data, pretrained
from capjax import saved as saved_models
from capjax.saved import TrainedModel

from . import pipeline
from .evaluation import models
from .flags import datasets, errors, hosts, lengths, limits, runs
from .run import directory, processes
from .training import task as tasks

_IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


def divide_cpu() -> None:
  """Divides a CPU into devices, as the flags say, before one is used."""
  config = runs.loop_config()
  hosts.divide_cpu(max(config.batch_size // config.num_micro_batches, 1))


def restore(
  run: directory.Run, task: tasks.Task, test: data.Dataset
) -> models.Trained:
  """The trained model of a run, with the data that the flags name."""
  return models.restore(
    run,
    task,
    runs.loop_config(),
    test,
    load_train=functools.cache(lambda: datasets.load("train")),
    data_dir=datasets.DATA_DIR.value,
    # Suites check other data before they use them.
    load_other=functools.cache(lambda name: datasets.load("test", name)),
  )


def _source(
  run: directory.Run, task: tasks.Task, dataset: data.Dataset
) -> TrainedModel | None:
  """The model of --start_from; None without it, or where the run resumes.

  Raises:
    FileNotFoundError: if there is no such model.
    ValueError: if it cannot be read, or none of its weights fit.
  """
  if not runs.START_FROM.value:
    return None
  if pipeline.has_state(run, task, runs.loop_config()):
    return None
  trained = pretrained.load_any(runs.START_FROM.value)
  spec = task.describe(dataset.images.shape[1:], dataset.num_classes)
  saved_models.fitting(spec.shapes(), trained)  # fails now if nothing fits
  return trained


def _refuse_data_folder() -> None:
  """Raises a ValueError if the run would write into a folder of data."""
  workdir = pathlib.Path(runs.WORKDIR.value).expanduser().resolve()
  name, folder = datasets.place()
  data_path = (folder / name).resolve() if folder else None
  if data_path and data_path.is_dir() and workdir.is_relative_to(data_path):
    raise ValueError(
      f"--workdir={runs.WORKDIR.value} is in the folder of the data "
      f"{data_path}, where the files of a run would be read as data; give "
      "another folder"
    )
  if not (workdir / "flags.cfg").exists() and _holds_classes(workdir):
    raise ValueError(
      f"--workdir={runs.WORKDIR.value} holds folders of images, and the "
      "files of a run there would be read as data; give another folder"
    )


def _holds_classes(folder: pathlib.Path) -> bool:
  """Whether there are images in CLASS/ or SPLIT/CLASS/ of a folder."""
  return any(
    path.suffix.lower() in _IMAGES
    and "figures" not in path.relative_to(folder).parts
    for pattern in ("*/*", "*/*/*")
    for path in folder.glob(pattern)
  )


def _prepare(
  make_task: Callable[[], tasks.Task],
) -> tuple[tasks.Task, data.Dataset, data.Dataset]:
  """Makes the task and loads both sets, so that errors come before training."""
  task = make_task()
  _refuse_data_folder()
  if runs.loop_config().num_validation == 0:
    limits.refuse("--num_validation=0", ["stop_accuracy"])
  train_set, test = datasets.load("train"), datasets.load("test")
  tasks.require_labels(task, train_set, datasets.place()[0])
  return task, train_set, test


def train(make_task: Callable[[], tasks.Task]) -> None:
  """Trains for a task, or resumes, as the flags say; writes the run's files.

  Args:
    make_task: `() -> task` of the flags. A ValueError that it raises ends the
      program with its message.
  """
  with errors.clear_errors(), datasets.naming_the_default():
    runs.configure()
    divide_cpu()
    hosts.initialise()  # before anything uses a device
    processes.require_same("flags", runs.invocation().flags)
    task, train_set, test = processes.together(lambda: _prepare(make_task))
    stored = [
      isinstance(x.images, data.StoredImages) for x in (train_set, test)
    ]
    processes.require_same("whether images stay in files (--stream)", stored)
    run = runs.open_run(runs.WORKDIR.value)
    pipeline.complete(
      task,
      run,
      train_set,
      test,
      runs.loop_config(),
      invocation=runs.invocation(),
      source=_source(run, task, train_set),
      source_name=runs.START_FROM.value or "",
      load_train=lambda: datasets.load("train"),
      data_dir=datasets.DATA_DIR.value,
      flags_of_size=limits.flags_of_size,
      of_length=lengths.depending,
    )
