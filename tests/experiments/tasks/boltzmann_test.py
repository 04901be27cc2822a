"""What an RBM sees of images, and the biases of pixels that it starts with."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from capjax import data
from capjax.energy import rbm
from capjax.specs import Spec
from experiments.tasks import boltzmann

IMAGES = np.uint8([[[0, 51, 102], [128, 204, 255]], [[9] * 3] * 2])[..., None]
LABELS = np.int32([4, 7])
SHAPE = IMAGES.shape[1:]


def make_task(visible="bernoulli", **options):
  arguments = {"num_capsules": 2, "capsule_size": 3, "visible": visible}
  spec = Spec(rbm.CapsuleRBM, arguments)
  return boltzmann.make_task(spec, optax.sgd(0.1), **options)


def examples(task, field, count):
  """Examples of the first image."""
  keys = jax.random.split(jax.random.key(0), count)
  make = jax.jit(jax.vmap(getattr(task, field), (0, None, None, None)))
  return make(keys, 0, jnp.asarray(IMAGES), jnp.asarray(LABELS))


@pytest.mark.parametrize("field", ["sample", "sample_test"])
def test_binary_pixels_are_sampled_with_their_intensities(field):
  drawn, labels = examples(make_task(binary=True), field, 1000)
  assert set(np.unique(drawn)) == {0, 1} and set(np.asarray(labels)) == {4}
  want = IMAGES[0] / 255.0
  spread = np.sqrt(want * (1 - want) / len(drawn))
  off = np.abs(np.mean(drawn, axis=0) - want)
  np.testing.assert_array_less(off, 6 * spread + 1e-6)
  # A pixel can be 1 where a brighter one is 0: each has a sample of its own.
  assert np.any(drawn[:, 0, 1] > drawn[:, 1, 1])
  given, _ = examples(make_task(), field, 2)
  np.testing.assert_allclose(given, np.stack([want] * 2), rtol=1e-6)


def log_odds(images):
  means = np.mean(images, axis=0)
  return [np.log(means / (1 - means))]


def mean_and_precision(images):
  precisions = 1 / np.var(images, axis=0)
  return [np.mean(images, axis=0) * precisions, -precisions / 2]


@pytest.mark.parametrize(
  ("visible", "fitted"),
  [("bernoulli", log_odds), ("gaussian", mean_and_precision)],
)
def test_pixels_start_with_the_statistics_of_the_training_set(visible, fitted):
  """Far from the limits of their means and precisions."""
  random = np.random.default_rng(0)
  train, validation = (
    data.Dataset(
      random.choice(np.uint8([0, 255]), (30, *SHAPE), p=[share, 1 - share]),
      np.zeros((30, 0), np.int32), 0, {},
    )
    for share in (0.4, 0.8)
  )  # fmt: skip
  task = make_task(visible)
  model = task.describe(SHAPE, 0).make(nnx.Rngs(0))
  task.begin(model, train, validation)
  want = fitted(train.images.reshape(30, -1) / 255.0)
  np.testing.assert_allclose(model.visible[...], want, rtol=2e-3, atol=1e-5)
