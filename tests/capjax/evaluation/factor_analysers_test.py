"""Mixtures of factor analysers against SciPy, scikit-learn and their data."""

import numpy as np
from absl.testing import absltest, parameterized
from scipy import special, stats
from sklearn import decomposition

from capjax.evaluation import clustering, factor_analysers


def _mixture(seed=0, shapes=(3, 6, 2)):
  count, size, factors = shapes
  random = np.random.default_rng(seed)
  shares = random.uniform(0.5, 1, count)
  return factor_analysers.FactorAnalysers(
    shares / shares.sum(),
    random.normal(size=(count, size)),
    random.normal(size=(count, size, factors)),
    random.uniform(0.2, 1, (count, size)),
  )


def _crossed(seed, count=600):
  """Two long clusters through one middle, along different axes."""
  random = np.random.default_rng(seed)
  labels = np.arange(count) % 2
  features = 0.1 * random.normal(size=(count, 4))
  features[np.arange(count), labels] += 3 * random.normal(size=count)
  return features, labels


def _log_likelihood(mixture, features):
  """The mean of log p(x)."""
  return np.mean(special.logsumexp(mixture.log_joint(features), axis=1))


class FactorAnalysersTest(parameterized.TestCase):
  def test_density_is_that_of_the_gaussians(self):
    mixture = _mixture()
    features = np.random.default_rng(1).normal(size=(5, 6))
    got = mixture.log_joint(features)
    for k, (share, mean, loadings, noise) in enumerate(
      zip(*mixture, strict=True)
    ):
      covariance = loadings @ loadings.T + np.diag(noise)
      for n, x in enumerate(features):
        want = np.log(share) + stats.multivariate_normal.logpdf(
          x, mean, covariance
        )
        np.testing.assert_allclose(got[n, k], want, rtol=1e-9)

  def test_one_analyser_is_that_of_scikit_learn(self):
    random = np.random.default_rng(0)
    features = random.normal(size=(500, 2)) @ random.normal(size=(2, 6))
    features += random.normal(size=features.shape) * np.linspace(0.5, 1, 6)
    theirs = decomposition.FactorAnalysis(
      2, tol=1e-5, max_iter=10_000, svd_method="lapack"
    ).fit(features)
    ours = factor_analysers.fit_factor_analysers(
      features, num_analysers=1, num_factors=2, num_iterations=3000
    )
    np.testing.assert_allclose(
      _log_likelihood(ours, features), theirs.score(features), atol=1e-4
    )
    np.testing.assert_allclose(ours.noise[0], theirs.noise_variance_, atol=1e-2)

  @parameterized.parameters(range(3))
  def test_no_step_makes_features_less_likely(self, seed):
    mixture = _mixture(seed)
    random = np.random.default_rng(seed)
    kinds = random.choice(3, size=200, p=mixture.shares)
    features = mixture.means[kinds] + np.einsum(
      "nfz,nz->nf", mixture.loadings[kinds], random.normal(size=(200, 2))
    )
    features += np.sqrt(mixture.noise[kinds]) * random.normal(size=(200, 6))
    found = [
      _log_likelihood(
        factor_analysers.fit_factor_analysers(
          features, num_analysers=3, num_factors=2, num_iterations=steps
        ),
        features,
      )
      for steps in range(1, 12)
    ]
    self.assertGreater(np.min(np.diff(found)), -1e-9)
    self.assertGreater(found[-1], found[0] + 0.01)

  def test_crossing_clusters_are_told_apart_where_means_cannot(self):
    (features, labels), (test, test_labels) = _crossed(0), _crossed(1)
    mixture = factor_analysers.fit_factor_analysers(
      features, num_analysers=2, num_factors=1, num_iterations=60
    )
    found = np.argmax(mixture.log_joint(test), axis=1)
    names = clustering.match(found, test_labels)
    right = np.mean([names[k] for k in found] == test_labels)
    self.assertGreater(right, 0.9)
    self.assertLess(
      clustering.match_accuracy(features, labels, test, test_labels), 0.8
    )

  def test_equal_features_and_analysers_of_one_example_stay_finite(self):
    features = np.full((20, 3), 0.5, np.float32)
    features[0] = 100
    mixture = factor_analysers.fit_factor_analysers(
      features, num_analysers=4, num_factors=2
    )
    for array in mixture:
      self.assertTrue(np.isfinite(array).all())
    joint = mixture.log_joint(features)
    self.assertTrue(np.isfinite(np.max(joint, axis=1)).all())
    self.assertFalse(np.isnan(joint).any())
    np.testing.assert_allclose(mixture.shares.sum(), 1)

  @parameterized.parameters(
    (dict(num_factors=4), "num_factors=4 of 4"),
    (dict(num_factors=0), "num_factors=0"),
    (dict(least_noise=0.0), "least_noise is 0.0"),
    (dict(least_noise=np.nan), "least_noise is nan"),
    (dict(num_analysers=0), "num_analysers is 0; give at least 1"),
    (dict(num_iterations=0), "num_iterations is 0; give"),
    (dict(num_analysers=601), "600 examples cannot form 601"),
  )
  def test_bad_options_are_refused(self, options, message):
    options = dict(num_analysers=2, num_factors=1) | options
    with self.assertRaisesRegex(ValueError, message):
      factor_analysers.fit_factor_analysers(_crossed(0)[0], **options)

  def test_what_is_not_finite_is_refused(self):
    features, _ = _crossed(0)
    features[1, 2] = np.nan
    with self.assertRaisesRegex(ValueError, "NaN"):
      factor_analysers.fit_factor_analysers(
        features, num_analysers=2, num_factors=1
      )


if __name__ == "__main__":
  absltest.main()
