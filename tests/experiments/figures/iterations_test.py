"""Figures of the iterations of routing."""

import numpy as np

from experiments.figures import iterations


def test_distances_are_counted_by_their_weights(sheets):
  """Three of 40 bars are not 0, in percent of the weights of an iteration."""
  distances = np.array([[0.0, 1.05, 4.0, 4.0], [0.0, 0.0, 1.05, 4.0]])
  weights = {
    "class": np.array([[1.0, 0.0, 2.0, 1.0], [0.5, 0.5, 0.0, 0.0]]),
    "other classes": np.array([[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 3.0]]),
  }
  iterations.vote_distances(distances, weights, "x.png")
  want = {
    "class": [(25, 0, 75), (100, 0, 0)],
    "other classes": [(0, 100, 0), (0, 25, 75)],
  }
  for r, place in enumerate(sheets[0].axes):
    assert place.get_title() == f"iteration {r + 1}"
    for bars, (name, shares) in zip(place.patches, want.items(), strict=True):
      values, edges, _ = bars.get_data()
      np.testing.assert_allclose(edges, np.linspace(0, 4, 41))
      np.testing.assert_allclose(values[[0, 10, -1]], shares[r])
      assert bars.get_label() == name


def test_the_highest_bar_of_any_iteration_fits(sheets):
  distances = np.stack([np.linspace(0, 2, 50), np.full(50, 1.0)])
  iterations.vote_distances(distances, {"all": np.ones((2, 50))}, "x.png")
  assert [x.get_ylim() for x in sheets[0].axes] == [(0, 105)] * 2


def test_changes_of_logits_are_plotted(sheets):
  iterations.logit_changes([1.0, 0.1, 0.0], "x.png")
  (place,) = sheets[0].axes
  x, y = place.lines[0].get_data()
  assert list(x) == [1, 2, 3]
  assert list(y[:2]) == [1, 0.1] and 0 < y[2] < 1e-9
  assert place.get_yscale() == "log"
