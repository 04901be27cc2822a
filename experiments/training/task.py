"""What a binary trains, as functions of its flags, and what comes of it."""

import contextlib
import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from capjax import data
from capjax.data.transforms import affnist
from capjax.evaluation import diagnostics
from capjax.specs import Spec
from experiments.run import directory
from experiments.training import checkpoints, loop, train_step
from kernels import checks

Scores = dict[str, float | list[float]]
# Of the validation losses, the first that is measured breaks ties.
_LOSSES = ("loss", "margin_loss")


class Options(NamedTuple):
  """What a user asks of an evaluation.

  Attributes:
    views: affine views of each test image.
    images: test images, the first ones; None for as many as each suite takes.
    beside: runs whose curves, evaluated before, are drawn too.
  """

  views: int = 32
  images: int | None = None
  beside: Sequence[directory.Run] = ()


class Task(NamedTuple):
  """A model and what is asked of it.

  Attributes:
    describe: `(shape [H W C] of the data, num_classes) -> spec` of the model.
    loss: `(model, inputs, targets, key, step) -> (scalar, metrics)` of a batch.
    measure: `(model, inputs, targets) -> {name: [B ...]}`; of a classifier with
      `accuracy`, of its capsules `activations` [B J].
    draw: makes an example to train on, as `train_step.make_update` says.
    draw_test: makes one to validate and test on.
    make_optimizer: `() -> optimiser` of the parameters.
    suites: `model -> names` of the evaluations that it can take.
    after_training: those of them that every run ends with.
    chosen_by: the measure of which the checkpoint to report has most, on
      validation; of several with as much, the one with the lowest validation
      loss, then the last. None, or no validation at all, for the last one.
    split: `(training set, test set) -> (training set, validation)`; None keeps
      the first `--num_validation` of the training set; with 0 the validation
      set is empty.
    begin: `(model, training set, validation)`, sets what a fresh model takes
      from the data; if that takes training, the seconds spent are returned.
    diverged: `metrics -> bool`, whether training has gone astray; then, and
      where a number is not finite, it goes back to the older of the two states
      that are saved, which `restart` changes. Without `restart` it ends there.
    restart: `state -> state`.
    warn: `metrics -> messages`, what the newest metrics of training and
      validation warn of; said at each validation.
    familiar: `factors -> [N]`, which examples are seen from viewpoints that it
      was trained on; None where there are no others.
    prepare: `image [H W C] in [0, 1] -> image` as the model takes it; not of
      every task.
    features: of a model without labels, `(model, images) -> {name: [B F]}`,
      what linear probes are given.
    scores: of a classifier, `(model, images) -> [B J]`, the higher the
      likelier.
    losses: of a classifier, `(model, images, labels) -> [B]`, of images with
      one label each.
  """

  describe: Callable[[Sequence[int], int], Spec]
  loss: train_step.Loss
  measure: Callable[[Any, Any, Any], train_step.Metrics]
  draw: train_step.Draw
  draw_test: train_step.Draw
  make_optimizer: Callable[[], optax.GradientTransformation]
  suites: Callable[[nnx.Module], list[str]]
  after_training: Sequence[str]
  chosen_by: str | None = "accuracy"
  split: (
    Callable[[data.Dataset, data.Dataset], tuple[data.Dataset, data.Dataset]]
    | None
  ) = None
  begin: Callable[[Any, data.Dataset, data.Dataset], float | None] = (
    lambda *arguments: None
  )
  diverged: Callable[[dict[str, float]], bool] = lambda metrics: False
  restart: Callable[[train_step.TrainState], train_step.TrainState] | None = (
    None
  )
  warn: Callable[[dict[str, float]], list[str]] = lambda metrics: []
  familiar: Callable[[dict[str, np.ndarray]], np.ndarray] | None = None
  prepare: Callable[[jax.Array], jax.Array] | None = None
  features: Callable[[Any, jax.Array], dict[str, jax.Array]] | None = None
  scores: Callable[[Any, jax.Array], jax.Array] | None = None
  losses: Callable[[Any, jax.Array, jax.Array], jax.Array] | None = None


class Trained(NamedTuple):
  """A trained model, and what it says of the test set.

  Attributes:
    task: what it was trained for.
    model: the checkpoint to report, in evaluation mode.
    step: at which it was saved.
    validation: its scores on validation, by name; empty without validation.
    test: the test set.
    measures: `{name: [N ...]}` of the test set.
    raw_measures: the same of the weights as they were at that step, where the
      model has their average.
  """

  task: Task
  model: nnx.Module
  step: int
  validation: dict[str, float]
  test: data.Dataset
  measures: dict[str, np.ndarray]
  raw_measures: dict[str, np.ndarray] | None = None


def make_model(task: Task, dataset: data.Dataset) -> nnx.Module:
  """A fresh model for a data set, drawn by --seed, in evaluation mode.

  Raises:
    ValueError: if the flags describe none.
    checks.ImageShapeError: if they describe none for such images; where the
      data set is one that nobody asked for, that is said too.
  """
  with _naming_the_default():
    spec = task.describe(dataset.images.shape[1:], dataset.num_classes)
    model = spec.make(nnx.Rngs(directory.SEED.value))
  model.eval()
  return model


def model_record(task: Task, dataset: data.Dataset) -> dict[str, Any]:
  """The spec of the model for a data set, with what it is for, as JSON.

  Raises:
    ValueError: as `make_model`.
  """
  shape = dataset.images.shape[1:]
  with _naming_the_default():
    spec = task.describe(shape, dataset.num_classes)
    return spec_record(spec, dataset)


