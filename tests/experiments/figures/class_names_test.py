"""Figures show the names of classes, not their numbers."""

import itertools

import matplotlib.text
import numpy as np
import pytest
from matplotlib.backends import backend_agg

from experiments.figures import curves, energy_models, grids, multimnist, scae

# Two dollar signs would be read as mathematics, which these are not.
NAMES = np.array(["one", "$_$", "seven"])
_RNG = np.random.default_rng(0)


def overlaps(path):
  images = _RNG.uniform(0, 1, (2, 4, 8, 8, 1))
  pairs = NAMES[np.array([[0, 1], [1, 0]])]
  multimnist.overlaps(
    images[:, 0],
    images[:, 1:3],
    images[:, 3],
    pairs,
    pairs,
    NAMES[[2, 2]],
    path,
  )


def activations(path):
  curves.activation_histograms(
    _RNG.uniform(0, 1, (9, 3)), np.arange(9) % 3, NAMES, path
  )


def spectra(path):
  energy_models.spectra(_RNG.uniform(0, 1, (3, 2, 4)), NAMES, path)


def compared_spectra(path):
  """One of the models has fewer classes."""
  classes = _RNG.uniform(0, 1, (3, 2, 4))
  models = {"own": classes, "other": classes[:2]}
  energy_models.compared_spectra(models, NAMES, path)


def presences(path):
  prior, posterior = _RNG.uniform(0, 1, (2, 3, 5))
  scae.presences({"prior": prior, "posterior": posterior}, NAMES, path)


def embedding(path):
  points = _RNG.uniform(0, 1, (9, 2))
  scae.embedding(points, np.arange(9) % 3, NAMES, path)


@pytest.fixture
def drawn(monkeypatch):
  """The figures that were saved."""
  sheets = []

  def save(sheet, path):
    backend_agg.FigureCanvasAgg(sheet).draw()
    sheets.append(sheet)
    return path

  for module in (grids, curves):
    monkeypatch.setattr(module, "save", save)
  return sheets


def _texts(sheet):
  found = sheet.findobj(matplotlib.text.Text)
  return [text.get_text() for text in found if text.get_visible()]


@pytest.mark.parametrize(
  "plot",
  [
    overlaps, activations, spectra, compared_spectra, presences, embedding,
  ],
)  # fmt: skip
def test_all_classes_are_named(plot, drawn, tmp_path):
  plot(tmp_path / "figure.png")
  words = " ".join(_texts(drawn[0])).split()
  assert set(NAMES) <= {*words}


def test_ticks_of_classes_are_their_names(drawn, tmp_path):
  presences(tmp_path / "figure.png")
  for place in drawn[0].axes[:2]:
    labels = [text.get_text() for text in place.get_yticklabels()]
    assert labels == list(NAMES)
    assert all(float(x).is_integer() for x in place.get_xticks())


def test_headings_are_above_the_middle_of_their_columns(drawn, tmp_path):
  images = _RNG.uniform(0, 1, (2, 8, 6, 1))
  parts = _RNG.uniform(0, 1, (2, 3, 8, 6, 1))
  energy_models.decompositions(
    images, images, parts, np.ones((2, 3)), tmp_path / "figure.png"
  )
  (place,) = drawn[0].axes
  labels = [text.get_text() for text in place.get_xticklabels()]
  assert labels == ["image", "model", "1", "2", "3"]
  # Five columns of 6 pixels, with one white pixel between them.
  assert list(place.get_xticks()) == [2.5, 9.5, 16.5, 23.5, 30.5]


def test_a_sheet_says_what_it_shows(drawn, tmp_path):
  images = _RNG.uniform(0, 1, (1, 2, 8, 8, 1))
  for title in ("", "BIM, untargeted"):
    curves.contact_sheet(
      images, ["a"], ["b", "c"], tmp_path / "sheet.png", title=title
    )
  assert "BIM, untargeted" not in _texts(drawn[0])
  assert "BIM, untargeted" in _texts(drawn[1])


@pytest.mark.parametrize(
  ("names", "caption"),
  [
    (["3", "5", "8"], "3 + 5 → 5 + 8"),
    (["12", "15", "18"], "12 + 15\n→ 15 + 18"),
    (["T-shirt", "bag", "sneaker"], "T-shi… + bag\n→ bag + sneak…"),
  ],
)
def test_long_captions_take_two_lines(names, caption, drawn, tmp_path):
  """So that they do not reach those of the next images."""
  names, images = np.array(names), _RNG.uniform(0, 1, (1, 4, 8, 8, 1))
  multimnist.overlaps(
    images[:, 0],
    images[:, 1:3],
    images[:, 3],
    names[[[0, 1]]],
    names[[[1, 2]]],
    names[[0]],
    tmp_path / "figure.png",
  )
  assert caption in _texts(drawn[0])


def test_captions_do_not_overlap(drawn, tmp_path):
  names = np.array(["T-shirts", "sneakers", "ankle-boots"])
  images = _RNG.uniform(0, 1, (8, 4, 8, 8, 1))
  multimnist.overlaps(
    images[:, 0],
    images[:, 1:3],
    images[:, 3],
    names[[[0, 1]] * 8],
    names[[[2, 1]] * 8],
    names[[0] * 8],
    tmp_path / "figure.png",
  )
  ends = sorted(
    (box.x0, box.x1)
    for box in (place.title.get_window_extent() for place in drawn[0].axes)
  )
  assert len(ends) == 8
  assert all(x[1] < y[0] for x, y in itertools.pairwise(ends))
