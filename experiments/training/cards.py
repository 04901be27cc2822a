"""The trained model of a run as a file that `capjax.load` reads."""

from collections.abc import Mapping
from typing import Any

from flax import nnx

from capjax import data, saved, weights

from ..run import atomic_files, directory
from .task import Task

# What a card takes from the summary of a run.
_TAKEN = (
  "experiment", "preset", "command", "seed", "commit", "commit_at_end", "dirty",
  "dirty_at_end", "resumptions", "versions", "versions_at_end",
  "num_parameters", "num_steps", "reported", "start_from",
)  # fmt: skip


def of_run(
  task: Task, dataset: data.Dataset, summary: Mapping[str, Any]
) -> dict[str, Any]:
  """The card of the model of a finished run.

  Args:
    task: the task that it was trained for.
    dataset: a data set like that of training.
    summary: of the run.
  """
  shape = dataset.images.shape[1:]
  scores = {
    name: x for name, x in summary["metrics"].items() if not isinstance(x, list)
  }
  counts = summary.get("num_images", {})
  return saved.make_card(
    task.describe(shape, dataset.num_classes),
    image_shape=shape,
    class_names=_names(dataset),
    steps=task.steps(shape),
    num_labels=_num_labels(task, dataset),
    data={"name": summary["dataset"], **summary.get("data", {})},
    metrics=scores,
    num_images={name: counts[name] for name in scores if name in counts},
    **{name: summary[name] for name in _TAKEN if name in summary},
  )


def _names(dataset: data.Dataset) -> list[str]:
  """The names of the classes; their numbers where the data have no names."""
  numbers = [str(n) for n in range(dataset.num_classes)]
  return list(dataset.class_names) or numbers


def _num_labels(task: Task, dataset: data.Dataset) -> int | None:
  """The number of labels of an image; None for any number."""
  if dataset.is_multi_hot:
    return None
  return task.num_labels if dataset.is_labelled else 0


def write(
  run: directory.Run,
  task: Task,
  model: nnx.Module,
  dataset: data.Dataset,
  summary: Mapping[str, Any],
) -> dict[str, Any]:
  """Writes model.safetensors and model.json into the folder of a run.

  Args:
    run: the run.
    task: the task that it was trained for.
    model: the model that it reports.
    dataset: a data set like that of training.
    summary: of the run.

  Returns:
    The card.

  Raises:
    OSError: if a file cannot be written.
  """
  card = of_run(task, dataset, summary)
  path = run.workdir / weights.NAME
  try:
    card = saved.save(saved.TrainedModel(model, card), path)
  except OSError as error:
    raise atomic_files.not_written(path, error) from error
  atomic_files.write_json(run.workdir / "model.json", card)
  return card
