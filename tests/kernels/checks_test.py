"""What kernels, models and losses refuse, and what they say of it."""

import functools
import sys

import jax
import jax.numpy as jnp
import kernel_cases
import numpy as np
import pytest
import saved_cases
from flax import nnx

import capjax
from capjax import (
  baselines,
  efficient_capsnet,
  losses,
  matrix_capsules,
  scae,
  transforming,
)
from capjax.energy import helmholtz
from capjax.energy import rbm as boltzmann
from kernels import checks, energy, routing

# Functions of a user's own state, of scalars that may be whole numbers, and of
# units inside of an energy.
FREE = (
  "annealing.", "families.", "geometry.affine_matrix", "numerics.einsum",
  "em.maximise",
)  # fmt: skip
CASES = {
  name: case
  for name, case in kernel_cases.CASES.items()
  if not name.startswith(FREE)
}
# Which the table gives because others of its kind take it.
UNUSED = {("capsules.visible_parameters", "x")}


pytestmark = pytest.mark.usefixtures("as_a_user")


def arguments_of(case):
  drawn = kernel_cases.draw(case, np.random.default_rng(0))
  return {name: jnp.float32(x) for name, x in drawn.items()}


@pytest.mark.parametrize("name", kernel_cases.CASES)
def test_kernels_take_arrays_of_numpy(name):
  case = kernel_cases.CASES[name]
  drawn = kernel_cases.draw(case, np.random.default_rng(0))
  drawn = {name: np.float32(x) for name, x in drawn.items()}
  assert jax.tree.leaves(jax.eval_shape(lambda: case.function(**drawn)))


@pytest.mark.parametrize("name", CASES)
def test_kernels_refuse_whole_numbers(name):
  case = CASES[name]
  arguments = arguments_of(case)
  for given in arguments:
    if (name, given) in UNUSED:
      continue
    words = {**arguments, given: jnp.int32(arguments[given])}
    if jnp.ndim(words[given]) == 0:
      continue  # a scalar may be
    with pytest.raises(TypeError, match="give floating-point numbers"):
      jax.eval_shape(functools.partial(_of, case), words)


def _of(case, arguments):
  """Without promotion: of one kind of numbers if the kernel mixes them."""
  return case.function(**arguments)


@pytest.mark.parametrize(
  "name",
  [
    name
    for name in CASES
    if name.split(".")[0]
    in ("routing", "attention", "em", "em_convolution", "variational",
        "likelihood", "rendering", "energy")
  ],
)  # fmt: skip
def test_kernels_refuse_what_would_be_broadcast_and_what_is_empty(name):
  """Of each argument an axis is added, shared but of size 1, or empty."""
  case = CASES[name]
  arguments = arguments_of(case)
  axes = {given: text.split() for given, text in case.arguments.items()}
  for given, x in arguments.items():
    if not x.ndim or (name, given) in UNUSED:
      continue
    wrong = [x[:0], x[None]]
    # One that others have too must agree with them.
    first = axes[given][0]
    if first.isalpha() and sum(first in others for others in axes.values()) > 1:
      wrong.append(x[:1])
    for bad in wrong:
      with pytest.raises((ValueError, TypeError)) as error:
        jax.eval_shape(functools.partial(_of, case), {**arguments, given: bad})
      assert "give" in str(error.value), (given, bad.shape, error.value)


@pytest.mark.parametrize(
  ("change", "words"),
  [
    (dict(bias=jnp.zeros(4)), ["bias is [4]", "[J D]"]),
    (dict(bias=jnp.zeros((1, 4))), ["bias is [1 4]", "[J D] = [2 4]"]),
    (dict(votes=jnp.zeros((0, 2, 4))), ["votes is [0 2 4]", "empty", "I"]),
    (dict(votes=jnp.zeros((3, 2, 4), jnp.int32)), ["votes holds int32"]),
    (dict(votes=[[1.0]]), ["votes is a list"]),
  ],
)
def test_sentences_name_argument_value_and_remedy(change, words):
  arguments = dict(votes=jnp.zeros((3, 2, 4))) | change
  with pytest.raises((TypeError, ValueError)) as error:
    routing.dynamic_routing(**arguments)
  assert all(word in str(error.value) for word in words), error.value
  assert "give" in str(error.value)


@pytest.mark.parametrize("number", [2.0, "3", None, (2,), True])
def test_counts_are_whole_numbers(number):
  votes = jnp.zeros((3, 2, 4))
  with pytest.raises(TypeError, match="num_iterations is .*; give a whole"):
    routing.dynamic_routing(votes, num_iterations=number)
  for count in (np.int64(2), jnp.int32(2)):
    assert routing.dynamic_routing(votes, num_iterations=count)


