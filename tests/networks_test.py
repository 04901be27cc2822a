"""What the flags of networks, optimiser and augmentation do."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import processes
import pytest
from absl import flags
from absl.testing import flagsaver

from experiments.common import networks, optimizers, placing

IMAGES = jax.random.uniform(jax.random.key(0), (3, 8, 8, 1))


@contextlib.contextmanager
def given(*words):
  """The flags of a command line, until the end of the block."""
  with flagsaver.flagsaver():
    flags.FLAGS(["binary", *words])
    yield


def make_model(*words):
  with given(*words):
    return networks.make_model((8, 8, 1), 10)


def output_of(*words):
  model = make_model(*processes.UNDECODED, *words)
  return jax.jit(lambda model, x: model(x))(model, IMAGES)


def augmented(*words):
  with given("--max_shift=0", *words):
    return placing.augment_image(jax.random.key(1), IMAGES[0])


def test_images_are_left_alone_without_flags():
  np.testing.assert_array_equal(augmented(), IMAGES[0])


@pytest.mark.parametrize(
  "word",
  ["--max_shift=2", "--max_rotation=20", "--max_shear=0.2", "--max_scale=1.2"],
)
def test_each_deformation_has_its_flag(word):
  got = augmented(word)
  assert got.shape == IMAGES[0].shape
  assert np.max(np.abs(got - IMAGES[0])) > 0.1


def test_canvas_surrounds_the_image():
  got = augmented("--canvas=12")
  assert got.shape == (12, 12, 1)
  np.testing.assert_allclose(np.sum(got), np.sum(IMAGES[0]), rtol=1e-6)
  with given("--canvas=12"):
    assert placing.canvas_of((8, 8, 1)) == (12, 12, 1)


def test_routing_follows_the_flags():
  want = output_of()
  np.testing.assert_allclose(np.sum(want.coefficients, -1), 1, atol=1e-5)
  leaky = output_of("--leaky")
  np.testing.assert_array_less(np.sum(leaky.coefficients, -1), 0.99)
  one = output_of("--num_iterations=1")
  np.testing.assert_allclose(one.coefficients, 0.1, rtol=1e-6)
  assert np.ptp(want.coefficients) > 0.001


def test_bfloat16_stays_close():
  got, want = (output_of(*words).poses for words in (["--bfloat16"], []))
  assert 0 < np.max(np.abs(got - want)) < 0.02


def test_reconstruction_follows_its_flag():
  for words, weight in (
    (processes.SMALL, 0.0005),
    ((*processes.SMALL, "--reconstruction=paper"), 0.0005),
    ((*processes.SMALL, "--reconstruction=official"), 0.01),
    (processes.UNDECODED, 0),
  ):
    with given(*words):
      assert networks.reconstruction_weight() == pytest.approx(weight)
    assert (make_model(*words).decoder is None) == (weight == 0)


@pytest.mark.parametrize(
  ("words", "want"),
  [
    ("--decay_rate=1.0", 1e-3),
    ("--decay_rate=0.0", 1e-6),
    ("--schedule=cosine --num_steps=2", 5e-4),
    ("--schedule=cosine --warmup_steps=4", 2.5e-4),
  ],
)
def test_learning_rate_follows_the_flags(words, want):
  """Of the first step only Adam's rate is left: it moves weights by so much."""
  with given(*words.split()):
    optimizer, weight = optimizers.make_optimizer(), jnp.ones(1)
    state = optimizer.init(weight)
    for _ in range(2):
      update, state = optimizer.update(weight, state)
  assert float(-update[0]) == pytest.approx(want, rel=1e-3)


@pytest.mark.parametrize(
  ("words", "want"), [("", 10.0), ("--max_gradient=2", 2.0)]
)
def test_long_gradients_are_shortened(words, want):
  """Adam's first mean is a tenth of the gradient that reaches it."""
  with given(*words.split()):
    optimizer, weights = optimizers.make_optimizer(), jnp.array([6.0, 8.0])
    _, state = optimizer.update(weights, optimizer.init(weights))
  mean = optax.tree.get(state, "mu")
  assert float(10 * jnp.linalg.norm(mean)) == pytest.approx(want, rel=1e-5)
