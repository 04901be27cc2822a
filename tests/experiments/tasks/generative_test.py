"""Generative capsules: their loss, measures, and the features of probes."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from generative_cases import small

from capjax.generative import amortised, guides
from capjax.specs import Spec
from experiments.evaluation import linear_probes
from experiments.tasks import generative

SPEC = Spec(amortised.amortised_capsules, {})


@functools.cache
def model_and_images(gaussian=False):
  capsules, guide, images = small(gaussian=gaussian)
  return guides.AmortisedCapsules(capsules, guide), images


def of_probabilities(model, images):
  """Features of relaxed presences in the place of log odds."""
  _, drawn = model.guide(images)
  return linear_probes.features(
    jax.nn.sigmoid(drawn[-1].logits), drawn[-1].poses
  )


def check_features(features):
  """Log odds of q(t | x), whatever the temperature (appendix D)."""
  model, images = model_and_images()
  posteriors, _ = model.guide(images)
  got = features(model, images)
  np.testing.assert_allclose(got["presence"], posteriors[-1].log_odds)
  np.testing.assert_allclose(
    got["presence_and_pose"][:, got["presence"].shape[1] :],
    posteriors[-1].poses.reshape(len(images), -1),
  )


@pytest.mark.long
def test_probes_read_log_odds():
  check_features(generative.features)


@pytest.mark.long
def test_relaxed_presences_are_no_log_odds():
  with pytest.raises(AssertionError):
    check_features(of_probabilities)


@pytest.mark.parametrize(
  "gaussian", [pytest.param(False, marks=pytest.mark.long), True]
)
@pytest.mark.long
def test_only_a_bound_is_called_elbo(gaussian):
  model, images = model_and_images(gaussian)
  names = generative.measure(model, images, jnp.zeros(2, int)).keys()
  assert ("elbo" in names) == gaussian
  task = generative.make_task(SPEC, optax.adam(1e-3))
  assert task.chosen_by in names


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("falling", [False, True])
def test_the_loss_is_minus_the_bound_and_the_log_prior(
  monkeypatch, count, falling
):
  """Of a model whose bounds depend on all that it is given."""
  images = jnp.array([3.0, 8.0]).reshape(2, 1, 1, 1)
  model = SimpleNamespace(
    capsules=SimpleNamespace(log_scale_prior=lambda: 0.5), guide=None
  )

  def bound(images, key, num_samples=1, temperature=None):
    scale = 7.0 if temperature is None else temperature
    return num_samples * scale * images[:, 0, 0, 0] + jax.random.uniform(key)

  model.elbo = lambda key, images, **options: bound(images, key, **options)
  monkeypatch.setattr(
    generative.inference,
    "importance_bound",
    lambda capsules, guide, *given, **options: (bound(*given, **options), None),
  )
  task = generative.make_task(
    SPEC, optax.sgd(0.1), num_importance=count,
    temperature=optax.exponential_decay(4.0, 10, 0.5) if falling else None,
  )  # fmt: skip
  key = jax.random.key(4)
  value, metrics = task.loss(model, images, None, key, 10)
  scale = 2.0 if falling else 7.0
  want = -(count * scale * 5.5 + float(jax.random.uniform(key))) - 0.5
  assert float(value) == pytest.approx(want, rel=1e-6)
  assert float(metrics["loss"]) == float(value)
