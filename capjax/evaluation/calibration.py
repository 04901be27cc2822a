"""Calibration: do scores equal the probability that the class is right?"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from capjax.kernels import checks


class Reliability(NamedTuple):
  """The reliability diagram of a classifier, and two errors computed from it.

  Of M bins of equal width in [0, 1], those without images are left out.

  Attributes:
    confidences: [M], the mean score of the predicted class in each bin.
    accuracies: [M], the share of images whose predicted class is right.
    counts: [M], the images in each bin.
    expected_error: the mean over images of |accuracy - confidence| of the
      image's bin, in [0, 1].
    largest_error: the maximum calibration error (MCE), the largest of these
      differences, in [0, 1].
  """

  confidences: np.ndarray
  accuracies: np.ndarray
  counts: np.ndarray
  expected_error: float
  largest_error: float


def reliability(
  scores: ArrayLike, labels: ArrayLike, *, num_bins: int = 15
) -> Reliability:
  """Compares the scores of predicted classes with their accuracy.

  The score of the predicted class is read as the probability that the class is
  right (Guo et al., 2017, section 2). The lengths of class capsules are meant
  as probabilities too (Sabour et al., 2017, section 2), but do not sum to 1.

  Args:
    scores: [N J] in [0, 1], of the classes.
    labels: int [N], the true classes.
    num_bins: of equal width; a score of 1 is in the last.

  Raises:
    ValueError: if there are no images, a score is outside [0, 1], the labels
      are not one for each image, or `num_bins` is below 1.
  """
  scores, labels = np.asarray(scores, float), np.asarray(labels)
  checks.counts(num_bins=num_bins)
  _check(scores, labels)
  confidence = np.max(scores, axis=1)
  right = np.argmax(scores, axis=1) == labels
  bins = np.minimum(np.int64(confidence * num_bins), num_bins - 1)
  counts = np.bincount(bins, minlength=num_bins)
  held = counts > 0
  confidences, accuracies = (
    np.bincount(bins, of_each, num_bins)[held] / counts[held]
    for of_each in (confidence, right)
  )
  errors = np.abs(accuracies - confidences)
  return Reliability(
    confidences,
    accuracies,
    counts[held],
    float(np.average(errors, weights=counts[held])),
    float(np.max(errors)),
  )


def brier_score(scores: ArrayLike, labels: ArrayLike) -> float:
  """The mean over images of the squared distance of the scores from one-hot.

  sum_j (s_j - [j is the label])^2 (Brier, 1950), in [0, J]; for scores that sum
  to 1, in [0, 2].

  Args:
    scores: [N J] in [0, 1], of the classes.
    labels: int [N], the true classes.

  Raises:
    ValueError: as `reliability`.
  """
  scores, labels = np.asarray(scores, float), np.asarray(labels)
  _check(scores, labels)
  differences = scores - np.eye(scores.shape[1])[labels]
  return float(np.mean(np.sum(np.square(differences), axis=1)))


def _check(scores, labels) -> None:
  if scores.ndim != 2 or not scores.size:
    raise ValueError(
      f"scores have shape {list(scores.shape)}; give one row of class scores "
      "for each of one or more images."
    )
  if labels.shape != scores.shape[:1]:
    raise ValueError(
      f"labels have shape {list(labels.shape)}; give one for each of the "
      f"{len(scores)} rows of scores."
    )
  if not np.issubdtype(labels.dtype, np.integer):
    raise ValueError(
      f"labels are {labels.dtype}; give whole numbers, the classes."
    )
  wrong = labels[(labels < 0) | (labels >= scores.shape[1])]
  if wrong.size:
    raise ValueError(f"labels hold {wrong[0]}; give 0..{scores.shape[1] - 1}.")
  if not np.all((scores >= 0) & (scores <= 1)):
    raise ValueError(
      f"scores hold values from {np.min(scores):g} to {np.max(scores):g}; give "
      "scores in [0, 1], such as probabilities or activations."
    )
