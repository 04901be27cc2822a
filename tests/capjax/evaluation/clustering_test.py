"""Clusters, probes and few labels on planted features, and where they break."""

import inspect
import itertools

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from capjax.evaluation import clustering

_NUM_CLASSES = 4


def _planted(seed, count=200, spread=0.2, num_classes=_NUM_CLASSES):
  """Features [N 3] around a corner for each class, and labels."""
  random = np.random.default_rng(seed)
  centres = 3 * np.array(list(itertools.product([0, 1], repeat=3)))
  labels = np.arange(count) % num_classes
  noise = random.normal(size=(count, 3))
  return (centres[labels] + spread * noise).astype(np.float32), labels


def _best_permutation(clusters, labels, num_classes):
  """The most examples that any naming of clusters gets right."""
  return max(
    sum(names[c] == y for c, y in zip(clusters, labels, strict=True))
    for names in itertools.permutations(range(num_classes))
  )


def _unmatched(train, train_labels, test, labels):
  """Broken: takes a cluster's number for its class."""
  means = clustering.fit_means(train, len(np.unique(train_labels)))
  return np.mean(means.predict(test) == labels)


def _by_majority(clusters, labels):
  """Broken: two clusters may have one class."""
  return {
    kind: int(np.argmax(np.bincount(labels[clusters == kind])))
    for kind in np.unique(clusters)
  }


class MatchTest(parameterized.TestCase):
  @parameterized.parameters(range(5))
  def test_no_naming_of_clusters_is_better(self, seed):
    random = np.random.default_rng(seed)
    clusters, labels = random.integers(5, size=(2, 60))
    names = clustering.match(clusters, labels)
    right = sum(names[c] == y for c, y in zip(clusters, labels, strict=True))
    self.assertEqual(right, _best_permutation(clusters, labels, 5))
    self.assertLen(set(names.values()), 5)

  def test_no_class_has_two_clusters_where_a_majority_would_give_them(self):
    clusters = np.array([0, 0, 0, 1, 1, 1])
    labels = np.array([0, 0, 0, 0, 0, 1])
    self.assertEqual(clustering.match(clusters, labels), {0: 0, 1: 1})
    self.assertEqual(_by_majority(clusters, labels), {0: 0, 1: 0})

  def test_clusters_left_over_have_no_name(self):
    clusters, labels = np.array([7, 7, 3, 3, 5]), np.array([2, 2, 9, 9, 9])
    self.assertEqual(clustering.match(clusters, labels), {7: 2, 3: 9})
    words = np.array(["cat", "dog"])[np.equal(labels, 9).astype(int)]
    self.assertEqual(clustering.match(clusters, words), {7: "cat", 3: "dog"})


