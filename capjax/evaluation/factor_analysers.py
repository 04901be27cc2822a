"""Mixtures of factor analysers: Gaussians stretched along few directions.

Ghahramani and Hinton (1996), The EM algorithm for mixtures of factor analyzers.
The outputs of capsules change together when an object moves. They should lie
near one plane of few dimensions for each kind of object:
x = mean + loadings z + noise.
"""

from typing import NamedTuple

import numpy as np
from etils import epy
from jaxtyping import Float

from capjax.evaluation import clustering
from capjax.kernels import checks

with epy.lazy_imports():  # these take seconds, and --help needs none
  from scipy import special


class FactorAnalysers(NamedTuple):
  """A mixture of K analysers of Z factors each.

  Attributes:
    shares: the weight of each analyser; they sum to 1.
    means: the mean of each analyser.
    loadings: [K F Z], the change of features for a unit of each factor.
    noise: the variance of each feature besides that of the factors.
  """

  shares: Float[np.ndarray, " K"]
  means: Float[np.ndarray, "K F"]
  loadings: Float[np.ndarray, "K F Z"]
  noise: Float[np.ndarray, "K F"]

  def log_joint(
    self, features: Float[np.ndarray, "N F"]
  ) -> Float[np.ndarray, "N K"]:
    """Computes log p(x, k) in nats, for each example and analyser.

    Args:
      features: any finite numbers.
    """
    columns = []
    for share, mean, loadings, noise in zip(*self, strict=True):
      # Woodbury's identity: products of F by Z, and one inverse of Z by Z.
      scaled = loadings / noise[:, None]
      inner = np.eye(loadings.shape[1]) + loadings.T @ scaled
      offsets = features - mean
      factors = offsets @ scaled
      squares = np.sum(offsets**2 / noise, axis=1) - np.sum(
        factors * np.linalg.solve(inner, factors.T).T, axis=1
      )
      log_det = np.linalg.slogdet(inner)[1] + np.sum(np.log(noise))
      with np.errstate(divide="ignore"):  # an analyser without examples
        log_share = np.log(share)
      norm = features.shape[1] * np.log(2 * np.pi) + log_det
      columns.append(log_share - (squares + norm) / 2)
    return np.stack(columns, axis=1)


def fit_factor_analysers(
  features: Float[np.ndarray, "N F"],
  *,
  num_analysers: int,
  num_factors: int,
  num_iterations: int = 30,
  least_noise: float = 0.01,
  seed: int = 0,
) -> FactorAnalysers:
  """Fits a mixture by EM, from the clusters of k-means.

  Each step computes shares and means from the probabilities p(k | x), then the
  loadings and the noise of each analyser by one EM step of its own. No step
  makes the features less likely.

  Args:
    features: without labels; on scales that can be compared.
    num_analysers: K.
    num_factors: Z, fewer than features.
    num_iterations: iterations of EM.
    least_noise: lower limit of the noise variance, for features with variance
      about 1; without it the likelihood of an analyser with few examples grows
      without limit.
    seed: seed of k-means.

  Returns:
    The mixture.

  Raises:
    ValueError: if there are not more features than factors, fewer examples than
      analysers, no analysers or iterations, no noise, or a feature is not
      finite.

  Differs from paper: each analyser has noise of its own, which the paper shares
  among all, with a lower limit; means are updated apart from the loadings.
  """
  if not 0 < num_factors < features.shape[1]:
    raise ValueError(
      f"num_factors={num_factors} of {features.shape[1]} features; give fewer, "
      "and at least 1."
    )
  checks.counts(num_analysers=num_analysers, num_iterations=num_iterations)
  checks.positive(least_noise=least_noise)
  features = features.astype(np.float64)
  means = clustering.fit_means(features, num_analysers, seed=seed)
  probabilities = np.eye(num_analysers)[means.labels_]
  mixture: FactorAnalysers | None = None
  for _ in range(num_iterations):
    if mixture is not None:
      probabilities = special.softmax(mixture.log_joint(features), axis=1)
    total = probabilities.sum(axis=0)
    weights = probabilities / np.maximum(total, 1e-8)
    fitted = []
    for k in range(num_analysers):
      mean = weights[:, k] @ features
      offsets = features - mean
      scatter = (weights[:, k, None] * offsets).T @ offsets
      if mixture is None:
        loadings = _principal(scatter, num_factors)
        noise = np.diag(scatter) - np.sum(loadings**2, axis=1)
      else:
        loadings, noise = _improved(
          scatter, mixture.loadings[k], mixture.noise[k]
        )
      fitted.append((mean, loadings, np.maximum(noise, least_noise)))
    means, loadings, noise = map(np.stack, zip(*fitted, strict=True))
    mixture = FactorAnalysers(total / len(features), means, loadings, noise)
  assert mixture is not None  # there is at least one iteration
  return mixture


def _principal(scatter, num_factors):
  """Returns the directions [F Z] of largest variance, with their lengths.

  The squared length of a direction is its variance less the mean variance of
  the directions that are left out.
  """
  values, vectors = np.linalg.eigh(scatter)
  rest = np.mean(values[:-num_factors])
  lengths = np.sqrt(np.maximum(values[-num_factors:] - rest, 1e-6))
  return vectors[:, -num_factors:] * lengths


def _improved(scatter, loadings, noise):
  """One step of EM on the scatter [F F] about the mean (Eqs. 5 to 7)."""
  scaled = loadings / noise[:, None]
  inner = np.eye(loadings.shape[1]) + loadings.T @ scaled
  beta = np.linalg.solve(inner, scaled.T)  # maps offsets to expected factors
  crossed = scatter @ beta.T
  moments = np.linalg.inv(inner) + beta @ crossed
  loadings = np.linalg.solve(moments, crossed.T).T
  return loadings, np.diag(scatter) - np.sum(loadings * crossed, axis=1)
