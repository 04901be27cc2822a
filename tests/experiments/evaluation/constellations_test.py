"""Settings with which known patterns are found, and what pictures show."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from capjax.data.sources import constellations as sampling
from experiments.evaluation import constellations, models


@pytest.mark.parametrize("best", constellations._PRECISIONS)
def test_the_precision_with_the_highest_bound_is_used(run, monkeypatch, best):
  """With another, one of four points has a wrong object."""
  owners = jnp.array([0, 0, 0, 1])
  sampled = sampling.Constellation(
    jnp.arange(16.0).reshape(2, 4, 2), jnp.ones((2, 4)), jnp.stack([owners] * 2)
  )

  def infer(key, points, presence, template, *, last_precision, **options):
    right = last_precision == best
    objects = jnp.where(right, owners, 0)
    elbo = -jnp.abs(jnp.log(last_precision / best))
    return SimpleNamespace(objects=jnp.eye(3)[objects], elbo=elbo)

  monkeypatch.setattr(constellations.generative, "infer", infer)
  monkeypatch.setattr(constellations, "_constellations", lambda *_: sampled)
  monkeypatch.setattr(constellations, "_picture", lambda *_: None)
  scores = constellations.gcm(run, None, models.Options())
  for prefix in ("gcm", "gcm_mixture"):
    assert scores[f"{prefix}_precision"] == best
    assert scores[f"{prefix}_elbo"] == pytest.approx(0)
    assert scores[f"{prefix}_accuracy"] == 1
  assert scores["num_images"] == 2
  assert np.isfinite(scores["gcm_rand_index"])


def test_one_image_that_fails_does_not_choose_the_precision(run, monkeypatch):
  """Of three images; the mean bound would prefer another precision."""
  first, *others = constellations._PRECISIONS
  sampled = sampling.Constellation(
    jnp.arange(3.0)[:, None, None] + jnp.ones((3, 2, 2)),
    jnp.ones((3, 2)),
    jnp.zeros((3, 2), int),
  )

  def infer(key, points, presence, template, *, last_precision, **options):
    failed = (last_precision == first) & (points[0, 0] == 3)
    bound = jnp.where(last_precision == first, 2.0, 0.0)
    elbo = jnp.where(failed, -1e6, bound + points[0, 0])
    return SimpleNamespace(objects=jnp.eye(3)[jnp.array([0, 0])], elbo=elbo)

  monkeypatch.setattr(constellations.generative, "infer", infer)
  monkeypatch.setattr(constellations, "_constellations", lambda *_: sampled)
  monkeypatch.setattr(constellations, "_picture", lambda *_: None)
  scores = constellations.gcm(run, None, models.Options())
  assert others and first not in others
  for prefix in ("gcm", "gcm_mixture"):
    assert scores[f"{prefix}_precision"] == first
    assert scores[f"{prefix}_elbo"] == 3  # of -1e6, 3 and 4


# Templates that are found within each tolerance; they have 4, 3 and 4 points.
_FOUND = {
  0.1: [0.0, 0.0, 0.0],
  0.2: [0.0, 9.0, 0.0],
  0.4: [0.1, 0.0, 0.0],
  0.8: [0.0, 0.0, 0.2],
}


@pytest.mark.parametrize(
  ("changed", "best"),
  [
    ({}, 0.4),
    ({0.8: [0.0, 0.1, 0.1]}, 0.8),
    ({0.2: [0.1, 0.1, 0.0], 0.8: [0.1, 0.0, 0.1]}, 0.8),
    ({0.1: [0.0, 0.0, 0.1]}, 0.1),
  ],
)
def test_the_least_tolerance_that_explains_most_points_is_used(
  run, monkeypatch, changed, best
):
  found = {**_FOUND, **changed}
  sampled = sampling.Constellation(
    jnp.zeros((2, 11, 2)), jnp.ones((2, 11)), jnp.zeros((2, 11), int)
  )
  given = []

  def match(points, presence, template, *, tolerance):
    objects = jnp.full(len(points), round(10 * tolerance))
    return SimpleNamespace(objects=objects, scores=jnp.array(found[tolerance]))

  monkeypatch.setattr(constellations.consensus, "match", match)
  monkeypatch.setattr(constellations, "_constellations", lambda *_: sampled)
  monkeypatch.setattr(constellations, "_picture", lambda *x: given.append(x))
  scores = constellations.ransac(run, None, models.Options())
  assert scores["num_images"] == 2
  ((_, name, _, pictures),) = given
  assert name == "ransac"
  np.testing.assert_array_equal(
    pictures["RANSAC"], np.full((2, 11), round(10 * best))
  )


def test_images_with_most_points_are_shown_in_the_colours_of_the_truth(
  run, monkeypatch
):
  """Ten of twelve, which have 2, 4 or 5 points; among equals the first."""
  drawn = []
  monkeypatch.setattr(
    constellations.point_figures, "segments", lambda *x: drawn.append(x)
  )
  counts = np.array([2, 4, 5, 2, 4, 5, 2, 4, 5, 5, 5, 5])
  presence = np.float32(np.arange(5) < counts[:, None])
  points = np.float32(np.arange(120).reshape(12, 5, 2))
  truth = np.array([0, 0, 1, 1, 1]) + np.arange(0, 24, 2)[:, None]
  found = np.tile([5, 5, 7, 7, 9], (12, 1))
  sampled = sampling.Constellation(points, presence, truth)
  constellations._picture(run, "some", sampled, {"other": found})
  ((shown, there, rows, path),) = drawn
  order = [2, 5, 8, 9, 10, 11, 1, 4, 7, 0]
  np.testing.assert_array_equal(shown, points[order])
  np.testing.assert_array_equal(there, presence[order])
  assert list(rows) == ["truth", "other"]
  np.testing.assert_array_equal(rows["truth"], truth[order])
  # The third object has no match, and absent points have no object.
  want = np.where(presence > 0, truth, -1)
  want[:, -1] = -1
  np.testing.assert_array_equal(rows["other"], want[order])
  assert path == run.figure("some")
