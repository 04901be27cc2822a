"""How well points are told apart by the object that they are of."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import optimize
from sklearn import metrics


class Segmentation(NamedTuple):
  """Scores of images with points; those without are left out.

  Attributes:
    accuracy: of an image the share of its points that are of the right object,
      after the objects found are matched to the true ones so that most are; the
      mean over images.
    pooled_accuracy: the same share of the points of all images.
    rand_index: the mean over images of the adjusted Rand index (Hubert and
      Arabie, 1985): 1 for the same segments, 0 on average by chance.
    perfect: the share of images without a mistake.
    num_images: those that have points.
  """

  accuracy: float
  pooled_accuracy: float
  rand_index: float
  perfect: float
  num_images: int


def match(
  found: Int[np.ndarray, " N"], truth: Int[np.ndarray, " N"]
) -> Int[np.ndarray, " N"]:
  """Calls found objects by the names of true ones, so that most points agree.

  Args:
    found: the object that each point was assigned to, numbers of any kind.
    truth: the object that it is of, >= 0.

  Returns:
    [N], `found` with each of its objects called by one true object, no two by
    the same (the Hungarian method); -1 for those that are left over.
  """
  _, found = np.unique(found, return_inverse=True)
  size = max(found.max(initial=-1), truth.max(initial=-1)) + 1
  counts = np.zeros((size, size), int)
  np.add.at(counts, (found, truth), 1)
  _, names = optimize.linear_sum_assignment(counts, maximize=True)
  is_used = counts[np.arange(size), names] > 0
  return np.where(is_used, names, -1)[found]


def score(
  found: Int[np.ndarray, "B N"],
  truth: Int[np.ndarray, "B N"],
  presence: Float[np.ndarray, "B N"],
) -> Segmentation:
  """Scores the segments of images.

  Args:
    found: the object that each point was assigned to.
    truth: the object that it is of.
    presence: of points; those above 0 count.

  Returns:
    See `Segmentation`.

  Raises:
    ValueError: if no image has a point.

  Differs from the SCAE authors' code, which reports the pooled accuracy alone,
  in nothing else.
  """
  there = np.asarray(presence) > 0
  images = [
    (np.asarray(one)[row], np.asarray(other)[row])
    for one, other, row in zip(found, truth, there, strict=True)
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