def spec_record(spec: Spec, dataset: data.Dataset) -> dict[str, Any]:
  """A spec with the data that its model is for, as JSON."""
  return {
    **spec.as_json(),
    "image_shape": list(dataset.images.shape[1:]),
    "num_classes": dataset.num_classes,
    "num_parameters": train_step.num_parameters(spec.shapes()),
  }


@contextlib.contextmanager
def _naming_the_default() -> Iterator[None]:
  try:
    yield
  except checks.ImageShapeError as error:
    if directory.DATASET.present:
      raise
    raise checks.ImageShapeError(
      f"{error} (--dataset is {directory.DATASET.value} by default; "
      "experiments/presets has settings for others)"
    ) from error


def make_evaluate(
  measure: Callable[[Any, Any, Any], train_step.Metrics], draw: train_step.Draw
) -> Callable[..., dict[str, np.ndarray]]:
  """`train_step.make_evaluate` with the batches that the flags ask for."""
  batch_size = directory.BATCH_SIZE.value
  mesh = train_step.data_mesh(batch_size)
  return train_step.make_evaluate(
    measure, draw=draw, batch_size=batch_size, mesh=mesh
  )


def summarise(measures: dict[str, np.ndarray]) -> dict[str, float]:
  """The means of the measures, and which capsules never wake.

  `dead_parents` is the share of those whose activation stays below a threshold
  that suits lengths of vectors; `least_peak` needs none: of the highest
  activation of each capsule, the lowest.
  """
  scores = train_step.means(measures)
  if "activations" in measures:
    dead = diagnostics.dead_parents(measures["activations"])
    scores["dead_parents"] = float(dead)
    peaks = diagnostics.peak_activations(measures["activations"])
    scores["least_peak"] = float(peaks.min())
  return scores


def means(trained: Trained) -> dict[str, float]:
  """The means of the test set's measures and of those on validation.

  Where the model has averaged weights, those of the weights as they are have
  the same names after `raw_`.
  """
  scores = {f"test_{n}": x for n, x in summarise(trained.measures).items()}
  for name, value in trained.validation.items():
    raw = "raw_" if name.startswith("raw_") else ""
    scores[f"{raw}validation_{name.removeprefix('raw_')}"] = value
  if trained.raw_measures is not None:
    raw_scores = summarise(trained.raw_measures)
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


def data_record(train: data.Dataset, test: data.Dataset) -> dict[str, str]:
  """The fingerprints of both sets, as loaded, and how they are made."""
  return {
    "fingerprint": "sha256 of dtype, shape and bytes of images and of labels",
    "train": data.fingerprint(train),
    "test": data.fingerprint(test),
  }


def load_train() -> data.Dataset:
  """The training set that the flags name."""
  return data.load(directory.DATASET.value, "train", directory.DATA_DIR.value)


def load_split() -> tuple[data.Dataset, data.Dataset]:
  """What a task without a split of its own trains on, and its validation."""
  return loop.split_validation(
    load_train(), directory.NUM_VALIDATION.value, directory.BATCH_SIZE.value
  )


def load_test() -> data.Dataset:
  """The test set that the flags name."""
  return data.load(directory.DATASET.value, "test", directory.DATA_DIR.value)


def saved_by(run: directory.Run, task: Task) -> checkpoints.Checkpoints:
  """The checkpoints of a run."""
  score = None if reports_last(task) else functools.partial(_score, task)
  return checkpoints.Checkpoints(run.workdir / "checkpoints", score)


def reports_last(task: Task) -> bool:
  """Whether the last state is reported, none being chosen on validation."""
  return task.chosen_by is None or directory.NUM_VALIDATION.value == 0


def _score(task: Task, metrics: dict[str, float]) -> tuple[float, float]:
  """The higher the better: of equal measures, that of the lower loss."""
  loss = next((metrics[x] for x in _LOSSES if x in metrics), 0.0)
  return metrics[task.chosen_by], -loss


def restore_model(
  run: directory.Run, task: Task, dataset: data.Dataset
) -> tuple[int, nnx.Module, dict[str, float]]:
  """The step, the model and the validation scores of the best checkpoint.

  A run that averages its weights gives the model with the average.

  Args:
    run: where it is.
    task: what was trained.
    dataset: with images of the shape that the model was made for.

  Raises:
    ValueError: if the run has no checkpoint that can be read.
  """
  step, (model, *_), scores = _restore_models(run, task, dataset)
  return step, model, scores


def _restore_models(
  run: directory.Run, task: Task, dataset: data.Dataset
) -> tuple[int, tuple[nnx.Module, ...], dict[str, float]]:
  """The same, and after an averaged model the raw one."""
  mesh = train_step.data_mesh(directory.BATCH_SIZE.value)
  template = train_step.replicate(make_model(task, dataset), mesh)
  # Of the run, for it may be another one that this one starts from.
  averages = bool(run.flags().get("average_decay"))
  restored = saved_by(run, task).restore_best(
    (template, template) if averages else template
  )
  if restored is None:
    raise ValueError(f"{run.workdir} has no checkpoint of a trained model yet")
  step, models, scores = restored
  return step, models if averages else (models,), scores


def restore(run: directory.Run, task: Task) -> Trained:
  """The model of a run's best checkpoint, with its measures of the test set.

  Raises:
    FileNotFoundError: if the test set is not there.
    ValueError: if the run has no checkpoint that can be read.
  """
  test = load_test()
  step, models, scores = _restore_models(run, task, test)
  evaluate = make_evaluate(task.measure, task.draw_test)
  measures = [evaluate(model, test.images, test.labels) for model in models]
  return Trained(task, models[0], step, scores, test, *measures)


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