def test_a_traced_count_is_told_from_a_wrong_one():
  with pytest.raises(TypeError, match="num_iterations is traced; .*static_arg"):
    jax.jit(routing.dynamic_routing)(jnp.zeros((3, 2, 4)), num_iterations=2)


def test_one_inverse_temperature_is_no_sequence():
  arguments = jnp.zeros((3, 2, 4)), jnp.ones(3), jnp.zeros(2), jnp.zeros(2)
  with pytest.raises(TypeError, match="inverse_temperatures is 1.0; give a se"):
    routing.em_routing(*arguments, inverse_temperatures=1.0)


def test_bfloat16_and_none_are_let_through():
  votes = jnp.zeros((3, 2, 4), jnp.bfloat16)
  assert routing.dynamic_routing(votes, bias=None).poses.shape == (2, 4)
  bias = energy.Bias(jnp.zeros((1, 2, 3)), None)
  assert energy.no_drive(bias).hidden.shape == (2, 3)


SMALL = dict(conv_features=4, conv_kernel=3, num_types=1, primary_kernel=3)
MODELS = {
  "CapsNet": functools.partial(
    capjax.CapsNet, **SMALL, decoder_features=()
  ),
  "EfficientCapsNet": functools.partial(
    efficient_capsnet.EfficientCapsNet, conv_features=(4, 4, 4, 16),
    conv_kernels=(1, 1, 1, 1), conv_strides=(1, 1, 1, 1), decoder_features=(),
  ),
  "CapsNetBaseline": functools.partial(
    baselines.CapsNetBaseline, conv_features=(2,), dense_features=(2,)
  ),
  "MatrixCapsules": functools.partial(
    matrix_capsules.MatrixCapsules, features=2, types=(1, 1, 1),
    padding="SAME",
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_classifiers_refuse_other_images_and_no_classes(name):
  make = MODELS[name]
  _check_images(lambda: make((8, 8, 1), 3, rngs=nnx.Rngs(0)))
  for shape, count, words in (
    ((8, 8, 1), 0, "num_classes is 0; give at least 1"),
    ((8, 8), 3, "image_shape is (8, 8); give height, width and channels"),
    ((8, 0, 1), 3, "image_shape is (8, 0, 1)"),
    (8, 3, "image_shape is 8; give height, width and channels"),
    ((8.0, 8, 1), 3, "image_shape is (8.0, 8, 1); give height"),
    ("abc", 3, "image_shape is abc; give height"),
  ):
    with pytest.raises(ValueError) as error:
      make(shape, count, rngs=nnx.Rngs(0))
    assert words in str(error.value)


def _check_images(make, side=8):
  """Of a function that makes a model, in shapes alone."""
  image = jnp.zeros((2, side, side, 1))
  for images, words in (
    (image[:, 1:], f"images are [2 {side - 1} {side} 1]; give [B {side}"),
    (image[0], f"images are [{side} {side} 1]"),
    (image[:0], f"images are [0 {side} {side} 1], an empty batch"),
    (jnp.int32(image), "images hold int32; give floating-point numbers, such"),
    (jnp.uint8(image), "images hold uint8"),
  ):
    with pytest.raises((TypeError, ValueError)) as error:
      jax.eval_shape(lambda x: make()(x), images)
    assert words in str(error.value)


def test_large_values_are_finite():
  checks.images(np.full((1, 2, 2, 1), 1e308), (2, 2, 1))
  checks.values(-np.inf, np.inf, x=np.array([-1e308, 1e308]))
  with pytest.raises(ValueError, match="x has NaN.*; give finite numbers"):
    checks.values(-np.inf, np.inf, x=np.array([np.inf]))
  with pytest.raises(ValueError, match="from 7 to 7; give finite numbers of"):
    checks.values(-np.inf, 5.0, x=np.array([7.0]))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_images_that_are_not_finite_are_told_from_those_not_divided(value):
  for options in ({}, {"intensities": True}):
    with pytest.raises(ValueError, match=r"hold NaN or infinite values; give"):
      checks.images(np.full((1, 2, 2, 1), value), (2, 2, 1), **options)
  with pytest.raises(ValueError, match="from 9 to 9; .* images / 255"):
    checks.images(np.full((1, 2, 2, 1), 9.0), (2, 2, 1), intensities=True)


def test_other_models_refuse_other_images():
  shape = (8, 8, 1)

  def vae():
    return baselines.ConvVAE(
      shape, num_latents=2, features=(2, 2), rngs=nnx.Rngs(0)
    ).encode

  def rbm():
    return boltzmann.CapsuleRBM(
      shape, num_capsules=2, capsule_size=2, rngs=nnx.Rngs(0)
    ).infer

  def machine():
    return helmholtz.CapsuleHM(
      shape, num_capsules=(2,), capsule_size=2, rngs=nnx.Rngs(0)
    ).infer

  def autoencoder():
    return transforming.TransformingAutoencoder(
      shape, num_capsules=2, recognition_units=2, generation_units=2,
      rngs=nnx.Rngs(0),
    ).recognise  # fmt: skip

  def stacked():
    return scae.SCAE(
      (23, 23, 1), 2, num_parts=2, num_objects=2, template_size=3,
      encoder_features=2, rngs=nnx.Rngs(0),
    )  # fmt: skip

  for make in (vae, rbm, machine, autoencoder):
    _check_images(make)
  _check_images(stacked, side=23)


LOSSES = {
  "spread_loss": functools.partial(losses.spread_loss, margin=0.5),
  "share_loss": losses.share_loss,
  "cross_entropy": losses.cross_entropy,
  "classifier_loss": lambda *x: losses.classifier_loss(*x)[0],
  "multilabel_loss": lambda x, t: losses.multilabel_loss(x, t[:, None])[0],
  "margin_loss": lambda x, t: losses.margin_loss(x, losses.one_hot(t, 3)),
  "multi_hot": lambda x, t: losses.multi_hot(t[:, None], 3) * x,
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("label", [-1, 3])
def test_labels_outside_the_classes_are_one_thing_in_all_losses(name, label):
  """Refused where they are known, and NaN where they are traced."""
  function = LOSSES[name]
  scores = jnp.full((2, 3), 0.3)
  right, wrong = jnp.array([0, 2]), jnp.array([0, label])
  assert np.all(np.isfinite(function(scores, right)))
  with pytest.raises(ValueError, match=rf"labels hold {label}; give 0\.\.2"):
    function(scores, wrong)
  traced = jax.jit(function)
  assert np.all(np.isfinite(traced(scores, right)))
  got = traced(scores, wrong)
  assert np.isnan(got).any()
  if got.ndim:  # of each example
    assert np.isfinite(got[0]).all() and np.isnan(got[1]).any()


@pytest.mark.parametrize("name", LOSSES)
def test_labels_that_are_no_whole_numbers_are_refused(name):
  for function in (LOSSES[name], jax.jit(LOSSES[name])):
    with pytest.raises(TypeError, match="labels hold float32; give whole"):
      function(jnp.full((2, 3), 0.3), jnp.array([0.0, 1.5]))
  for labels in (jnp.array([0.0]), np.array([True]), [1.5]):
    with pytest.raises(TypeError, match="give whole numbers of classes"):
      losses.one_hot(labels, 3)


def test_known_labels_are_checked_while_others_are_traced():
  labels = np.array([0, 5])
  with pytest.raises(ValueError, match="labels hold 5"):
    jax.jit(lambda x: losses.share_loss(x, labels))(jnp.ones((2, 3)))


@pytest.mark.parametrize("name", LOSSES)
def test_losses_refuse_scores_that_would_be_broadcast(name):
  if name == "multi_hot":
    return
  with pytest.raises(ValueError, match="give"):
    LOSSES[name](jnp.ones((1, 3)), jnp.array([0, 1]))
  with pytest.raises(ValueError, match="give"):
    LOSSES[name](jnp.ones((2, 0)), jnp.array([0, 1]))


def test_errors_about_images_are_of_one_kind():
  with pytest.raises(checks.ImageShapeError, match="too small"):
    MODELS["CapsNet"]((4, 4, 1), 3, rngs=nnx.Rngs(0))


def test_the_nearest_name_is_suggested():
  known = {"dynamic": 1, "variational": 2}
  assert checks.did_you_mean("dynamc", known) == "did you mean dynamic? "
  assert checks.did_you_mean("em", known) == ""


@pytest.mark.parametrize("given", [0, None, "0"])
def test_random_streams_are_no_seeds(given):
  checks.rngs(nnx.Rngs(0))
  checks.rngs(nnx.Rngs(params=1, dropout=2))
  with pytest.raises(TypeError, match=r"rngs is of type .*; give flax.nnx.Rn"):
    checks.rngs(given)


@pytest.mark.parametrize("name", saved_cases.SPECS)
def test_models_check_their_random_streams(monkeypatch, name):
  """Themselves, before a layer does."""
  callers = []

  def note(rngs):
    del rngs
    callers.append(sys._getframe(1).f_code.co_qualname)

  monkeypatch.setattr(checks, "rngs", note)
  spec = saved_cases.SPECS[name]
  spec._traced()  # not kept, as shapes are
  maker = "CapsNetBaseline" if "baseline" in name else spec.maker.__name__
  assert callers[0].partition(".")[0] == maker
