"""A trained model as suites take it, with its data and what users ask for."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from capjax import data
from capjax.data.transforms import affnist
from experiments.run.directory import Run
from experiments.training import loop, train_step
from experiments.training import task as tasks
from experiments.training.loop import LoopConfig

Scores = dict[str, float | list[float]]


class Options(NamedTuple):
  """What a user asks of an evaluation.

  Attributes:
    views: affine views of each test image.
    images: test images, the first ones; None for as many as each suite takes.
    beside: runs whose curves, evaluated before, are drawn too.
  """

  views: int = 32
  images: int | None = None
  beside: Sequence[Run] = ()


class Trained(NamedTuple):
  """A trained model, its data, and its measures of the test set.

  Attributes:
    task: what it was trained for.
    config: how it was trained; its batches are those of evaluations too.
    model: the checkpoint to report, in evaluation mode.
    step: at which it was saved.
    validation: its scores on validation, by name; empty without validation.
    test: the test set.
    measures: `{name: [N ...]}` of the test set.
    load_train: `() -> training set`, before any of it is kept for validation.
    data_dir: the folder of the data sets; None for the default.
    raw_measures: the same of the weights as they were at that step, where the
      model has their average.
  """

  task: tasks.Task
  config: LoopConfig
  model: nnx.Module
  step: int
  validation: dict[str, float]
  test: data.Dataset
  measures: dict[str, np.ndarray]
  load_train: Callable[[], data.Dataset] | None = None
  data_dir: str | None = None
  raw_measures: dict[str, np.ndarray] | None = None


def means(trained: Trained) -> dict[str, float]:
  """The means of the test set's measures and of those on validation.

  Where the model has averaged weights, those of the weights as they are have
  the same names after `raw_`.
  """
  scores = {
    f"test_{n}": x for n, x in tasks.summarise(trained.measures).items()
  }
  for name, value in trained.validation.items():
    raw = "raw_" if name.startswith("raw_") else ""
    scores[f"{raw}validation_{name.removeprefix('raw_')}"] = value
  if trained.raw_measures is not None:
    raw_scores = tasks.summarise(trained.raw_measures)
    scores |= {f"raw_test_{n}": x for n, x in raw_scores.items()}
  return {**scores, "best_step": trained.step}


def images_of(trained: Trained, scores: Scores) -> dict[str, int]:
  """On how many test images each score of a suite was measured.

  Args:
    trained: what the suite was given.
    scores: of the suite; `num_images` is the count where it is not all of them,
      and 0 where no test image is looked at.
  """
  count = scores.get("num_images", len(trained.test.labels))
  return dict.fromkeys(scores, int(count))


def load_split(trained: Trained) -> tuple[data.Dataset, data.Dataset]:
  """The training set without, and the examples kept for, validation.

  Of a task without a split of its own.
  """
  config = trained.config
  return loop.split_validation(
    trained.load_train(), config.num_validation, config.batch_size
  )


def restore(
  run: Run,
  task: tasks.Task,
  config: LoopConfig,
  test: data.Dataset,
  *,
  load_train: Callable[[], data.Dataset] | None = None,
  data_dir: str | None = None,
) -> Trained:
  """The model of a run's best checkpoint, with its measures of the test set.

  Args:
    run: where it is.
    task: what was trained.
    config: how it was trained.
    test: the test set.
    load_train: as in `Trained`.
    data_dir: as in `Trained`.

  Raises:
    ValueError: if the run has no checkpoint that can be read.
  """
  step, models, scores = tasks.restore_models(run, task, test, config)
  evaluate = tasks.make_evaluate(
    task.measure, task.draw_test, config.batch_size
  )
  measures = [evaluate(model, test.images, test.labels) for model in models]
  return Trained(
    task,
    config,
    models[0],
    step,
    scores,
    test,
    measures[0],
    load_train=load_train,
    data_dir=data_dir,
    raw_measures=measures[1] if len(measures) > 1 else None,
  )


def distinct_labels(
  folders: Sequence[pathlib.Path], labels: Sequence[str]
) -> list[str]:
  """The labels of runs, longer where one before has the same.

  Args:
    folders: of the runs, of which the name is added, then that of the folder
      around it, and a number where these are the same too.
    labels: one for each run.
  """
  distinct = []
  for folder, label in zip(folders, labels, strict=True):
    folder = folder.resolve()
    added = [folder.name] if folder.name != label else []
    added.append(f"{folder.parent.name}/{folder.name}")
    added += map(str, range(2, len(labels) + 1))
    names = [label, *(f"{label} ({words})" for words in added)]
    distinct.append(next(name for name in names if name not in distinct))
  return distinct


def draw_affine_view(trained: Trained) -> train_step.Draw:
  """Draws affine views as those of affNIST, on the model's canvas."""
  size = canvas(trained)[:2]

  def draw(key, index, images, labels):
    image = train_step.as_intensities(images[index])
    return affnist.affnist_like(key, image, canvas=size), labels[index]

  return draw


def canvas(trained: Trained) -> tuple[int, ...]:
  """The shape [H W C] of the images that a model takes."""
  shape = trained.test.images.shape[1:]
  image = jax.ShapeDtypeStruct(shape, jnp.float32)
  return jax.eval_shape(trained.task.prepare, image).shape


def first(trained: Trained, count: int | None) -> tuple[np.ndarray, np.ndarray]:
  """The first test images and labels; None for all."""
  return trained.test.images[:count], trained.test.labels[:count]


def draw_examples(
  trained: Trained, draw: train_step.Draw, indices: np.ndarray
) -> tuple[Any, Any]:
  """Draws chosen test examples, with the keys that `make_evaluate` uses."""
  keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), indices)
  images, labels = map(jnp.asarray, first(trained, None))
  return jax.jit(jax.vmap(draw, (0, 0, None, None)))(
    keys, indices, images, labels
  )
