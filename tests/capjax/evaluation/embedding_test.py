"""Clusters stay together in the plane, and features that hardly vary."""

import numpy as np
import pytest
from sklearn import manifold

from capjax.evaluation import embedding


@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e30])
def test_clusters_stay_together(scale):
  random = np.random.default_rng(0)
  labels = np.arange(40) % 2
  features = 5 * np.eye(6)[labels] + random.normal(size=(40, 6)) / 10
  points = embedding.embed((scale * features).astype(np.float32))
  first, second = points[labels == 0], points[labels == 1]
  between = np.linalg.norm(first.mean(axis=0) - second.mean(axis=0))
  assert between > 3 * max(first.std(axis=0).max(), second.std(axis=0).max())


def test_one_feature_is_embedded_too():
  points = embedding.embed(np.arange(12.0)[:, None])
  assert points.shape == (12, 2) and np.isfinite(points).all()


@pytest.mark.parametrize(("count", "neighbours"), [(40, 13), (200, 30)])
def test_few_features_have_fewer_neighbours(monkeypatch, count, neighbours):
  asked = {}

  class Plane(manifold.TSNE):
    def __init__(self, **options):
      asked.update(options)
      super().__init__(**options, max_iter=250)

  monkeypatch.setattr(manifold, "TSNE", Plane)
  features = np.random.default_rng(0).normal(size=(count, 4))
  embedding.embed(features, seed=3)
  assert asked == {"perplexity": neighbours, "random_state": 3}


@pytest.mark.parametrize("features", [np.full((40, 6), 0.3), np.zeros((2, 3))])
def test_features_that_are_the_same_are_one_point(features):
  points = embedding.embed(features.astype(np.float32))
  assert points.dtype == np.float32
  assert not np.ptp(points, axis=0).any()


@pytest.mark.parametrize(
  "features", [np.zeros((1, 3)), np.full((3, 2), np.nan)]
)
def test_what_cannot_be_embedded_is_refused(features):
  with pytest.raises(ValueError, match="at least 2, all finite"):
    embedding.embed(features)
