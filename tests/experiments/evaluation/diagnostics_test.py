"""Diagnostics of constructed models, whose parses and votes are known."""

import golden_cases
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from side_cases import Sides, dots, trained_on

from capjax import data
from capjax.evaluation import inspection
from experiments.evaluation import diagnostics


def test_parses_are_those_of_images_rotated_by_each_angle():
  """One of two parts follows the dot; it is where the label says after 90."""
  test = dots(turns=1)
  some = trained_on(Sides(), test)
  scores = diagnostics._rotated(some, test.images, test.labels)
  agreement, accuracy = (
    dict(zip(diagnostics._ANGLES, scores[f"rotated_{name}"], strict=True))
    for name in ("agreement", "accuracy")
  )
  assert [agreement[x] for x in (-90, 0, 90)] == pytest.approx([0.5, 1, 0.5])
  assert [accuracy[x] for x in (-90, 0, 90)] == [0, 0, 1]


def test_each_layer_has_the_peak_of_its_weakest_type(monkeypatch):
  """Of 0.3 and 0.6 in the first layer, of 0.9, 0.001 and 0.2 in the second."""
  layers = {
    inspection.layer_activations: [
      jnp.array([[0.3, 0.1], [0.2, 0.6]]),
      jnp.array([[0.1, 0, 0.2], [0.9, 0.001, 0.1]]),
    ]
  }
  monkeypatch.setattr(
    diagnostics.models,
    "measure_layers",
    lambda trained, images, activations: layers[activations],
  )
  scores = diagnostics._layers(None, None)
  np.testing.assert_allclose(scores["layer_least_peak"], [0.3, 0.001], 1e-6)
  np.testing.assert_allclose(scores["layer_dead"], [0, 1 / 3], 1e-6)


def test_votes_are_for_the_class_or_for_others(run, monkeypatch):
  """Of 3 images, two at a time, whose coefficients grow with brightness."""
  random = np.random.default_rng(0)
  votes = random.normal(size=(2, 3, 1))  # I J D
  coefficients = random.uniform(size=(2, 1, 2, 3))  # R B I J
  activations = np.array([0.5, 0.8])

  def iterations(model, images, at_least):
    bright = jnp.mean(images, axis=(1, 2))[..., None]
    return inspection.Iterations(
      jnp.tile(votes, (len(images), 1, 1, 1)),
      jnp.tile(activations, (len(images), 1)),
      coefficients * bright,
      None,
      None,
    )

  drawn = []
  monkeypatch.setattr(diagnostics.inspection, "iterations", iterations)
  monkeypatch.setattr(diagnostics, "_FOLLOWED_AT_ONCE", 2)
  monkeypatch.setattr(
    diagnostics.figures, "vote_distances", lambda *x: drawn.extend(x)
  )
  images = np.array([255, 51, 102], np.uint8).reshape(3, 1, 1, 1)
  labels = np.array([2, 0, 0])
  test = data.Dataset(images, labels, 3, {})
  some = golden_cases.classifier(test, nnx.Module())
  scores = diagnostics._iterations(run, some)

  weights = coefficients * activations[:, None]
  weights = weights * np.array([1, 0.2, 0.4])[:, None, None]
  means = np.sum(weights * votes[..., 0], axis=2) / np.sum(weights, axis=2)
  distances = np.abs(votes[..., 0] - means[:, :, None])
  of_class = weights * np.eye(3)[labels][:, None]
  kept = {"class": of_class, "other classes": weights - of_class}
  np.testing.assert_allclose(drawn[0], distances, rtol=1e-4)
  assert drawn[1].keys() == kept.keys()
  for name, label in (("class", "true"), ("other classes", "other")):
    np.testing.assert_allclose(drawn[1][name], kept[name], rtol=1e-4)
    np.testing.assert_allclose(
      scores[f"vote_distance_{label}"],
      np.sum(distances * kept[name], axis=(1, 2, 3))
      / np.sum(kept[name], axis=(1, 2, 3)),
      rtol=1e-4,
    )
  assert scores["num_followed"] == 3 and scores["iteration"] == [1, 2]
