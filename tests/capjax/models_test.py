"""What all models of images have in common: constructors and inputs."""

import copy
import functools
import inspect
import pickle

import cases
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from flax import nnx

import capjax
from capjax import baselines, data, layers
from capjax.generative import amortised
from capjax.layers import routers, slots

_SHAPE, _CLASSES = (28, 28, 1), 10
# Models of points and of sets.
_NOT_OF_IMAGES = {"ConstellationAutoencoder", "SetTransformer"}


def _models():
  """Every exported class and function that makes a model of images."""
  found = {
    name: getattr(capjax, name)
    for name in capjax.__all__
    if inspect.isclass(getattr(capjax, name))
  }
  for module in (baselines, amortised):
    for name, value in vars(module).items():
      if getattr(value, "__module__", "") == module.__name__:
        if not name.startswith("_"):
          found[name] = value
  return {x: found[x] for x in sorted(found) if x not in _NOT_OF_IMAGES}


MODELS = _models()


def _parameters(maker):
  function = maker.__init__ if inspect.isclass(maker) else maker
  found = inspect.signature(function).parameters.values()
  return [x for x in found if x.name != "self"]


def test_every_model_is_found():
  assert {"CapsNet", "CapsuleRBM", "SCAE", "ConvVAE", "amortised_capsules",
          "multimnist_baseline"} <= MODELS.keys()  # fmt: skip
  assert len(MODELS) >= 13


@pytest.mark.parametrize("name", MODELS)
def test_constructors_agree(name):
  """Images first, classes second, both of MNIST; the rest by name."""
  first, *rest = _parameters(MODELS[name])
  assert (first.name, first.default) == ("image_shape", _SHAPE)
  if any(x.name == "num_classes" for x in rest):
    second, *rest = rest
    assert (second.name, second.default) == ("num_classes", _CLASSES)
  assert all(x.kind is x.KEYWORD_ONLY for x in rest)
  assert [x.name for x in rest if x.default is x.empty] == ["rngs"]


@pytest.mark.parametrize("name", MODELS)
def test_defaults_make_models_of_mnist(name):
  model = nnx.eval_shape(lambda: MODELS[name](rngs=nnx.Rngs(0)))
  assert cases.num_parameters(model) > 5_000
  images = jax.ShapeDtypeStruct((2, *_SHAPE), jnp.float32)
  outputs = jax.eval_shape(_call, model, images)
  sizes = [x.shape for x in jax.tree.leaves(outputs)]
  assert sizes and all(size[0] == 2 for size in sizes)
  if any(x.name == "num_classes" for x in _parameters(MODELS[name])):
    assert any(size[1:] == (_CLASSES,) for size in sizes)


def _call(model, images):
  """The outputs of a model for images."""
  if isinstance(model, capjax.TransformingAutoencoder):
    return model.recognise(images)
  if isinstance(model, capjax.GenerativeCapsules):
    return images  # the outputs of its guide
  if callable(model):
    return model(images)
  return model.activities(images)


_SMALL = {
  "CapsNet": dict(conv_features=2, num_types=1, decoder_features=(2,)),
  "EfficientCapsNet": dict(conv_features=(2, 2, 2, 8), decoder_features=(2,)),
  "MatrixCapsules": dict(features=2, types=(1, 1, 1)),
  "CapsNetBaseline": dict(conv_features=(2,), dense_features=(2,)),
  "ConvVAE": dict(num_latents=2, features=(2, 2)),
  "SlotAutoencoder": dict(slot_size=4, features=2, num_convs=1),
  "TransformingAutoencoder": dict(num_capsules=2),
  "CapsuleRBM": dict(num_capsules=2, capsule_size=2),
  "CapsuleHM": dict(num_capsules=(2,), capsule_size=2),
  "SCAE": dict(num_parts=2, num_objects=2, encoder_features=2),
  "amortised_capsules": dict(
    num_capsules=(2, 2), conv_features=(2, 2), width=16
  ),
}
# They take images of any values.
_ANY_VALUES = {"MatrixCapsules", "CapsNetBaseline"}


@pytest.mark.parametrize("name", MODELS)
def test_structures_can_be_static_arguments(name):
  """As in `nnx.split` outside of `jax.jit` and `nnx.merge` inside."""
  make = functools.partial(MODELS[name], **_SMALL.get(name, {}))
  graph = nnx.graphdef(nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0))))
  assert isinstance(hash(graph), int)


def test_a_machine_can_be_copied_and_pickled():
  machine = _made("CapsuleRBM")
  for other in (copy.deepcopy(machine), pickle.loads(pickle.dumps(machine))):
    assert other.families[0] is machine.families[0]
    jax.tree.map(np.testing.assert_array_equal, machine, other)


def _of_set(**options):
  return capjax.SetTransformer(
    3, width=4, num_blocks=1, num_heads=2, num_outputs=2, out_features=2,
    **options,
  )  # fmt: skip


