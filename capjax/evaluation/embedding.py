"""Embeds features as points in the plane, so that neighbours stay together."""

import numpy as np
from etils import epy
from jaxtyping import Float

with epy.lazy_imports():  # this takes seconds, and --help needs none
  from sklearn import manifold


def embed(
  features: Float[np.ndarray, "N F"], *, seed: int = 0
) -> Float[np.ndarray, "N 2"]:
  """Embeds features in the plane by t-SNE (van der Maaten and Hinton, 2008).

  All features are first divided by their standard deviation. Without this,
  scikit-learn ends the process where they hardly vary, as those of a collapsed
  model do.

  Args:
    features: on scales that can be compared; at least 2.
    seed: seed of the optimisation.

  Returns:
    Points; all at the origin if features differ by no more than the rounding of
    float32.

  Raises:
    ValueError: if a feature is not finite, or there are fewer than 2.
  """
  if len(features) < 2 or not np.isfinite(features).all():
    raise ValueError(
      f"features {features.shape} cannot be embedded; give at least 2, all "
      "finite."
    )
  features = np.asarray(features, np.float64)
  rounding = np.finfo(np.float32).eps * np.abs(features).max()
  features = features - features.mean(axis=0)
  spread = np.abs(features).max()
  if spread <= rounding:
    return np.zeros((len(features), 2), np.float32)
  features /= spread  # Squares of tiny numbers would be zero.
  features /= features.std()
  # The default perplexity, unless there are too few.
  perplexity = min(30.0, (len(features) - 1) / 3)
  method = manifold.TSNE(perplexity=perplexity, random_state=seed)
  # t-SNE starts from two principal components; a single feature has only one.
  return method.fit_transform(np.pad(features, ((0, 0), (0, 1))))
