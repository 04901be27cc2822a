"""Evaluation suites: functions of a run and of what it trained.

Each returns numbers by name, and draws into the run's folder.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from capjax import data
from experiments.common import figures, runs, training

_NUM_SHOWN = (24, 24)  # right and wrong test images beside reconstructions
_NUM_TWEAKED = 3  # images whose capsules are perturbed
_OFFSETS = np.arange(-5, 6) * 0.05


class Trained(NamedTuple):
  """A trained classifier with decoder or without, and what it says of a set.

  Attributes:
    model: the checkpoint chosen on validation.
    step: at which it was saved.
    validation: its scores there, by name.
    predict: `(model, images) -> (classes [B], poses [B J D] or None)`.
    prepare: `image [H W C] in [0, 1] -> image`, as the model takes it.
    test: the test set.
    measures: `{name: [N ...]}` of the test set, with `prediction`.
  """

  model: nnx.Module
  step: int
  validation: dict[str, float]
  predict: Callable[..., tuple[jax.Array, jax.Array | None]]
  prepare: Callable[[jax.Array], jax.Array]
  test: data.Dataset
  measures: dict[str, np.ndarray]


def accuracy(run: runs.Run, trained: Trained) -> dict[str, float]:
  """The scores of the test set and those that the model was chosen by."""
  del run
  scores = training.means(trained.measures)
  return {
    **{f"test_{name}": value for name, value in scores.items()},
    "test_error_percent": 100 * (1 - scores["accuracy"]),
    **{f"validation_{n}": value for n, value in trained.validation.items()},
    "best_step": trained.step,
  }


def reconstructions(run: runs.Run, trained: Trained) -> dict[str, float]:
  """Draws test images beside what their longest capsule redraws; mistakes too.

  Returns:
    The summed squared error of an image, a mean over the test set.
  """
  images, labels, classes, poses = _examples(trained)
  figures.reconstructions(
    images,
    np.asarray(_decode(trained)(poses, classes)),
    labels,
    classes,
    run.figure("reconstructions"),
  )
  errors = trained.measures["reconstruction_loss"]
  return {"test_reconstruction_loss": float(np.mean(errors))}


def perturbations(run: runs.Run, trained: Trained) -> dict[str, float]:
  """Draws images with each dimension of a capsule tweaked (figure 4).

  Returns:
    How far the tweaks move a pixel at the most.
  """
  _, labels, classes, poses = _examples(trained)
  # The first right example of each of a few classes.
  right = np.flatnonzero(classes == labels)
  _, first = np.unique(labels[right], return_index=True)
  tweaked = right[first][:_NUM_TWEAKED]
  if not len(tweaked):
    return {"largest_change": 0.0}
  decode = _decode(trained)
  grid = np.stack(
    [perturb(decode, poses[n], labels[n], _OFFSETS) for n in tweaked]
  )
  figures.perturbations(
    grid, _OFFSETS, labels[tweaked], run.figure("perturbations")
  )
  middle = grid[:, :, len(_OFFSETS) // 2, None]
  return {"largest_change": float(np.max(np.abs(grid - middle)))}


SUITES = {
  "accuracy": accuracy,
  "reconstructions": reconstructions,
  "perturbations": perturbations,
}
# Suites that a model without decoder cannot take.
_NEED_DECODER = {"reconstructions", "perturbations"}


def suites_of(model: nnx.Module) -> list[str]:
  """The suites that a model can take."""
  decodes = getattr(model, "decoder", None) is not None
  return [name for name in SUITES if decodes or name not in _NEED_DECODER]


def perturb(
  decode: Callable[[jax.Array, jax.Array], jax.Array],
  poses: jax.Array,
  label: int,
  offsets: np.ndarray,
) -> np.ndarray:
  """Redraws one image with each dimension of its capsule tweaked in turn.

  Args:
    decode: `(poses [B J D], classes [B]) -> images [B H W C]`.
    poses: [J D] of one image.
    label: the capsule that is tweaked.
    offsets: [S], added to one dimension at a time.

  Returns:
    [D S H W C] (Sabour et al., 2017, figure 4).
  """
  num_objects, size = poses.shape
  tweaks = offsets[None, :, None] * np.eye(size)[:, None, :]
  tweaked = jnp.broadcast_to(poses, (size, len(offsets), num_objects, size))
  tweaked = tweaked.at[:, :, label].add(tweaks).reshape(-1, num_objects, size)
  images = decode(tweaked, jnp.full(len(tweaked), label))
  return np.asarray(images).reshape(size, len(offsets), *images.shape[1:])


def _decode(trained: Trained) -> Callable[[jax.Array, jax.Array], jax.Array]:
  return functools.partial(
    jax.jit(lambda model, *arguments: model.decode(*arguments)), trained.model
  )


def _examples(trained: Trained) -> tuple[np.ndarray, ...]:
  """A few test images, their labels, predicted classes and poses."""
  test = trained.test
  shown = figures.choose_examples(
    test.labels, trained.measures["prediction"], *_NUM_SHOWN
  )
  images = training.as_intensities(jnp.asarray(test.images[shown]))
  images = jax.vmap(trained.prepare)(images)
  classes, poses = jax.jit(trained.predict)(trained.model, images)
  return np.asarray(images), test.labels[shown], np.asarray(classes), poses
