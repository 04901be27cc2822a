"""Suites and warnings for stacked capsule autoencoders.

The features of an image are the presences of objects, prior or posterior,
without the noise of training; images are placed as for testing.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from capjax import scae
from capjax.evaluation import clustering, embedding

from ..figures import scae as object_figures
from ..run import directory
from ..training import task as tasks
from . import models
from .models import Options, Scores, Trained
from .suite import suite

_NUM_SHOWN = 20  # images with their reconstructions
_NUM_EMBEDDED = 2000  # images, embedded by t-SNE
_KINDS = ("prior", "posterior")
_FEW_AWAKE = 0.5  # largest share of dead object capsules without a warning
_FLAT = 0.5  # largest share of flat templates without a warning
_FEWEST = 0.5  # fewest present parts of an image without a warning
_SHARP = 15.0  # nats of a present part; votes with the smallest scale give 22


def warn(scores: dict[str, float], num_parts: int) -> list[str]:
  """Warnings about what has collapsed or exploded, from the newest metrics."""
  warnings = []
  # A damaged file of metrics may lack `flat_templates`, a measure of training.
  dead, flat = scores["dead_parents"], scores.get("flat_templates", 0.0)
  if dead > _FEW_AWAKE:
    warnings.append(
      f"{dead:.0%} of the object capsules explain no part best in any image; "
      "a larger --posterior_between_weight may activate them"
    )
  if flat > _FLAT:
    warnings.append(
      f"{flat:.0%} of the templates are flat: they render nothing"
    )
  present = scores["present_parts"]
  if present < _FEWEST:
    warnings.append(
      f"on average only {present:.2g} of {num_parts} parts are present; "
      "start again with a lower --learning_rate or with --max_gradient"
    )
  # Parts that are absent add nothing to the likelihood.
  elif (each := scores["part_log_prob"] / present) > _SHARP:
    warnings.append(
      f"a present part has a log-likelihood of {each:.1f} nats ({present:.3g} "
      f"of {num_parts} are present): votes are close to their smallest scale, "
      "as when poses have collapsed to a constant"
    )
  return warnings


@suite(counts={"flat_templates": 0})
def explanations(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Plots templates, and reconstructions from parts and from objects.

  Returns:
    The mean absolute error of the reconstructions from objects, over the images
    in the figure; the share of templates that are flat.
  """
  del options
  model = trained.model
  images, _ = models.make_examples(
    trained, trained.task.sample_test, np.arange(_NUM_SHOWN)
  )
  by_parts, by_objects = jax.jit(scae.reconstruct)(model, images)
  targets = model.targets(images)
  object_figures.templates(model.decoder.templates(), run.figure("templates"))
  object_figures.reconstructions(
    images,
    targets,
    by_parts.mean,
    by_parts.coefficients,
    by_objects.mean,
    run.figure("reconstructions"),
  )
  return {
    "num_images": len(images),
    "object_error": float(jnp.mean(jnp.abs(by_objects.mean - targets))),
    "flat_templates": float(scae.flat_templates(model)),
  }


