"""Calibration: against loops, and on scores whose calibration is known."""

import numpy as np
import pytest

from capjax.evaluation import calibration


def _scores(count=400, classes=3, seed=0):
  random = np.random.default_rng(seed)
  scores = random.dirichlet(np.ones(classes), size=count)
  # Labels of the probabilities that the scores say: calibrated.
  labels = [random.choice(classes, p=row) for row in scores]
  return scores, np.array(labels)


def _loop(scores, labels, num_bins):
  """Guo et al. (2017), section 2, image by image."""
  bins = [[] for _ in range(num_bins)]
  for row, label in zip(scores, labels, strict=True):
    confidence = max(row)
    right = float(list(row).index(confidence) == label)
    for m in range(num_bins):
      if m / num_bins <= confidence < (m + 1) / num_bins or (
        confidence == 1 and m == num_bins - 1
      ):
        bins[m].append((confidence, right))
  errors = [
    (len(held), abs(sum(c for c, _ in held) - sum(r for _, r in held)))
    for held in bins
    if held
  ]
  expected = sum(error for _, error in errors) / len(labels)
  return expected, max(error / count for count, error in errors)


@pytest.mark.parametrize("num_bins", [1, 4, 15])
def test_matches_loop(num_bins):
  scores, labels = _scores()
  scores[:5] = np.eye(3)[[0, 1, 2, 0, 1]]
  got = calibration.reliability(scores, labels, num_bins=num_bins)
  expected, largest = _loop(scores, labels, num_bins)
  assert got.expected_error == pytest.approx(expected)
  assert got.largest_error == pytest.approx(largest)
  assert np.sum(got.counts) == len(labels)


def test_calibrated_scores_have_a_small_error_and_sharper_ones_a_large_one():
  scores, labels = _scores(20_000)
  calibrated = calibration.reliability(scores, labels)
  assert calibrated.expected_error < 0.02
  sharper = scores**4 / np.sum(scores**4, axis=1, keepdims=True)
  certain = calibration.reliability(sharper, labels)
  assert certain.expected_error > 0.1
  assert calibration.brier_score(scores, labels) < calibration.brier_score(
    sharper, labels
  )


def test_known_values():
  scores = [[0.9, 0.1], [0.8, 0.0], [0.3, 0.6]]
  got = calibration.reliability(scores, [0, 1, 1], num_bins=2)
  # One bin holds all three: confidence 2.3 / 3, accuracy 2 / 3.
  np.testing.assert_allclose(got.confidences, [2.3 / 3])
  np.testing.assert_allclose(got.accuracies, [2 / 3])
  assert got.expected_error == pytest.approx(0.1)
  want = (0.01 + 0.01 + 0.64 + 1 + 0.09 + 0.16) / 3
  assert calibration.brier_score(scores, [0, 1, 1]) == pytest.approx(want)


@pytest.mark.parametrize(
  ("scores", "labels", "words"),
  [
    ([[0.5, 1.5]], [0], "scores hold values from 0.5 to 1.5; give scores in"),
    ([[0.5, np.nan]], [0], "scores hold values"),
    ([[0.5, 0.5]], [0, 1], "labels have shape .2.; give one for each of the 1"),
    ([[0.5, 0.5]], [-1], "labels hold -1; give 0..1"),
    ([[0.5, 0.5]], [2], "labels hold 2; give 0..1"),
    ([0.5, 0.5], [0, 1], "scores have shape .2.; give one row"),
    (np.zeros((0, 3)), [], "scores have shape .0, 3.; give one row"),
  ],
)
def test_bad_arguments_are_refused(scores, labels, words):
  for function in (calibration.reliability, calibration.brier_score):
    with pytest.raises(ValueError, match=words):
      function(scores, np.array(labels, int))


@pytest.mark.parametrize("labels", [[False, True], [0.0, 1.0]])
def test_labels_are_whole_numbers(labels):
  for function in (calibration.reliability, calibration.brier_score):
    with pytest.raises(ValueError, match="labels are .*; give whole numbers"):
      function([[0.9, 0.1], [0.2, 0.8]], labels)


def test_no_bins_are_refused():
  with pytest.raises(ValueError, match="num_bins is 0; give at least 1"):
    calibration.reliability([[1.0]], [0], num_bins=0)
