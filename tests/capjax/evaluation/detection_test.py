"""Detection by scores, against counts of all pairs."""

import numpy as np
import pytest

from capjax.evaluation import detection


def _oracle(familiar, other, kept):
  wins = [(a > b) + (a == b) / 2 for a in familiar for b in other]
  # The highest threshold that leaves enough of the familiar ones.
  threshold = max(
    t for t in familiar if np.mean(np.array(familiar) >= t) >= kept
  )
  return np.mean(wins), np.mean(np.array(other) >= threshold)


@pytest.mark.parametrize("kept", [0.95, 0.5, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_matches_counts_of_pairs(seed, kept):
  random = np.random.default_rng(seed)
  # Rounded, so that there are ties.
  familiar = np.round(random.normal(1, 1, 40), 1)
  other = np.round(random.normal(0, 2, 30), 1)
  found = detection.detection(familiar, other, kept=kept)
  np.testing.assert_allclose(found, _oracle(familiar, other, kept))
  reverse = detection.detection(other, familiar)
  assert reverse.auroc == pytest.approx(1 - found.auroc)


def test_a_tiny_share_keeps_one_image():
  found = detection.detection([1.0, 2.0], [1.5, 3.0], kept=1e-12)
  assert found.false_positive_rate == 0.5


def test_the_ends():
  assert detection.detection([2, 3], [0, 1]) == (1.0, 0.0)
  assert detection.detection([0, 1], [2, 3]) == (0.0, 1.0)
  assert detection.detection([1, 1], [1, 1]) == (0.5, 1.0)


@pytest.mark.parametrize(
  ("familiar", "other", "kept", "words"),
  [
    ([], [1.0], 0.9, "0 familiar and 1 other scores; give"),
    ([1.0], [np.nan], 0.9, "not finite; give"),
    ([1.0], [0.0], 0.0, "kept is 0.0; give"),
    ([[1.0], [2.0]], [0.0], 0.9, r"familiar has shape \[2, 1\]; give \[N\]"),
    ([1.0], [[0.0]], 0.9, "other has shape"),
  ],
)
def test_bad_scores_are_refused(familiar, other, kept, words):
  with pytest.raises(ValueError, match=words):
    detection.detection(familiar, other, kept=kept)
