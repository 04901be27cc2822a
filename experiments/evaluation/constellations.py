"""Suites for constellations: the model, and inference with known patterns."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from capjax.kernels.matching import constellations as generative
from capjax.kernels.matching import ransac as consensus
from capjax.kernels.matching import similarities

from capjax.data.sources import constellations
from capjax.evaluation import segmentation as scores_of

from ..figures import constellations as point_figures
from ..run import directory
from . import models
from .models import Options, Scores, Trained
from .suite import suite

_NUM_IMAGES = 500  # images in which patterns are inferred
_NUM_RESTARTS = 20
_PRECISIONS = (1e4, 3e3, 1e3)
_NUM_TRIED = 100  # images on which the precision is chosen
_TOLERANCES = (0.1, 0.2, 0.4, 0.8)
_AT_ONCE = 50
_NUM_SHOWN = 10


def accuracy(
  found: jax.Array, sampled: constellations.Constellation, num_objects: int
) -> jax.Array:
  """The share of points assigned to the right object, under the best matching.

  Args:
    found: [B M], the object of each point, in 0..num_objects-1.
    sampled: constellations of at least one object.
    num_objects: number of objects, of which all permutations are tried.

  Returns:
    [B], the accuracy of each image as in `segmentation.score`.
  """
  orders = list(itertools.permutations(range(num_objects)))
  named = jnp.asarray(orders)[:, found]
  right = jnp.sum((named == sampled.objects) * sampled.presence, axis=-1)
  return jnp.max(right, axis=0) / jnp.sum(sampled.presence, axis=-1)


@suite(
  counts={
    "segmentation_several_": "segmentation_several_num_images",
    "one_object_several_": "one_object_several_num_images",
  }
)
def segmentation(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Measures how well the model assigns points to objects; plots a few images.

  Returns:
    The scores of `segmentation.score` on the test set, and the mean measures of
    the test set and the validation set. Scores that start with
    `segmentation_several_` are those on images of two objects or more. Scores
    that start with `one_object_` are those of a control without a model, which
    assigns all points to one object.
  """
  del options
  sampled = _constellations(trained, len(trained.test.labels))
  found = trained.measures["objects"]
  _picture(run, "segmentation", sampled, {"autoencoder": found})
  return {
    **_scores("segmentation", found, sampled),
    **_scores("one_object", np.zeros_like(found), sampled),
    **models.means(trained),
  }


@suite(
  "images",
  counts={
    "gcm_several_": "gcm_several_num_images",
    "gcm_mixture_several_": "gcm_mixture_several_num_images",
  },
)
def gcm(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Measures segmentation by variational inference with known patterns.

  Nazabal et al. (2022), on the first test images. The noise is not known: of a
  few precisions, the one with the highest median bound over the first hundred
  images is used.

  Returns:
    The scores of `segmentation.score`, with permutations and with mixtures, the
    median bound of an image in nats, and the precision.
  """
  sampled = _constellations(trained, options.images or _NUM_IMAGES)
  template = similarities.templates(constellations.PATTERNS)

  @functools.partial(jax.jit, static_argnums=0)
  def infer(matching, precision, sampled):
    def one(example):
      found = generative.infer(
        *example,
        template,
        matching=matching,
        last_precision=precision,
        num_restarts=_NUM_RESTARTS,
      )
      return jnp.argmax(found.objects, axis=-1), found.elbo

    return _for_each(one, sampled)

  scores, pictures = {}, {}
  for matching in ("permutation", "mixture"):
    few = jax.tree.map(lambda x: x[:_NUM_TRIED], sampled)
    bounds = [np.median(infer(matching, x, few)[1]) for x in _PRECISIONS]
    precision = _PRECISIONS[np.argmax(bounds)]
    objects, elbo = map(np.asarray, infer(matching, precision, sampled))
    pictures[f"GCM, {matching}"] = objects
    prefix = "gcm" if matching == "permutation" else "gcm_mixture"
    scores |= _scores(prefix, objects, sampled)
    scores[f"{prefix}_elbo"] = float(np.median(elbo))
    scores[f"{prefix}_precision"] = precision
  _picture(run, "gcm", sampled, pictures)
  return {**scores, "num_images": len(sampled.points)}


@suite("images", counts={"ransac_several_": "ransac_several_num_images"})
def ransac(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Measures segmentation by RANSAC: known patterns fitted to pairs of points.

  On the first test images. Of a few tolerances, each image uses the smallest
  with which most of its points are explained.

  Returns:
    The scores of `segmentation.score`.
  """
  sampled = _constellations(trained, options.images or _NUM_IMAGES)
  template = similarities.templates(constellations.PATTERNS)
  sizes = jnp.sum(template.members, axis=1)

  def match(example):
    _, points, presence = example
    tried = [
      consensus.match(points, presence, template, tolerance=tolerance)
      for tolerance in _TOLERANCES
    ]
    explained = jnp.stack([jnp.sum(sizes * (x.scores > 0)) for x in tried])
    return jnp.stack([x.objects for x in tried])[jnp.argmax(explained)]

  found = np.asarray(jax.jit(functools.partial(_for_each, match))(sampled))
  _picture(run, "ransac", sampled, {"RANSAC": found})
  return {
    **_scores("ransac", found, sampled), "num_images": len(sampled.points)
  }  # fmt: skip


SUITES = (
  segmentation,
  gcm,
  ransac,
)


def _constellations(trained, count) -> constellations.Constellation:
  """The first examples of the test set."""
  indices = np.arange(min(count, len(trained.test.labels)))
  return models.make_examples(trained, trained.task.sample_test, indices)[0]


def _for_each(function, sampled):
  """Calls a function with the (key, points, presence) of each image."""
  keys = jax.random.split(jax.random.key(0), len(sampled.points))
  examples = keys, sampled.points, sampled.presence
  return jax.lax.map(function, examples, batch_size=_AT_ONCE)


def _scores(prefix, found, sampled) -> Scores:
  """The scores of all images, and of images of two objects or more."""
  truth, presence = np.asarray(sampled.objects), np.asarray(sampled.presence)
  several = scores_of.of_several(truth, presence)
  scores = {}
  for name, rows in ((prefix, ...), (f"{prefix}_several", several)):
    if np.any(presence[rows] > 0):
      some = scores_of.score(found[rows], truth[rows], presence[rows])
      scores |= {
        f"{name}_{key}": value for key, value in some._asdict().items()
      }
  return scores


def _picture(run, name, sampled, found):
  """Plots the images with most objects, in the colours of the true objects."""
  points, there, truth = map(np.asarray, sampled)
  shown = np.argsort(-there.sum(axis=1), kind="stable")[:_NUM_SHOWN]
  rows = {"truth": truth[shown]}
  for method, objects in found.items():
    rows[method] = np.full_like(truth[shown], -1)
    for row, n in enumerate(shown):
      of = there[n] > 0
      rows[method][row, of] = scores_of.match(objects[n][of], truth[n][of])
  point_figures.segments(points[shown], there[shown], rows, run.figure(name))
