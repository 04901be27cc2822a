"""Suites and warnings for stacked capsule autoencoders: what objects know.

Features are the presences of objects, prior or posterior, of images placed as
at test time, without the noise of training.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from sklearn import manifold

from capjax import scae
from capjax.evaluation import clustering
from experiments.evaluation import models
from experiments.evaluation.models import Options, Scores, Trained
from experiments.evaluation.suite import suite
from experiments.figures import scae as object_figures
from experiments.run import directory
from experiments.training import task as tasks

_NUM_SHOWN = 20  # images beside their reconstructions
_NUM_EMBEDDED = 2000  # images, by t-SNE
_KINDS = ("prior", "posterior")
_FEW_AWAKE = 0.5  # of the objects
_FLAT = 0.5  # of the templates
_FEWEST = 0.5  # parts of an image
_SHARP = 15.0  # nats of a present part; votes of the least scale have 22


def warn(scores: dict[str, float], num_parts: int) -> list[str]:
  """What has collapsed or exploded in training, by the newest metrics."""
  warnings = []
  dead, flat = scores["dead_parents"], scores["flat_templates"]
  if dead > _FEW_AWAKE:
    warnings.append(
      f"{dead:.0%} of the object capsules explain no part best in any image; "
      "more of --posterior_between_weight may wake them"
    )
  if flat > _FLAT:
    warnings.append(f"{flat:.0%} of the templates are flat: they draw nothing")
  present = scores["present_parts"]
  if present < _FEWEST:
    warnings.append(
      f"images have {present:.2g} of {num_parts} parts in the mean: they have "
      "vanished; begin anew with a lower --learning_rate or with --max_gradient"
    )
  # Parts that are absent add nothing to the likelihood.
  elif (each := scores["part_log_prob"] / present) > _SHARP:
    warnings.append(
      f"a part has {each:.1f} nats of likelihood, {present:.3g} of {num_parts} "
      "being present: votes have nearly their least scale, as where poses have "
      "collapsed to a constant"
    )
  return warnings


@suite()
def explanations(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Draws templates, and images redrawn from their parts and their objects.

  Returns:
    The mean absolute error of what objects redraw of the images drawn; the
    share of templates that are flat.
  """
  del options
  model = trained.model
  images, _ = models.draw_examples(
    trained, trained.task.draw_test, np.arange(_NUM_SHOWN)
  )
  by_parts, by_objects = jax.jit(scae.redraw)(model, images)
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


@suite()
def objects(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Draws how present objects are by class, and images by posterior presence.

  Returns:
    The share of objects that explain no part best in any test image; how many
    are present in an image, by the sum of their prior presences.
  """
  del options
  features = _features(trained, trained.task.draw_test, trained.test.images)
  labels = trained.test.labels
  object_figures.presences(
    [
      np.stack(
        [features[kind][labels == c].mean(axis=0) for c in np.unique(labels)]
      )
      for kind in _KINDS
    ],
    _KINDS,
    run.figure("presences"),
  )
  few = slice(None, _NUM_EMBEDDED)
  # Its own default, unless there are too few images.
  perplexity = min(30.0, (len(labels[few]) - 1) / 3)
  embed = manifold.TSNE(perplexity=perplexity, random_state=0)
  object_figures.embedding(
    embed.fit_transform(features["posterior"][few]),
    labels[few],
    run.figure("embedding"),
  )
  return {
    "idle_objects": float(np.mean(features["won"].max(axis=0) == 0)),
    "present_objects": float(np.mean(features["prior"].sum(axis=1))),
  }


@suite()
def clusters(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Classifies without labels, and by probes, from presences (section 3).

  Nothing of the validation images is fitted, so that settings can be chosen by
  what is right of them.

  Returns:
    For prior and posterior presence: accuracy of k-means fitted and named on
    the training set (`match`), the same fitted and named on the test set, as
    the authors' code does (`refit`), and of logistic regression (`probe`); on
    the test set, and of the first on validation too.
  """
  del run, options
  train, validation = models.load_split(trained)
  learnt, held, tested = (
    _features(trained, trained.task.draw_test, x.images)
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


@suite()
def label_curve(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Classifies by posterior presences with few labels.

  Returns:
    The numbers of labels; the accuracy at each, of logistic regression and of
    clusters, with deviations over draws of the labelled images.
  """
  del run, options
  train = trained.load_train()
  learnt, tested = (
    _features(trained, trained.task.draw_test, x.images)["posterior"]
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


@suite("images", "views")
def affnist_like_clusters(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Classifies affine views of test images by clusters of training images.

  Returns:
    Accuracies of k-means fitted and named on training images as they are.
  """
  del run
  draw = models.draw_affine_view(trained)
  train = trained.load_train()
  images, labels = models.first(trained, options.images)
  learnt = _features(trained, trained.task.draw_test, train.images)
  tested = _features(trained, draw, images, views=options.views)
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
  trained: Trained, draw: Callable, images: np.ndarray, *, views: int = 1
) -> dict[str, np.ndarray]:
  """[N views, K] of each kind."""

  def measure(model, images, labels):
    del labels
    objects = model(images).objects
    return {
      "prior": objects.prior_presence(),
      "posterior": objects.posterior_presence(),
      "won": scae.shares_won(objects),
    }

  evaluate = tasks.make_evaluate(measure, draw, trained.config.batch_size)
  labels = np.zeros(len(images), np.int32)
  return evaluate(trained.model, images, labels, views=views)
