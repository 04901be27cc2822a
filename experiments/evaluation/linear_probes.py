"""Suites for models without labels: linear probes of their capsules.

Presences alone should identify the object in any pose (Smith et al., 2020,
sections 5.2 and 5.3).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from capjax.data.transforms import affnist
from capjax.evaluation import clustering, views

from ..figures import curves
from ..run import directory
from ..training import task as tasks
from ..training import train_step
from . import models
from .models import Options, Scores, Trained
from .suite import suite


def features(presence: jax.Array, poses: jax.Array) -> dict[str, jax.Array]:
  """The inputs of the probes, from the top capsules.

  Args:
    presence: [B J]; posterior presences of a stacked capsule autoencoder, log
      odds of generative capsules (Smith et al., 2020, appendix D).
    poses: [B J 6].
  """
  flat = poses.reshape(len(poses), -1)
  return {
    "presence": presence,
    "presence_and_pose": jnp.concatenate([presence, flat], axis=1),
  }


@suite("images", compares=True, labelled=True)
def linear(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Measures accuracy of linear probes on presences and on poses.

  Smith et al. (2020, table 1 and figure 4). Logistic regression is fitted on
  the training images, and tested on validation images (to choose settings) and
  on test images. All are placed as for testing, and deformed as in training
  if the model was trained so. The same probe is then tested on images rotated
  by up to 180 degrees, and on affine views like those of affNIST.

  When the run is compared with others, the accuracies are plotted against the
  largest rotation in training, as means over seeds.

  Returns:
    The accuracy of each probe on each set; the largest rotation in training in
    degrees; and the height of the images that the model takes, which is 40 for
    affNIST.
  """
  train, validation = models.load_split(trained)
  images, labels = models.first(trained, options.images)
  learnt = _features(trained, trained.task.sample_test, train.images)
  scores = {
    "max_rotation": float(trained.task.options["placement"].max_rotation),
    "num_images": len(images),
    "num_rows": models.canvas(trained)[0],
  }
  sample_test = trained.task.sample_test
  held = validation.images, validation.labels
  for prefix, sample, (tried, classes) in (
    *([("validation_", sample_test, held)] if len(held[1]) else []),
    ("", sample_test, (images, labels)),
    ("rotated_", _moved(trained, _turn), (images, labels)),
    ("affnist_like_", _moved(trained, _see), (images, labels)),
  ):
    tested = _features(trained, sample, tried)
    for name, features in learnt.items():
      scores[f"{prefix}{name}_accuracy"] = clustering.probe_accuracy(
        features, train.labels, tested[name], classes
      )
  if options.compare_with:
    _plot_rotations(run, scores, options)
  return scores


SUITES = (linear,)


def _turn(key, image):
  degrees = jax.random.uniform(key, minval=-180.0, maxval=180.0)
  return views.rotate(image, degrees)


def _see(key, image):
  return affnist.affnist_like(key, image, canvas=image.shape[:2])


def _moved(trained: Trained, move: Callable) -> train_step.Sample:
  """Makes test images that are moved on the model's canvas."""

  def sample(key, index, images, labels):
    image = trained.task.prepare(train_step.as_intensities(images[index]))
    return move(key, image), labels[index]

  return sample


def _features(
  trained: Trained, sample: train_step.Sample, images: np.ndarray
) -> dict[str, np.ndarray]:
  """The features of the task, [N F] of each kind."""

  def measure(model, images, labels):
    del labels
    return trained.task.features(model, images)

  evaluate = tasks.make_evaluate(measure, sample, trained.config.batch_size)
  return evaluate(trained.model, images, np.zeros(len(images), np.int32))


def _plot_rotations(
  run: directory.Run, scores: Scores, options: Options
) -> None:
  lines = {}
  of_runs = [(run, scores)] + [
    (other, other.read_evaluation("linear")["metrics"])
    for other in options.compare_with
  ]
  for one, values in of_runs:
    model = one.read_summary()["experiment"].removeprefix("train_")
    for name in ("presence", "presence_and_pose"):
      line = lines.setdefault(f"{model}, {name.replace('_', ' ')}", {})
      seeds = line.setdefault(values["max_rotation"], [])
      seeds.append(values[f"{name}_accuracy"])
  means = {
    name: {degrees: float(np.mean(x)) for degrees, x in line.items()}
    for name, line in lines.items()
  }
  curves.accuracy_curves(
    [
      curves.Panel("", "rotations in training (degrees)", "accuracy (%)", means)
    ],
    run.figure("rotations"),
  )
