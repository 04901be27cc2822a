"""The measures of generative capsules, and the features of their probes."""

import functools

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
  spec = Spec(amortised.amortised_capsules, {})
  task = generative.make_task(spec, optax.adam(1e-3))
  assert task.chosen_by in names
