"""Figures of the iterations of routing."""

import matplotlib.image
import numpy as np

from experiments.figures import iterations


def _changed(path, plot, *variants):
  """The pictures of some arguments, which must all differ."""
  pictures = []
  for n, arguments in enumerate(variants):
    plot(*arguments, path / f"{n}.png")
    pictures.append(matplotlib.image.imread(path / f"{n}.png"))
  assert all(x.shape == pictures[0].shape for x in pictures)
  for n, one in enumerate(pictures):
    for other in pictures[:n]:
      assert np.any(one != other)


def test_distances_show_their_weights(tmp_path):
  random = np.random.default_rng(0)
  distances = random.uniform(0, 2, (2, 50))
  even = np.ones((2, 50))
  near = (distances < 1).astype(float)
  _changed(
    tmp_path,
    iterations.vote_distances,
    (distances, {"class": even, "other classes": near}),
    (distances, {"class": near, "other classes": even}),
  )


def test_the_highest_bar_of_any_iteration_fits(tmp_path, monkeypatch):
  sheets = []
  monkeypatch.setattr(
    iterations, "save", lambda sheet, path: sheets.append(sheet)
  )
  distances = np.stack([np.linspace(0, 2, 50), np.full(50, 1.0)])
  iterations.vote_distances(
    distances, {"all": np.ones((2, 50))}, tmp_path / "a.png"
  )
  assert [x.get_ylim() for x in sheets[0].axes] == [(0, 105)] * 2


def test_changes_of_logits_are_plotted(tmp_path):
  _changed(
    tmp_path,
    iterations.logit_changes,
    ([1.0, 0.1, 0.01],),
    ([1.0, 0.5, 0.01],),
    ([1.0, 0.1, 0.0],),
  )
