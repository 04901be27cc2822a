"""Accuracy of assigning points to the objects that they belong to."""

from typing import NamedTuple

import numpy as np
from etils import epy
from jaxtyping import Bool, Float, Int

with epy.lazy_imports():  # these take seconds, and --help needs none
  from scipy import optimize
  from sklearn import metrics


class Segmentation(NamedTuple):
  """Scores over images with points; images without points are left out.

  Attributes:
    accuracy: the share of points of an image with the right object, after the
      best matching of found objects to true objects; averaged over images.
    pooled_accuracy: the same share over the points of all images together.
    rand_index: the mean over images of the adjusted Rand index (Hubert and
      Arabie, 1985): 1 for the same segments, 0 on average for random ones. If
      all points are assigned to one object, it is 0 where there are several
      objects and 1 where there is one: see `of_several`.
    perfect: the share of images without a mistake.
    num_images: the number of images that have points.
  """

  accuracy: float
  pooled_accuracy: float
  rand_index: float
  perfect: float
  num_images: int


def match(
  found: Int[np.ndarray, " N"], truth: Int[np.ndarray, " N"]
) -> Int[np.ndarray, " N"]:
  """Matches found objects to true objects, so that most points agree.

  Args:
    found: the object that each point was assigned to, any integers.
    truth: the object that each point belongs to, >= 0.

  Returns:
    [N], `found` with each object replaced by its true object, one to one (the
    Hungarian method); -1 for objects without match.
  """
  _, found = np.unique(found, return_inverse=True)
  objects, truth = np.unique(truth, return_inverse=True)
  size = max(found.max(initial=-1), truth.max(initial=-1)) + 1
  counts = np.zeros((size, size), int)
  np.add.at(counts, (found, truth), 1)
  _, places = optimize.linear_sum_assignment(counts, maximize=True)
  is_used = counts[np.arange(size), places] > 0
  names = np.full(size, -1)
  names[: len(objects)] = objects
  return np.where(is_used, names[places], -1)[found]


def of_several(
  truth: Int[np.ndarray, "B N"], presence: Float[np.ndarray, "B N"]
) -> Bool[np.ndarray, " B"]:
  """Whether the present points of an image belong to two objects or more.

  On other images one object for all points is right, so scores over all images
  say less about segmentation.

  Args:
    truth: the object that each point belongs to, >= 0.
    presence: presence of points; those above 0 count.
  """
  present = np.asarray(presence) > 0
  largest = np.max(np.where(present, truth, -1), axis=1)
  return np.any(present & (truth != largest[:, None]), axis=1)


def score(
  found: Int[np.ndarray, "B N"],
  truth: Int[np.ndarray, "B N"],
  presence: Float[np.ndarray, "B N"],
) -> Segmentation:
  """Scores the segments of images.

  Args:
    found: the object that each point was assigned to.
    truth: the object that each point belongs to, >= 0 for those that count.
    presence: presence of points; those above 0 count.

  Returns:
    See `Segmentation`.

  Raises:
    ValueError: if no image has a point, a point that counts belongs to no
      object, or the shapes are not one [B N].

  Differs from the SCAE authors' code: theirs reports the pooled accuracy alone.
  """
  present = np.asarray(presence) > 0
  shapes = np.shape(found), np.shape(truth), present.shape
  if len(set(shapes)) > 1 or present.ndim != 2:
    raise ValueError(
      "found, truth and presence are "
      f"{', '.join(str(list(x)) for x in shapes)}; give one shape [B N]."
    )
  if np.any(np.asarray(truth)[present] < 0):
    raise ValueError(
      "truth is below 0 at points that count; give points of no object the "
      "presence 0."
    )
  images = [
    (np.asarray(one)[row], np.asarray(other)[row])
    for one, other, row in zip(found, truth, present, strict=True)
    if row.any()
  ]
  if not images:
    raise ValueError("no image has a point; there is nothing to score.")
  right = np.array([np.sum(match(*image) == image[1]) for image in images])
  sizes = np.array([len(image[0]) for image in images])
  rand = [metrics.adjusted_rand_score(truth, found) for found, truth in images]
  return Segmentation(
    float(np.mean(right / sizes)),
    float(right.sum() / sizes.sum()),
    float(np.mean(rand)),
    float(np.mean(right == sizes)),
    len(images),
  )