class AccuracyTest(parameterized.TestCase):
  def test_planted_clusters_are_found_whatever_their_names(self):
    (train, labels), (test, test_labels) = _planted(0), _planted(1)
    broken = []
    for names in ([0, 1, 2, 3], [3, 0, 1, 2], [2, 3, 0, 1], [10, 30, 20, 70]):
      names = np.array(names)
      given = train, names[labels], test, names[test_labels]
      self.assertEqual(clustering.match_accuracy(*given), 1)
      self.assertEqual(clustering.refit_accuracy(*given[2:]), 1)
      self.assertEqual(clustering.probe_accuracy(*given), 1)
      broken.append(_unmatched(*given))
    self.assertLess(np.mean(broken), 0.6)

  def test_clusters_and_names_are_those_of_the_training_set(self):
    """Where the test set's clusters have changed places, only a refit knows."""
    (train, labels), (test, test_labels) = _planted(0), _planted(1)
    mirrored = 3 - test
    mirrored[:, 0] = test[:, 0]
    self.assertEqual(
      clustering.match_accuracy(train, labels, mirrored, test_labels), 0
    )
    self.assertEqual(clustering.refit_accuracy(mirrored, test_labels), 1)

  def test_refit_is_optimistic(self):
    """Noise has no classes, but of few examples some fit some clusters."""
    random = np.random.default_rng(0)
    fitted, refit = [], []
    for seed in range(5):
      train, test = random.normal(size=(2, 40, 3))
      train_labels, labels = random.integers(4, size=(2, 40))
      train_labels[:4] = range(4)
      fitted.append(
        clustering.match_accuracy(train, train_labels, test, labels, seed=seed)
      )
      refit.append(clustering.refit_accuracy(test, labels, seed=seed))
    self.assertGreater(np.mean(refit), np.mean(fitted) + 0.08)
    self.assertLess(abs(np.mean(fitted) - 0.25), 0.1)

  def test_probe_minds_no_scale(self):
    (train, labels), (test, test_labels) = _planted(0, 400, 1.0), _planted(1)
    scale = np.array([1e-4, 1, 1e4], np.float32)
    got = clustering.probe_accuracy(
      train * scale, labels, test * scale, test_labels
    )
    want = clustering.probe_accuracy(train, labels, test, test_labels)
    self.assertAlmostEqual(got, want, delta=0.01)

  def test_shuffled_labels_leave_chance(self):
    random = np.random.default_rng(0)
    (train, labels), (test, test_labels) = _planted(0, 2000), _planted(1, 2000)
    labels = random.permutation(labels)
    none = np.zeros((0, 2), np.float32), np.zeros(0, np.int32)
    for accuracy in (clustering.match_accuracy, clustering.probe_accuracy):
      with self.assertRaisesRegex(ValueError, r"are \[0, 2\], of no example"):
        accuracy(np.eye(2, dtype=np.float32), np.arange(2), *none)
      got = accuracy(train, labels, test, test_labels)
      self.assertLess(got, 0.55)

  def test_equal_features_give_the_share_of_one_class(self):
    labels = np.array([0] * 6 + [1] * 3 + [2])
    features = np.full((10, 4), 0.3, np.float32)
    given = features, labels, features, labels
    self.assertAlmostEqual(clustering.match_accuracy(*given), 0.6)
    self.assertAlmostEqual(clustering.refit_accuracy(*given[2:]), 0.6)
    self.assertAlmostEqual(clustering.probe_accuracy(*given), 0.6)
    curves = clustering.few_label_accuracy(*given, counts=(3,))
    np.testing.assert_allclose(curves["clusters"].mean, 0.6)
    self.assertBetween(curves["linear"].mean, 0.1, 0.6)

  @parameterized.parameters(np.nan, np.inf)
  def test_what_is_not_finite_is_named(self, value):
    (train, labels), (test, test_labels) = _planted(0), _planted(1)
    broken = test.copy()
    broken[3, 1] = value
    for call in (
      lambda: clustering.match_accuracy(train, labels, broken, test_labels),
      lambda: clustering.refit_accuracy(broken, test_labels),
      lambda: clustering.probe_accuracy(broken, test_labels, train, labels),
      lambda: clustering.few_label_accuracy(train, labels, broken, test_labels),
    ):
      with self.assertRaisesRegex(ValueError, "NaN or infinities"):
        call()

  def test_too_few_examples_are_refused(self):
    features, _ = _planted(0, 4)
    with self.assertRaisesRegex(ValueError, "labels are of one class"):
      zeros = np.zeros(4, np.int64)
      clustering.probe_accuracy(features, zeros, features, zeros)
    with self.assertRaisesRegex(ValueError, "2 examples cannot form 4"):
      clustering.fit_means(features[:2], 4)


def test_test_features_have_the_scale_of_those_of_training():
  train, _ = _planted(0)
  _, got = clustering._standardise(train, 2 * train + 1)
  mean, deviation = train.mean(axis=0), train.std(axis=0)
  np.testing.assert_allclose(got, (2 * train + 1 - mean) / deviation, rtol=1e-4)


