"""A suite: whether routing decides anything, and what its iterations do."""

import os
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from capjax.evaluation import diagnostics as diagnosing
from capjax.evaluation import inspection, views
from capjax.layers import routers

from ..figures import curves
from ..figures import iterations as figures
from ..run import directory
from ..training import task as tasks
from ..training import train_step
from . import models
from .classifiers import compared, lines_of
from .models import Options, Scores, Trained
from .suite import suite

_ANGLES = tuple(range(-90, 91, 15))
_NUM_PARSED = 1000
_NUM_FOLLOWED = 100  # images whose votes are followed through the iterations
_FOLLOWED_AT_ONCE = 10
_ITERATIONS = 5  # followed at least, if the routing can exceed its own number


@suite(
  "images",
  compares=True,
  counts={
    "rotated_": "num_rotated",
    "layer_": "num_rotated",
    "vote_distance_": "num_followed",
    "logit_change": "num_followed",
  },
)
def diagnostics(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Measures routing entropy, inactive capsules, and parses of rotated images.

  Besides the curves, plots the distances of votes from their mean after each
  iteration, for the class and for the other classes (Hinton et al., 2018).

  Returns:
    Over the test set, the entropy of the routing coefficients (1 is uniform)
    and the class capsules that are never active (`tasks.summarise`). For each
    angle of rotation, the agreement between the parses of the rotated and the
    upright images (`diagnostics.parse_agreement`), the entropy and the
    accuracy. For each layer from the first up, the share of types of capsules
    that no image activates (`layer_dead`), and the highest activation of the
    least active type (`layer_least_peak`). Where routing iterates, for each
    iteration the weighted mean distance of votes from their mean, for the class
    (`vote_distance_true`) and for the others (`vote_distance_other`); for
    dynamic routing the mean change of a logit (`logit_change`). See
    `inspection`.
  """
  images, labels = models.first(trained, options.images or _NUM_PARSED)
  whole = tasks.summarise(trained.measures)
  scores = {
    "routing_entropy": whole["routing_entropy"],
    "dead_parents": whole["dead_parents"],
    "least_peak": whole["least_peak"],
    "num_rotated": len(images),
    "rotation": [float(angle) for angle in _ANGLES],
    **_rotated(trained, images, labels),
  }
  scores |= _layers(trained, images) | _iterations(run, trained)
  curves.activation_histograms(
    trained.measures["activations"],
    trained.test.labels,
    trained.test.named(np.arange(trained.test.num_classes)),
    run.figure("activations"),
  )
  lines = compared(run, options, "diagnostics", scores)
  turned = [
    curves.Panel(
      "", "rotation (degrees)", text, lines_of(lines, "rotation", name)
    )
    for name, text in (
      ("rotated_kappa", "agreement of parses (kappa)"),
      ("rotated_routing_entropy", "routing entropy"),
    )
  ]
  curves.diagnostic_curves([*turned, *_during(run)], run.figure("diagnostics"))
  return scores


SUITES = (diagnostics,)


def _rotated(
  trained: Trained, images: np.ndarray, labels: np.ndarray
) -> Scores:
  """Agreement with the parses of upright images, by the angle of rotation."""
  num_types = inspection.positioned_types(trained.model)
  steps = trained.task.steps(images.shape[1:])

  def sample(key, index, images, labels, angle):
    del key
    image = steps.prepare(train_step.as_intensities(images[index]))
    pair = image, views.rotate(image, angle)
    return tuple(map(steps.normalise, pair)), labels[index]

  def measure(model, pair, labels):
    upright, turned = map(model, pair)
    parse = diagnosing.parse_agreement(
      upright.coefficients, turned.coefficients, num_types=num_types
    )
    classes = jnp.argmax(turned.activations, axis=-1)
    return {
      "agreement": parse.agreement,
      "chance": parse.chance,
      "kappa": parse.kappa,
      "routing_entropy": diagnosing.routing_entropy(turned.coefficients),
      "accuracy": (classes == labels).astype(jnp.float32),
    }

  evaluate = tasks.make_evaluate(measure, sample, trained.config.batch_size)
  means = [
    train_step.means(evaluate(trained.model, images, labels, np.float32(angle)))
    for angle in _ANGLES
  ]
  return {f"rotated_{name}": [m[name] for m in means] for name in means[0]}


def _during(run: directory.Run) -> list[curves.Panel]:
  """Panels of the validation measures of routing, by step of training."""
  panels = []
  for ylabel, names in (
    ("routing entropy", {"routing_entropy": "validation"}),
    (
      "on validation images",
      {
        "dead_parents": "dead capsules",
        "least_peak": "highest activation of the weakest capsule",
      },
    ),
  ):
    found = {
      text: {x["step"]: x[name] for x in run.metrics() if name in x}
      for name, text in names.items()
    }
    found = {text: line for text, line in found.items() if line}
    if found:
      panels.append(curves.Panel("", "step of training", ylabel, found))
  return panels


def _layers(trained: Trained, images: np.ndarray) -> Scores:
  """Capsules that are never active, layer by layer."""
  found = models.measure_layers(trained, images, inspection.layer_activations)
  layers = [jnp.asarray(x) for x in found]
  return {
    "layer_dead": [float(diagnosing.dead_parents(x)) for x in layers],
    "layer_least_peak": [
      float(np.min(diagnosing.peak_activations(x))) for x in layers
    ],
  }


class Followed(NamedTuple):
  """Votes of N images, followed through R iterations of routing.

  Attributes:
    distances: [R N ...], of each vote from the mean of its parent.
    of_class: [R N ...], the weights of votes for the class of an image.
    of_others: the same of votes for other classes.
    logit_changes: [R], of dynamic routing; None for others.
  """

  distances: np.ndarray
  of_class: np.ndarray
  of_others: np.ndarray
  logit_changes: np.ndarray | None


def follow(
  model: nnx.Module,
  preprocess: Callable[[jax.Array], jax.Array],
  images: np.ndarray,
  labels: np.ndarray,
) -> Followed | None:
  """Follows the votes for classes through the iterations of routing.

  Args:
    model: a network with class capsules.
    preprocess: from one image [H W C] in [0, 1] to the network's input.
    images: uint8 [N H W C].
    labels: [N].

  Returns:
    None where routing does not iterate.
  """
  route = getattr(getattr(model, "classes", None), "route", None)
  is_dynamic = isinstance(route, routers.DynamicRouting)

  @jax.jit
  def measure(model, images):
    images = jax.vmap(preprocess)(train_step.as_intensities(images))
    found = inspection.iterations(model, images, at_least=_ITERATIONS)
    if found is None:
      return None
    changes = inspection.logit_changes(found) if is_dynamic else None
    return *inspection.vote_distances(found), changes

  batches = [
    jax.tree.map(
      np.asarray,
      measure(model, jnp.asarray(images[n : n + _FOLLOWED_AT_ONCE])),
    )
    for n in range(0, len(images), _FOLLOWED_AT_ONCE)
  ]
  if batches[0] is None:
    return None
  distances, weights, changes = (
    None if parts[0] is None else np.concatenate(parts, axis=1)
    for parts in zip(*batches, strict=True)
  )
  is_class = (np.arange(weights.shape[-1]) == labels[:, None])[:, None]
  return Followed(
    distances,
    weights * is_class,
    weights * ~is_class,
    None if changes is None else np.mean(changes, axis=1),
  )


def plot_distances(followed: Followed, path: str | os.PathLike) -> None:
  """Plots histograms of the distances of votes after each iteration."""
  figures.vote_distances(
    followed.distances,
    {"class": followed.of_class, "other classes": followed.of_others},
    path,
  )


def _iterations(run: directory.Run, trained: Trained) -> Scores:
  """Distances of votes, and changes of logits, after each iteration."""
  images, labels = models.first(trained, _NUM_FOLLOWED)
  steps = trained.task.steps(images.shape[1:])
  found = follow(trained.model, steps, images, labels)
  if found is None:
    return {}
  scores: Scores = {
    "num_followed": len(labels),
    "iteration": list(range(1, len(found.distances) + 1)),
  }
  for name, kept in (("true", found.of_class), ("other", found.of_others)):
    scores[f"vote_distance_{name}"] = [
      float(np.average(x, weights=w + 1e-12))
      for x, w in zip(found.distances, kept, strict=True)
    ]
  plot_distances(found, run.figure("vote_distances"))
  if found.logit_changes is not None:
    scores["logit_change"] = found.logit_changes.tolist()
    figures.logit_changes(scores["logit_change"], run.figure("logit_changes"))
  return scores
