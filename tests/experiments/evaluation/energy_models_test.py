"""Scores of dreams, of which some have diverged."""

import types

import numpy as np
import pytest

from capjax import data
from experiments.evaluation import energy_models, models
from experiments.figures import energy_models as figures
from experiments.run import directory

_DIM, _BRIGHT = 0.25, 0.75


def _scores(monkeypatch, folder, **dreams):
  """Of a machine with these dreams: [N H W C] of each kind."""
  for name, images in dreams.items():
    monkeypatch.setattr(energy_models, name, lambda *_, images=images: images)
  test = data.Dataset(np.full((2, 3, 3, 1), 51, np.uint8), np.zeros(2), 1, {})
  model = types.SimpleNamespace(image_shape=(3, 3, 1))
  trained = models.Trained(None, None, model, 0, {}, test, {})
  scores = energy_models.dreams(
    directory.Run(str(folder)), trained, models.Options()
  )
  figures = {path.stem for path in (folder / "figures").iterdir()}
  assert figures == {"dreams_ancestral", "dreams_gibbs"}
  return scores


@pytest.mark.parametrize("diverged", [-5.65e20, 2.5, -1.5, np.inf, np.nan])
def test_means_are_of_the_sane_dreams(monkeypatch, tmp_path, diverged):
  gibbs = np.full((20, 3, 3, 1), _BRIGHT, np.float32)
  gibbs[:5, 1, 2] = diverged  # by one pixel
  ancestral = np.full_like(gibbs, _DIM)
  ancestral[0, 0, 0], ancestral[1, 0, 0] = -1, 2  # just within the range
  scores = _scores(monkeypatch, tmp_path, _ancestral=ancestral, _loops=gibbs)
  assert scores == pytest.approx(
    {
      "images_mean": 0.2,
      "ancestral_sane": 1.0,
      "ancestral_mean": _DIM + (1 - 2 * _DIM) / 180,
      "gibbs_sane": 0.75,
      "gibbs_mean": _BRIGHT,
    }
  )


def test_without_sane_dreams_there_is_no_mean(monkeypatch, tmp_path):
  lost = np.full((20, 3, 3, 1), 1e30, np.float32)
  scores = _scores(monkeypatch, tmp_path, _ancestral=0 * lost, _loops=lost)
  assert scores["gibbs_sane"] == 0 and "gibbs_mean" not in scores
  assert (scores["ancestral_sane"], scores["ancestral_mean"]) == (1, 0)


@pytest.mark.parametrize("empty", [0, 1])
def test_a_class_without_test_images_leaves_its_strip_white(tmp_path, empty):
  classes = [np.full((2, 3), 0.5), np.full((2, 3), 0.25)]
  classes[empty] = np.zeros((0, 3))
  for name, plot, given in (
    ("spectra", figures.spectra, classes),
    ("compared", figures.compared_spectra, {"a": classes, "b": classes}),
  ):
    path = tmp_path / f"{name}.png"
    assert plot(given, path).exists()
