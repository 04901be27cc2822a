"""Which presences the suites of stacked capsule autoencoders plot and score."""

from types import SimpleNamespace

import numpy as np
import pytest

from capjax import data
from experiments.evaluation import models, scae

_PRIOR = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
_POSTERIOR = np.array([[0.0, 0.25, 0.75], [1.0, 0.0, 0.0]])
_WON = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])


def test_prior_presences_are_counted_and_posterior_ones_embedded(
  run, monkeypatch
):
  features = {"prior": _PRIOR, "posterior": _POSTERIOR, "won": _WON}
  monkeypatch.setattr(scae, "_features", lambda *_: features)
  plotted = {}
  figures = scae.object_figures
  monkeypatch.setattr(
    figures, "presences", lambda found, *_: plotted.update(found)
  )
  monkeypatch.setattr(
    figures, "embedding", lambda points, *_: plotted.update(points=points)
  )
  monkeypatch.setattr(scae.embedding, "embed", lambda x: 2 * x)
  images = np.zeros((2, 1, 1, 1), np.uint8)
  test = data.Dataset(images, np.array([1, 0], np.int32), 2, {})
  trained = SimpleNamespace(task=SimpleNamespace(sample_test=None), test=test)
  scores = scae.objects(run, trained, models.Options())
  assert scores["idle_objects"] == pytest.approx(2 / 3)
  assert scores["present_objects"] == 1
  # Rows are classes; the first image is of the second.
  np.testing.assert_array_equal(plotted["prior"], _PRIOR[::-1])
  np.testing.assert_array_equal(plotted["posterior"], _POSTERIOR[::-1])
  np.testing.assert_array_equal(plotted["points"], 2 * _POSTERIOR)
