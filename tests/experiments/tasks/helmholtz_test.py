"""Pretraining of a Helmholtz machine, layer by layer."""

import cases
import numpy as np
import optax
from flax import nnx

from capjax import data
from capjax.energy import helmholtz
from capjax.specs import Spec
from experiments.tasks import helmholtz as tasks

SHAPE = (2, 3, 1)
SECONDS = {1: 1.5, 2: 0.25}
MACHINE = Spec(helmholtz.CapsuleHM, {"num_capsules": [3, 2], "capsule_size": 4})


def images(seed, count=20):
  pixels = np.random.default_rng(seed).integers(0, 256, (count, *SHAPE))
  return data.Dataset(
    pixels.astype(np.uint8), np.zeros((count, 0), np.int32), 0, {}
  )


def log_odds(dataset):
  means = np.mean(dataset.images / 255.0, axis=0).ravel()
  return np.log(means / (1 - means))


def test_wake_sleep_training_starts_from_what_pretraining_learnt():
  train, validation = images(0), images(1, 5)
  learnt = []

  def fit(number, task, record, *sets):
    """Learns noise."""
    assert sets == (train, validation)
    assert record["arguments"]["num_capsules"] == [3, 2][number - 1]
    stack = task.describe(SHAPE, 0).make(nnx.Rngs(5))
    below = [*stack.machines[:-1]]
    for machine, known in zip(below, learnt, strict=True):
      np.testing.assert_array_equal(machine.weights[...], known.weights[...])
    if not below:
      np.testing.assert_allclose(
        stack.top.visible[...][0], log_odds(train), rtol=1e-5
      )
    stack.machines[-1] = cases.perturbed(stack.top, number)
    learnt.append(stack.top)
    return stack, SECONDS[number]

  pretraining = tasks.Pretraining(fit, optax.sgd(0.1), num_chains=0)
  task = tasks.make_task(MACHINE, optax.sgd(0.1), pretraining=pretraining)
  machine = task.describe(SHAPE, 0).make(nnx.Rngs(0))
  assert task.begin(machine, train, validation) == 1.75
  np.testing.assert_array_equal(machine.visible[...], learnt[0].visible[...])
  for layers in (machine.generative, machine.recognition):
    for layer, known in zip(layers, learnt, strict=True):
      for name in ("weights", "hidden", "switches"):
        got, want = getattr(layer, name)[...], getattr(known, name)[...]
        np.testing.assert_array_equal(got.ravel(), want.ravel(), err_msg=name)


def test_without_pretraining_pixels_alone_have_biases():
  task = tasks.make_task(MACHINE, optax.sgd(0.1))
  train = images(0)
  machine, other = (task.describe(SHAPE, 0).make(nnx.Rngs(0)) for _ in range(2))
  assert task.begin(machine, train, images(1)) == 0
  np.testing.assert_allclose(
    machine.visible[...][0], log_odds(train), rtol=1e-5
  )
  for layer, before in zip(machine.generative, other.generative, strict=True):
    np.testing.assert_array_equal(layer.weights[...], before.weights[...])