@suite(labelled=True)
def objects(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Plots presences of objects by class, and a t-SNE of posterior presences.

  Returns:
    The share of objects that explain no part best in any test image; the mean
    number of objects in an image, as the sum of their prior presences.
  """
  del options
  features = _features(trained, trained.task.sample_test, trained.test.images)
  labels = trained.test.labels
  classes = np.unique(labels)
  members = [labels == c for c in classes]
  object_figures.presences(
    {
      kind: np.stack([features[kind][rows].mean(axis=0) for rows in members])
      for kind in _KINDS
    },
    trained.test.named(classes),
    run.figure("presences"),
  )
  few = slice(None, _NUM_EMBEDDED)
  object_figures.embedding(
    embedding.embed(features["posterior"][few]),
    labels[few],
    trained.test.named(np.arange(trained.test.num_classes)),
    run.figure("embedding"),
  )
  return {
    "idle_objects": float(np.mean(features["won"].max(axis=0) == 0)),
    "present_objects": float(np.mean(features["prior"].sum(axis=1))),
  }


@suite(labelled=True)
def clusters(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Measures accuracy of k-means and of linear probes on presences (section 3).

  Nothing is fitted to the validation images, so that settings can be chosen by
  the accuracy on them.

  Returns:
    For prior and posterior presences, the test accuracy of three methods:
    k-means fitted on the training set, with clusters matched to its labels
    (`match`); k-means fitted and matched on the test set, as in the authors'
    code (`refit`); and logistic regression (`probe`). For `match` also the
    accuracy on validation.
  """
  del run, options
  train, validation = models.load_split(trained)
  learnt, held, tested = (
    _features(trained, trained.task.sample_test, x.images)
    if len(x.images)
    else None
    for x in (train, validation, trained.test)
  )
  labels = trained.test.labels
  scores = {}
  for kind in _KINDS:
    learnt_from = learnt[kind], train.labels
    both = *learnt_from, tested[kind], labels
    scores[f"{kind}_match_accuracy"] = clustering.match_accuracy(*both)
    scores[f"{kind}_refit_accuracy"] = clustering.refit_accuracy(*both[2:])
    scores[f"{kind}_probe_accuracy"] = clustering.probe_accuracy(*both)
    if held:
      scores[f"validation_{kind}_match_accuracy"] = clustering.match_accuracy(
        *learnt_from, held[kind], validation.labels
      )
  return scores


@suite(labelled=True)
def label_curve(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Measures accuracy from posterior presences with few labels.

  Returns:
    The numbers of labels; for each, the accuracies of logistic regression and
    of clusters, with their standard deviations over random choices of the
    labelled images.
  """
  del run, options
  train = trained.load_train()
  learnt, tested = (
    _features(trained, trained.task.sample_test, x.images)["posterior"]
    for x in (train, trained.test)
  )
  curves = clustering.few_label_accuracy(
    learnt, train.labels, tested, trained.test.labels
  )
  scores = {"labels": [float(n) for n in curves["linear"].counts]}
  for name, curve in curves.items():
    scores[f"{name}_accuracy"] = curve.mean.tolist()
    scores[f"{name}_accuracy_sd"] = curve.sd.tolist()
  return scores


@suite("images", "views", labelled=True)
def affnist_like_clusters(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Measures accuracy of k-means clusters on affine views of test images.

  Returns:
    The accuracies of k-means, fitted and matched to labels on unchanged
    training images.
  """
  del run
  sample = models.sample_affine_view(trained)
  train = trained.load_train()
  images, labels = models.first(trained, options.images)
  learnt = _features(trained, trained.task.sample_test, train.images)
  tested = _features(trained, sample, images, views=options.views)
  labels = np.repeat(labels, options.views)
  return {
    f"affnist_like_{kind}_match_accuracy": clustering.match_accuracy(
      learnt[kind], train.labels, tested[kind], labels
    )
    for kind in _KINDS
  } | {
    "views": options.views,
    "num_images": len(images),
    "num_rows": models.canvas(trained)[0],
  }


SUITES = (
  explanations,
  objects,
  clusters,
  label_curve,
  affnist_like_clusters,
)


def _features(
  trained: Trained, sample: Callable, images: np.ndarray, *, views: int = 1
) -> dict[str, np.ndarray]:
  """The features [N views, K] of each kind."""

  def measure(model, images, labels):
    del labels
    objects = model(images).objects
    return {
      "prior": objects.prior_presence(),
      "posterior": objects.posterior_presence(),
      "won": scae.shares_won(objects),
    }

  evaluate = tasks.make_evaluate(measure, sample, trained.config.batch_size)
  labels = np.zeros(len(images), np.int32)
  return evaluate(trained.model, images, labels, views=views)
