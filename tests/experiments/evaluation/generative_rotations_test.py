"""Scores of rotated images before and after inference for each of them."""

from types import SimpleNamespace

import golden_cases
import jax.numpy as jnp
import numpy as np

from capjax import data
from experiments.evaluation import generative_rotations, models


def test_errors_are_of_the_rotated_images(run, monkeypatch):
  """Half of the pixels are off by 0.4 before, a quarter by -0.2 after."""
  drawn = []

  def infer_rotated(model, images, degrees):
    turned = images + degrees
    half, quarter = np.zeros((2, 2, 2, 2, 1), np.float32)
    half[:, 0], quarter[:, 1, 1] = 0.4, -0.2
    return generative_rotations.Repaired(
      turned,
      "start",
      (jnp.float32(-degrees), jnp.float32(degrees)),
      (turned + half, turned + quarter),
    )

  def climb(model, start, images, *, name):
    assert start == "start"
    bounds = np.array([[1.0, 2.0, 4.0], [3.0, 4.0, 8.0]])
    return SimpleNamespace(bounds=bounds, posteriors=name)

  def judge(model, posteriors, images):
    np.testing.assert_allclose(images, 60.2)
    return {"adam": jnp.float32(5), "lbfgs": jnp.float32(6)}[posteriors], None

  for name, fake in (
    ("infer_rotated", infer_rotated),
    ("_climb", climb),
    ("_judge", judge),
    ("_timed", lambda function, *x, **options: (function(*x, **options), 0.5)),
    ("plot_repair", lambda columns, path: drawn.extend(columns)),
  ):
    monkeypatch.setattr(generative_rotations, name, fake)
  monkeypatch.setattr(
    generative_rotations.part_figures, "climbs", lambda *x: drawn.append(x)
  )
  images = np.full((3, 2, 2, 1), 51, np.uint8)
  test = data.Dataset(images, np.zeros(3, np.int32), 1, {})
  trained = golden_cases.classifier(test, None)._replace(
    task=SimpleNamespace(prepare=lambda image: image)
  )
  scores = generative_rotations.repair(run, trained, models.Options(images=2))
  angles = [0, 30, 60, 90, 120, 150, 180]
  np.testing.assert_allclose(scores.pop("error_before"), 0.08, rtol=1e-3)
  np.testing.assert_allclose(scores.pop("error_after"), 0.01, rtol=1e-3)
  assert scores == {
    "angles": angles,
    "objective_before": [-x for x in angles],
    "objective_after": angles,
    "adam_objectives": [2, 3, 6],
    "lbfgs_objectives": [2, 3, 6],
    "adam_seconds": 0.5,
    "lbfgs_seconds": 0.5,
    "adam_objective_after": 5,
    "lbfgs_objective_after": 6,
    "num_images": 2,
  }
  *columns, climbs = drawn
  for angle, column in zip(angles, columns, strict=True):
    np.testing.assert_allclose(
      column.images, np.full((2, 2, 2, 1), angle + 0.2)
    )
  objectives, seconds, path = climbs
  assert objectives == dict.fromkeys(("adam", "lbfgs"), [2, 3, 6])
  assert seconds == dict.fromkeys(("adam", "lbfgs"), 0.5)
  assert path == run.figure("climbs")
