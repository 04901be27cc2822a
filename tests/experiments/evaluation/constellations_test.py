"""The precision with which known patterns are inferred."""

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
