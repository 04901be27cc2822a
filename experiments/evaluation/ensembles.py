"""A suite: the mean of the scores of several models of one data set."""

import os
import pathlib

import jax
import numpy as np

from capjax import predictions, saved, weights
from capjax.kernels import numerics

from ..run import directory
from ..training import task as tasks
from ..training import train_step
from . import models
from .models import Options, Scores, Trained
from .suite import Main, suite


def _require_others(
  run: directory.Run, trained: Trained, options: Options
) -> None:
  """Raises a ValueError if the options name no other run, or one twice."""
  del trained
  if not options.ensemble:
    raise ValueError("ensemble needs other runs; give them as --ensemble")
  averaged = {_file(run.workdir)}
  for path in options.ensemble:
    if (found := _file(path)) in averaged:
      raise ValueError(
        f"--ensemble={path} is this run, or is given twice; give each other "
        "run once"
      )
    averaged.add(found)


def _file(path: str | os.PathLike[str]) -> pathlib.Path:
  """The file of a model, which may not exist."""
  path = pathlib.Path(path).expanduser().resolve()
  return path / weights.NAME if path.is_dir() else path


@suite(
  "images",
  "ensemble",
  require=_require_others,
  main=Main("ensemble_error_percent", "error of an ensemble (%)"),
)
def ensemble(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Measures the accuracy of the mean scores of this and of other models.

  The scores are activations of class capsules, or probabilities; all models
  must have the same kind. Sabour et al. (2017, section 7) use an ensemble of 7
  networks. Models that are tested on novel viewpoints are scored on these
  alone. With --canvas, images are in the middle of the canvas, as for all
  models that are loaded from weights; the suite `accuracy` may place them
  anywhere on it.

  Returns:
    The accuracy and the error of the mean scores; the number of models; the
    accuracy of each model alone, this one first; and the share of images for
    which all models predict the same class.
  """
  del run
  trained = models.unseen(trained)
  images, labels = models.first(trained, options.images)
  kind = predictions.scores_name(trained.model)
  every = [class_scores(trained, images)]
  for path in options.ensemble:
    other = saved.load(path)
    found = other.predict(images)
    if found.kind != kind or found.scores.shape != every[0].shape:
      raise ValueError(
        f"the model of --ensemble={path} has no {kind} of "
        f"{every[0].shape[1]} classes; give runs of one data set and one kind "
        "of network"
      )
    models.require_classes(
      trained.test, other.class_names, f"--ensemble={path}"
    )
    every.append(found.scores)
  right = np.argmax(np.mean(every, axis=0), axis=1) == labels
  classes = np.argmax(every, axis=2)
  return {
    "ensemble_accuracy": float(np.mean(right)),
    "ensemble_error_percent": float(100 * np.mean(~right)),
    "num_models": len(every),
    "single_accuracy": np.mean(classes == labels, axis=1).tolist(),
    "unanimous": float(np.mean(np.all(classes == classes[0], axis=0))),
    "num_images": len(labels),
  }


SUITES = (ensemble,)


def class_scores(trained: Trained, images: np.ndarray) -> np.ndarray:
  """Activations [N J] of class capsules, or probabilities by a softmax.

  Images are in the middle of a canvas, as those of `TrainedModel.predict`.
  """
  activations = predictions.scores_name(trained.model) == "activations"

  def measure(model, images, labels):
    del labels
    scores = trained.task.scores(model, images)
    return {"scores": scores if activations else numerics.softmax(scores)}

  def prepare(key: jax.Array, image: jax.Array) -> jax.Array:
    del key
    return trained.task.prepare(image)

  evaluate = tasks.make_evaluate(
    measure, train_step.sample_labelled(prepare), trained.config.batch_size
  )
  labels = np.zeros(len(images), np.int32)
  return evaluate(trained.model, images, labels)["scores"]
