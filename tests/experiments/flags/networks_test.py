"""What the flags of networks, optimiser and augmentation do."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import processes
import pytest
from absl import flags
from absl.testing import flagsaver
from flax import nnx

from capjax import layers
from experiments.flags import augmentation as flagged_augmentation
from experiments.flags import networks, photometry
from experiments.flags import optimizer as flagged
from experiments.training import augmentation

IMAGES = jax.random.uniform(jax.random.key(0), (3, 8, 8, 1))


@contextlib.contextmanager
def given(*words):
  """The flags of a command line, until the end of the block."""
  with flagsaver.flagsaver():
    flags.FLAGS(["binary", *words])
    yield


def make_model(*words):
  with given(*words):
    spec = networks.spec()
  sizes = {"image_shape": (8, 8, 1), "num_classes": 10}
  return spec.with_arguments(**sizes).make(nnx.Rngs(0))


def output_of(*words):
  model = make_model(*processes.UNDECODED, *words)
  return jax.jit(lambda model, x: model(x))(model, IMAGES)


def augmented(*words):
  with given(*words):
    placement = flagged_augmentation.placement()
  return augmentation.augment_image(jax.random.key(1), IMAGES[0], placement)


def test_images_are_left_alone_without_shifts():
  np.testing.assert_array_equal(augmented("--max_shift=0"), IMAGES[0])


@pytest.mark.parametrize(
  "word",
  ["--max_shift=2", "--max_rotation=20", "--max_shear=0.2", "--max_scale=1.2"],
)
def test_each_deformation_has_its_flag(word):
  got = augmented("--max_shift=0", word)
  assert got.shape == IMAGES[0].shape
  assert np.max(np.abs(got - IMAGES[0])) > 0.1


def test_canvas_surrounds_the_image():
  got = augmented("--canvas=12")
  assert got.shape == (12, 12, 1)
  np.testing.assert_allclose(np.sum(got), np.sum(IMAGES[0]), rtol=1e-6)
  with given("--canvas=12"):
    placement = flagged_augmentation.placement()
  assert augmentation.canvas_of((8, 8, 1), placement) == (12, 12, 1)


def test_a_canvas_and_shifts_are_refused():
  with given("--canvas=12", "--max_shift=1"):
    with pytest.raises(ValueError, match="does not use --max_shift"):
      flagged_augmentation.placement()


def test_crops_and_light_have_their_flags():
  with given("--crop=6", "--flip", "--max_contrast=0.5", "--downsample=4"):
    got = photometry.place(flagged_augmentation.placement())
  assert got == augmentation.Placement(
    max_shift=0, crop=6, flip=True, max_contrast=0.5, downsample=4
  )
  with given():
    placement = flagged_augmentation.placement()
    assert photometry.place(placement) == placement
  for word in ("--max_shift=1", "--canvas=9"):
    with given("--crop=6", word), pytest.raises(ValueError, match="not use"):
      photometry.place(flagged_augmentation.placement())


def test_standardised_images_have_no_decoder():
  with given("--standardise"):
    photometry.refuse_decoder("baseline")
    with pytest.raises(ValueError, match="add --reconstruction=none"):
      photometry.refuse_decoder("capsnet")
  with given("--standardise", "--reconstruction=none"):
    photometry.refuse_decoder("capsnet")


def test_routing_follows_the_flags():
  want = output_of()
  np.testing.assert_allclose(np.sum(want.coefficients, -1), 1, atol=1e-5)
  leaky = output_of("--leaky")
  np.testing.assert_array_less(np.sum(leaky.coefficients, -1), 0.99)
  one = output_of("--num_iterations=1")
  np.testing.assert_allclose(one.coefficients, 0.1, rtol=1e-6)
  assert np.ptp(want.coefficients) > 0.001


DEEP = (
  *processes.UNDECODED, "--conv_kernel=3", "--primary_kernel=1",
  "--primary_stride=1", "--residual_features=4", "--conv_capsules=3,2",
  "--conv_capsules_kernel=2",
)  # fmt: skip


@pytest.mark.parametrize("competition", ["window", "grid"])
def test_depth_follows_the_flags(competition):
  words = *DEEP, "--residual_blocks=2", f"--conv_competition={competition}"
  model = make_model(*words)
  assert len(model.residual.blocks) == 2
  kinds = {"window": layers.ConvCaps, "grid": layers.GridCaps}
  assert all(isinstance(x, kinds[competition]) for x in model.hidden)
  assert [x.num_types for x in model.hidden] == [3, 2]


@pytest.mark.parametrize(
  ("word", "missing"),
  [
    ("residual_blocks=2", "residual_features"),
    ("conv_competition=grid", "conv_capsules"),
    ("conv_capsules_kernel=2", "conv_capsules"),
  ],
)
def test_flags_of_a_deeper_network_need_it(word, missing):
  words = f"without --{missing} does not use --{word.partition('=')[0]}"
  with given(*processes.SMALL, f"--{word}"):
    with pytest.raises(ValueError, match=words):
      networks.spec()


def test_the_gradient_of_routing_follows_its_flag():
  for words, want in (((), "all"), (["--routing_gradient=last"], "last")):
    model = make_model(*processes.SMALL, *words)
    assert model.classes.route.gradient == want


def test_the_scale_of_primary_capsules_follows_its_flag():
  want, same, other = (
    output_of(*words).poses
    for words in ([], ["--primary_scale=0.5"], ["--primary_scale=1"])
  )
  np.testing.assert_array_equal(same, want)  # of two types
  assert np.max(np.abs(other - want)) > 1e-3


def test_the_start_of_the_decoder_follows_its_flag():
  weights = [
    make_model(*processes.SMALL, *words).decoder.layers[0]
    for words in ((), ("--decoder_init=official",))
  ]
  assert [float(layer.bias[0]) for layer in weights] == [0, pytest.approx(0.1)]
  for layer, deviation in zip(weights, (1 / np.sqrt(160), 0.088), strict=True):
    assert np.std(layer.kernel[...]) == pytest.approx(deviation, rel=0.1)


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
    ("--final_rate_fraction=0.01 --num_steps=1", 1e-5),
    ("--final_rate_fraction=0.01 --num_steps=2", 1e-4),
  ],
)
def test_learning_rate_follows_the_flags(words, want):
  """Of the first step only Adam's rate is left: it moves weights by so much."""
  with given(*words.split()):
    optimizer, weight = flagged.make_optimizer(), jnp.ones(1)
    state = optimizer.init(weight)
    for _ in range(2):
      update, state = optimizer.update(weight, state)
  assert float(-update[0]) == pytest.approx(want, rel=1e-3)