_LAYERS = {
  **{
    name: functools.partial(layers.DenseCaps, 6, 3, 4, 4, routing=name)
    for name in routers.NAMES
  },
  "grid": functools.partial(
    layers.GridCaps, 2, 4, 3, 4, kernel_size=2
  ),
  "set": functools.partial(_of_set, num_inducing=3),
  "slots": functools.partial(
    slots.SlotAttention, 4, num_slots=2, size=4, invariant=True,
    start="learned",
  ),
  "constellations": functools.partial(
    capjax.ConstellationAutoencoder, num_objects=2
  ),
  "coupled": functools.partial(
    capjax.SCAE, mixing="coupled", **_SMALL["SCAE"]
  ),
  "residual": functools.partial(layers.ResidualBlock, 2, 3),
  "machine": functools.partial(
    capjax.CapsuleRBM, visible="gaussian", interaction=True, num_chains=2,
    **_SMALL["CapsuleRBM"],
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*MODELS, *_LAYERS])
def test_parameters_are_the_same_where_float64_is_enabled(name):
  """Float32 and the same numbers: keys give other ones in float64."""
  if name in _LAYERS:
    make = _LAYERS[name]
  else:
    make = functools.partial(MODELS[name], **_SMALL.get(name, {}))

  def parameters(wide):
    with jax.enable_x64(wide):
      state = nnx.state(make(rngs=nnx.Rngs(0)))
      return jax.tree.leaves(nnx.to_pure_dict(state))

  want, got = parameters(False), parameters(True)
  for x, y in zip(want, got, strict=True):
    if jnp.issubdtype(x.dtype, jnp.floating):
      assert y.dtype == x.dtype == jnp.float32, y.shape
      np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


@functools.cache
def _made(name):
  return MODELS[name](**_SMALL[name], rngs=nnx.Rngs(0))


@pytest.fixture
def small(request):
  """A model, without the checks of annotations that tests make."""
  jaxtyping.config.update("jaxtyping_disable", True)
  yield _made(request.param)
  jaxtyping.config.update("jaxtyping_disable", False)


def _small(names):
  return pytest.mark.parametrize("small", sorted(names), indirect=True)


@_small(_SMALL)
@pytest.mark.long_after_first
def test_integers_and_other_sizes_are_refused_in_a_sentence(small):
  images = np.full((2, *_SHAPE), 255, np.uint8)
  with pytest.raises(TypeError) as error:
    _call(small, images)
  assert str(error.value) == (
    "images hold uint8; give floating-point numbers, such as "
    "capjax.data.as_intensities(images)."
  )
  with pytest.raises(ValueError, match=r"images are \[2 28 27 1\]; give"):
    _call(small, jnp.zeros((2, 28, 27, 1)))
  jax.eval_shape(_call, small, data.as_intensities(images))


@_small(_SMALL.keys() - _ANY_VALUES)
@pytest.mark.parametrize(
  ("low", "high"), [(0, 255), (-0.5, 0.5), (0, 1.01), (0, np.nan)]
)
@pytest.mark.long_after_first
def test_other_intensities_are_refused_where_they_are_known(small, low, high):
  images = np.full((2, *_SHAPE), low, np.float32)
  images[1, 3, 4] = high
  words = rf"images hold values from .* to {high:g}; give intensities in .0, 1."
  for array in (images, jnp.asarray(images)):
    with pytest.raises(ValueError, match=words if high == high else "give int"):
      _call(small, array)
  # Not where they are traced.
  jax.eval_shape(_call, small, images)


@pytest.mark.parametrize("name", ["CapsNet", "EfficientCapsNet"])
@pytest.mark.long
def test_networks_without_decoder_take_standardised_images(name):
  options = {**_SMALL[name], "decoder_features": ()}
  model = MODELS[name](**options, rngs=nnx.Rngs(0))
  assert np.isfinite(model(jnp.full((2, *_SHAPE), -1.5)).activations).all()


@pytest.mark.long_after_first
@_small(_SMALL.keys() - _ANY_VALUES)
def test_intensities_may_be_rounded(small):
  _call(small, jnp.full((2, *_SHAPE), 1 + 1e-6))


@pytest.mark.long
@_small(_ANY_VALUES)
def test_classifiers_of_standardised_images_take_any_values(small):
  _call(small, jnp.full((2, *_SHAPE), -3.0))


def test_gaussian_pixels_have_any_values():
  images = jnp.full((2, *_SHAPE), -3.0)
  for name, option in (
    ("CapsuleRBM", dict(visible="gaussian")),
    ("CapsuleHM", dict(visible="gaussian")),
    ("ConvVAE", dict(pixel_scale=0.5)),
  ):
    _call(MODELS[name](**_SMALL[name], **option, rngs=nnx.Rngs(0)), images)


def test_intensities_are_of_uint8_alone():
  pixels = np.array([0, 51, 255], np.uint8)
  got = data.as_intensities(pixels)
  assert got.dtype == jnp.float32
  np.testing.assert_allclose(got, [0, 0.2, 1])
  np.testing.assert_array_equal(data.as_intensities(jnp.asarray(pixels)), got)
  jaxtyping.config.update("jaxtyping_disable", True)
  try:
    with pytest.raises(
      TypeError, match="images hold float(32|64); give uint8 in 0"
    ):
      data.as_intensities(jnp.ones(3))
  finally:
    jaxtyping.config.update("jaxtyping_disable", False)


def test_a_network_that_does_not_fit_says_what_it_needs():
  """Before anything is made; shapes alone need no memory."""

  def make():
    return capjax.CapsNet((4096, 4096, 3), rngs=nnx.Rngs(0))

  with pytest.raises(ValueError) as error:
    make()
  text = str(error.value)
  assert "transforms of [133171200 10 8 16] take 682 GB of memory, but" in text
  assert "available; give fewer capsules: smaller images" in text
  shapes = nnx.eval_shape(make)
  assert shapes.classes.transforms.shape == (133171200, 10, 8, 16)
