"""A task: a model, how it is trained and measured, and its checkpoints."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax import nnx

from capjax import data
from capjax.evaluation import diagnostics
from capjax.specs import Spec
from experiments.run import directory
from experiments.training import checkpoints, train_step
from experiments.training.loop import LoopConfig

# Of the validation losses, the first that is measured breaks ties.
_LOSSES = ("loss", "margin_loss")


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
    diverged: `metrics -> bool`, whether training has diverged; then, and where
      a number is not finite, it goes back to the older of the two states that
      are saved, which `restart` changes. Without `restart` it ends there.
    restart: `state -> state`.
    warn: `metrics -> messages` about the newest metrics of training and
      validation, printed at each validation.
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


def make_model(task: Task, dataset: data.Dataset, seed: int = 0) -> nnx.Module:
  """A new model for a data set, initialised by a seed, in evaluation mode.

  Raises:
    ValueError: if the task describes none.
    checks.ImageShapeError: if it describes none for such images.
  """
  spec = task.describe(dataset.images.shape[1:], dataset.num_classes)
  model = spec.make(nnx.Rngs(seed))
  model.eval()
  return model


def model_record(task: Task, dataset: data.Dataset) -> dict[str, Any]:
  """The spec of the model for a data set, with what it is for, as JSON.

  Raises:
    ValueError: as `make_model`.
  """
  shape = dataset.images.shape[1:]
  return spec_record(task.describe(shape, dataset.num_classes), dataset)


def spec_record(spec: Spec, dataset: data.Dataset) -> dict[str, Any]:
  """A spec with the data that its model is for, as JSON."""
  return {
    **spec.as_json(),
    "image_shape": list(dataset.images.shape[1:]),
    "num_classes": dataset.num_classes,
    "num_parameters": train_step.num_parameters(spec.shapes()),
  }


def make_evaluate(
  measure: Callable[[Any, Any, Any], train_step.Metrics],
  draw: train_step.Draw,
  batch_size: int,
) -> Callable[..., dict[str, np.ndarray]]:
  """`train_step.make_evaluate` on all devices."""
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


def data_record(train: data.Dataset, test: data.Dataset) -> dict[str, str]:
  """The fingerprints of both sets, as loaded, and how they are made."""
  return {
    "fingerprint": "sha256 of dtype, shape and bytes of images and of labels",
    "train": data.fingerprint(train),
    "test": data.fingerprint(test),
  }


def saved_by(
  run: directory.Run, task: Task, config: LoopConfig
) -> checkpoints.Checkpoints:
  """The checkpoints of a run."""
  score = (
    None if reports_last(task, config) else functools.partial(_score, task)
  )
  return checkpoints.Checkpoints(run.workdir / "checkpoints", score)


def reports_last(task: Task, config: LoopConfig) -> bool:
  """Whether the last state is reported, none being chosen on validation."""
  return task.chosen_by is None or config.num_validation == 0


def _score(task: Task, metrics: dict[str, float]) -> tuple[float, float]:
  """The higher the better: of equal measures, that of the lower loss."""
  loss = next((metrics[x] for x in _LOSSES if x in metrics), 0.0)
  return metrics[task.chosen_by], -loss


def restore_model(
  run: directory.Run, task: Task, dataset: data.Dataset, config: LoopConfig
) -> tuple[int, nnx.Module, dict[str, float]]:
  """The step, the model and the validation scores of the best checkpoint.

  A run that averages its weights gives the model with the average.

  Args:
    run: where it is.
    task: what was trained.
    dataset: with images of the shape that the model was made for.
    config: how it was trained.

  Raises:
    ValueError: if the run has no checkpoint that can be read.
  """
  step, (model, *_), scores = restore_models(run, task, dataset, config)
  return step, model, scores


def restore_models(
  run: directory.Run, task: Task, dataset: data.Dataset, config: LoopConfig
) -> tuple[int, tuple[nnx.Module, ...], dict[str, float]]:
  """As `restore_model`, with the raw model after one of averaged weights."""
  mesh = train_step.data_mesh(config.batch_size)
  model = make_model(task, dataset, config.seed)
  template = train_step.replicate(model, mesh)
  # Of the run, for it may be another one that this one starts from.
  averages = bool(run.flags().get("average_decay"))
  restored = saved_by(run, task, config).restore_best(
    (template, template) if averages else template
  )
  if restored is None:
    raise ValueError(f"{run.workdir} has no checkpoint of a trained model yet")
  step, models, scores = restored
  return step, models if averages else (models,), scores
