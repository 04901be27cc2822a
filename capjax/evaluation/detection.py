"""Detection of images of another data set by a score of each image."""

from typing import NamedTuple

import numpy as np
from etils import epy
from numpy.typing import ArrayLike

with epy.lazy_imports():  # these take seconds, and --help needs none
  from sklearn import metrics


class Detection(NamedTuple):
  """How well a score separates familiar (in-distribution) from other images.

  Attributes:
    auroc: the probability that a familiar image has a higher score than another
      one, ties counting half: 1 is perfect, 1/2 is no better than random
      guessing, and below 1/2 the other images look more familiar.
    false_positive_rate: the share of other images above the threshold, in
      [0, 1]: the false positive rate at a true positive rate of `kept` (FPR95
      for 0.95).
  """

  auroc: float
  false_positive_rate: float


def detection(
  familiar: ArrayLike, other: ArrayLike, *, kept: float = 0.95
) -> Detection:
  """Compares scores of familiar images with those of others.

  The two measures of Hendrycks and Gimpel (2017) and of Liang et al. (2018).

  Args:
    familiar: [N], scores, higher for images that look familiar.
    other: [M], the same of images of another kind.
    kept: in (0, 1], the least share of familiar images above the threshold.

  Raises:
    ValueError: if there are no images of a kind, or several scores of one, a
      score is not finite, or `kept` is out of its range.
  """
  familiar, other = np.asarray(familiar, float), np.asarray(other, float)
  if not 0 < kept <= 1:
    raise ValueError(f"kept is {kept}; give a share above 0, up to 1.")
  for name, values in (("familiar", familiar), ("other", other)):
    if values.ndim != 1:
      raise ValueError(
        f"{name} has shape {list(values.shape)}; give [N], one score for each "
        "image."
      )
  if not (familiar.size and other.size):
    raise ValueError(
      f"there are {familiar.size} familiar and {other.size} other scores; give "
      "at least one of each."
    )
  scores = np.concatenate([familiar, other])
  if not np.all(np.isfinite(scores)):
    raise ValueError("scores are not finite; give finite numbers.")
  is_familiar = np.repeat([1, 0], [len(familiar), len(other)])
  # The smallest number of familiar images that is at least this share.
  count = max(1, int(np.ceil(kept * len(familiar) - 1e-9)))
  threshold = np.sort(familiar)[len(familiar) - count]
  return Detection(
    float(metrics.roc_auc_score(is_familiar, scores)),
    float(np.mean(other >= threshold)),
  )