class FewLabelsTest(parameterized.TestCase):
  def test_names_spread_over_clusters(self):
    scores = np.array(
      [[0.9, 0.1, 0], [0.8, 0.1, 0.1], [0.7, 0.3, 0], [0.1, 0.6, 0.3]]
    )
    labels = np.array([4, 4, 5, 6])
    # The first cluster has most of 4; nobody is in the third, and the last
    # example, of class 6, is nearest to it.
    got = clustering.spread_labels(scores, labels, np.eye(3))
    np.testing.assert_array_equal(got, [4, 6, 6])

  def test_labels_are_balanced_and_all_that_is_seen(self):
    labels = np.repeat(np.arange(4), [50, 60, 70, 80])
    seen = []

    def predict(rows, given):
      self.assertLen(set(rows), len(rows))
      np.testing.assert_array_equal(given, labels[rows])
      seen.append(np.bincount(given, minlength=4))
      return np.zeros(8, np.int64)

    curve = clustering.few_label_curve(
      predict, labels, np.arange(8) % 4, counts=(4, 10, 999), repeats=3
    )
    self.assertEqual(curve.counts, (4, 10))  # 999 are more than there are
    np.testing.assert_array_equal(seen[:3], np.ones((3, 4)))
    for counts in seen[3:]:
      self.assertEqual(sorted(counts), [2, 2, 3, 3])
    np.testing.assert_allclose(curve.mean, 0.25)
    np.testing.assert_allclose(curve.sd, 0)

  def test_mean_and_deviation_are_over_draws(self):
    labels = np.arange(40) % 2
    given = iter([0, 1, 2, 3])
    curve = clustering.few_label_curve(
      lambda rows, shown: np.full(4, next(given)),
      labels, np.array([0, 1, 1, 5]), counts=(2,), repeats=4,
    )  # fmt: skip
    shares = [0.25, 0.5, 0, 0]
    np.testing.assert_allclose(curve.mean, np.mean(shares))
    np.testing.assert_allclose(curve.sd, np.std(shares, ddof=1))

  def test_one_label_a_cluster_is_enough_for_planted_ones(self):
    (train, labels), (test, test_labels) = _planted(0), _planted(1)
    curves = clustering.few_label_accuracy(
      train, labels, test, test_labels, counts=(4, 20)
    )
    for curve in curves.values():
      np.testing.assert_allclose(curve.mean[-1], 1, atol=0.01)
    np.testing.assert_allclose(curves["clusters"].mean, 1)
    again = clustering.few_label_accuracy(
      train, labels, test, test_labels, counts=(4, 20)
    )
    np.testing.assert_array_equal(curves["linear"].mean, again["linear"].mean)

  def test_noisy_features_take_more_labels(self):
    train = _planted(0, 1000, 2.0)
    test = _planted(1, 1000, 2.0)
    curve = clustering.few_label_accuracy(*train, *test, counts=(4, 400))
    self.assertGreater(curve["linear"].mean[1], curve["linear"].mean[0] + 0.1)

  @parameterized.parameters(
    ([200] * 10, (10, 25, 100, 1000)),
    ([200] * 26, (100, 1000)),
    ([200] * 9 + [12], (10, 25, 100)),
    ([30, 1], (2,)),
  )
  def test_the_usual_numbers_of_labels_fit_the_classes(self, sizes, want):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    curve = clustering.few_label_curve(
      lambda rows, given: labels, labels, labels, repeats=2
    )
    self.assertEqual(curve.counts, want)

  @parameterized.parameters(
    (dict(counts=(3,)), "3 labels cannot show 4 classes"),
    (dict(counts=(200,)), "too few for 200"),
    (dict(repeats=1), "repeats=1"),
  )
  def test_bad_options_are_refused(self, options, message):
    labels = np.array([0] * 170 + [1, 2, 3] * 10)
    with self.assertRaisesRegex(ValueError, message):
      clustering.few_label_curve(
        lambda rows, given: given, labels, labels, **options
      )

  def test_predictions_are_one_class_for_each_image(self):
    labels = np.array([0, 1] * 4)
    for predicted, tested in ((labels[:1], labels), (labels, labels[:, None])):
      with self.assertRaisesRegex(ValueError, "give one class for each image"):
        inspect.unwrap(clustering.few_label_curve)(
          lambda rows, given, x=predicted: x, labels, tested, counts=(2,)
        )


@pytest.mark.parametrize(
  ("measure", "sets"),
  [
    (clustering.match_accuracy, 2),
    (clustering.probe_accuracy, 2),
    (clustering.few_label_accuracy, 2),
    (clustering.refit_accuracy, 1),
  ],
)
@pytest.mark.parametrize("shape", [(6, 1), (5,)])
def test_labels_that_are_not_one_for_each_row_are_refused(measure, sets, shape):
  features = np.arange(6.0)[:, np.newaxis]
  right, wrong = np.resize([0, 1], 6), np.resize([0, 1], shape)
  measure = inspect.unwrap(measure)  # annotations are checked in tests
  for place in range(sets):
    pairs = [(features, wrong if n == place else right) for n in range(sets)]
    with pytest.raises(ValueError, match=r"one for each row of .*\[6, 1\]"):
      measure(*itertools.chain(*pairs))


if __name__ == "__main__":
  absltest.main()
