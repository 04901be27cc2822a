"""Measures of class capsules, and of the images that they reconstruct."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import capjax
from experiments.tasks import capsnet

# Lengths of three class capsules in two images of classes 0 and 2.
LENGTHS = np.array([[0.75, 0.3, 0.05], [0.2, 0.95, 0.6]])
LABELS = np.array([0, 2])
# Of two parts: one is undecided, one is not.
SHARES = np.array([[1 / 3, 1 / 3, 1 / 3], [0.0, 1.0, 0.0]])


class Known(capjax.CapsNet):
  """Draws every pixel as the sum of the numbers of the decoded classes."""

  def __init__(self):
    self.decoder = nnx.Module()

  def __call__(self, images):
    return SimpleNamespace(
      activations=jnp.array(LENGTHS),
      poses=jnp.zeros((2, 3, 4)),
      coefficients=jnp.stack([jnp.array(SHARES)] * 2),
    )

  def decode(self, poses, classes):
    marks = jax.nn.one_hot(classes, 3) if classes.ndim == 1 else classes
    value = marks @ jnp.arange(3.0)
    return jnp.broadcast_to(value[:, None, None, None], (2, 4, 5, 1))


def margins(present):
  """By equation 4, with each class present or absent."""
  missing = np.maximum(0, 0.9 - LENGTHS) ** 2
  excess = np.maximum(0, LENGTHS - 0.1) ** 2
  return np.sum(np.where(present, missing, 0.5 * excess), axis=1)


IMAGES = jnp.full((2, 4, 5, 1), 0.5)


def test_an_image_is_reconstructed_from_the_predicted_class():
  got = capsnet.measure(Known(), IMAGES, jnp.array(LABELS))
  np.testing.assert_array_equal(got["prediction"], [0, 1])
  np.testing.assert_array_equal(got["accuracy"], [1, 0])
  np.testing.assert_allclose(got["reconstruction_loss"], [5, 5])
  present = np.arange(3) == LABELS[:, None]
  np.testing.assert_allclose(got["margin_loss"], margins(present), rtol=1e-6)
  np.testing.assert_allclose(got["routing_entropy"], 0.5, rtol=1e-6)
  np.testing.assert_allclose(got["activations"], LENGTHS, rtol=1e-6)


def test_sets_of_classes_are_those_above_one_half():
  present = np.array([[1, 0, 0], [0, 0, 1]], np.int32)
  got = capsnet.measure(Known(), IMAGES, jnp.array(present))
  assert "prediction" not in got
  np.testing.assert_array_equal(got["accuracy"], [1, 0])
  np.testing.assert_allclose(got["class_accuracy"], [1, 2 / 3], rtol=1e-6)
  # Of class 0, and of classes 1 and 2.
  np.testing.assert_allclose(got["reconstruction_loss"], [5, 125])
  np.testing.assert_allclose(got["margin_loss"], margins(present), rtol=1e-6)


@pytest.mark.parametrize("weight", [0.0, 0.1])
def test_training_on_sets_decodes_the_true_classes(weight):
  """With one class in each image it is the loss of their labels."""
  present = np.eye(3, dtype=np.int32)[LABELS]
  want = np.mean(margins(present)) + weight * 25  # the mean of 5 and 45
  for labels in (present, LABELS):
    value, metrics = capsnet.loss(
      Known(), IMAGES, jnp.array(labels), jax.random.key(0), 0,
      reconstruction_weight=weight,
    )  # fmt: skip
    assert float(value) == pytest.approx(want, rel=1e-6)
    assert float(metrics["loss"]) == float(value)