def test_the_fraction_is_that_of_the_last_step_after_the_warm_up():
  words = ("--final_rate_fraction=0.01", "--warmup_steps=2", "--num_steps=6")
  with given(*words):
    optimizer, weight = flagged.make_optimizer(), jnp.ones(1)
  state, rates = optimizer.init(weight), []
  for _ in range(7):
    update, state = optimizer.update(weight, state)
    rates.append(-float(update[0]))
  want = [0, 0.5e-3, *(1e-3 * 0.01 ** (np.arange(5) / 4))]
  np.testing.assert_allclose(rates, want, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize(
  ("words", "want"), [("", 10.0), ("--max_gradient=2", 2.0)]
)
def test_long_gradients_are_shortened(words, want):
  """Adam's first mean is a tenth of the gradient that reaches it."""
  with given(*words.split()):
    optimizer, weights = flagged.make_optimizer(), jnp.array([6.0, 8.0])
    _, state = optimizer.update(weights, optimizer.init(weights))
  mean = optax.tree.get(state, "mu")
  assert float(10 * jnp.linalg.norm(mean)) == pytest.approx(want, rel=1e-5)


RMSPROP = (
  "--optimizer=rmsprop", "--learning_rate=0.1", "--decay_rate=0.5",
  "--decay_steps=1",
)  # fmt: skip
GRADIENTS = np.array([[3.0, -0.2], [-1.0, 0.5], [0.3, 2.0]])


def rmsprop_oracle(momentum, epsilon):
  """Weights after each gradient: RMSProp of TensorFlow 1, by its definition.

  ms = 0.9 ms + 0.1 g^2, mom = momentum mom + rate g / sqrt(ms + epsilon) and
  w = w - mom; ms starts at 1, mom at 0. The rate halves with each step.
  """
  weights, moved = np.ones(2), []
  squares, steps, rate = np.ones(2), np.zeros(2), 0.1
  for gradient in GRADIENTS:
    for n, g in enumerate(gradient):
      squares[n] = 0.9 * squares[n] + 0.1 * g**2
      steps[n] = momentum * steps[n] + rate * g / np.sqrt(squares[n] + epsilon)
      weights[n] -= steps[n]
    moved.append(weights.copy())
    rate /= 2
  return np.array(moved)


def check_rmsprop(optimizer, momentum=0.9, epsilon=0.01):
  weights, moved = jnp.ones(2), []
  state = optimizer.init(weights)
  for gradient in GRADIENTS:
    update, state = optimizer.update(jnp.float32(gradient), state, weights)
    weights = optax.apply_updates(weights, update)
    moved.append(weights)
  want = rmsprop_oracle(momentum, epsilon)
  np.testing.assert_allclose(np.array(moved), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  ("words", "momentum", "epsilon"),
  [
    ("--batch_size=1", 0.9, 0.01),
    ("--batch_size=2", 0.9, 0.0025),
    ("--momentum=0.5 --epsilon=0.3", 0.5, 0.3),
    ("--momentum=0 --epsilon=1", 0.0, 1.0),
  ],
)
def test_rmsprop_is_that_of_tensorflow(words, momentum, epsilon):
  with given(*RMSPROP, *words.split()):
    check_rmsprop(flagged.make_optimizer(), momentum, epsilon)


def momentum_before_rate(rate):
  """Momentum of steps that the learning rate scales later."""
  return optax.chain(
    optax.scale_by_rms(0.9, 0.01, initial_scale=1.0),
    optax.trace(0.9),
    optax.scale_by_learning_rate(rate),
  )


SETTINGS = {"eps": 0.01, "initial_scale": 1.0, "momentum": 0.9}


@pytest.mark.parametrize(
  "broken",
  [
    optax.rmsprop,
    functools.partial(optax.rmsprop, **SETTINGS | {"initial_scale": 0.0}),
    functools.partial(optax.rmsprop, **SETTINGS | {"momentum": None}),
    functools.partial(optax.rmsprop, **SETTINGS, eps_in_sqrt=False),
    functools.partial(optax.rmsprop, **SETTINGS, nesterov=True),
    functools.partial(optax.rmsprop, **SETTINGS, bias_correction=True),
    momentum_before_rate,
  ],
  ids=[
    "defaults", "starts_at_0", "no_momentum", "epsilon_outside", "nesterov",
    "bias_correction", "momentum_before_rate",
  ],
)  # fmt: skip
def test_another_rmsprop_fails(broken):
  def rate(step):
    return 0.1 * 0.5**step

  check_rmsprop(optax.rmsprop(rate, **SETTINGS))
  with pytest.raises(AssertionError):
    check_rmsprop(broken(rate))
