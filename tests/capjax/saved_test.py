"""Models that were saved are the same when loaded, for every family."""

import inspect
import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import saved_cases
from flax import nnx

import capjax
from capjax import named_tensors, saved, specs
from capjax.energy import rbm

FAMILIES = list(saved_cases.SPECS)


def leaves(model):
  state = model if isinstance(model, nnx.State) else nnx.state(model)
  return jax.tree_util.tree_leaves_with_path(state)


def assert_same_state(got, want):
  for (path, x), (name, y) in zip(leaves(got), leaves(want), strict=True):
    assert path == name and x.dtype == y.dtype
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
      x, y = map(jax.random.key_data, (x, y))
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.long_after_first
def test_a_loaded_model_is_the_saved_one(name, tmp_path):
  trained = saved_cases.trained(name)
  card = capjax.save(trained, tmp_path / "x.safetensors")
  assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]
  loaded = capjax.load(tmp_path / "x.safetensors")
  assert loaded.card == card and len(card["sha256"]) == 64
  assert card.items() >= trained.card.items()
  assert loaded.class_names == ["a", "b", "c"]
  assert type(loaded.model) is type(trained.model)
  assert_same_state(loaded.model, trained.model)
  if name not in saved_cases.TAKE_POINTS:
    images = saved_cases.images(saved_cases.image_shape(name))
    for got, want in zip(
      jax.tree.leaves(loaded.predict(images)._replace(kind=None)),
      jax.tree.leaves(trained.predict(images)._replace(kind=None)),
      strict=True,
    ):
      np.testing.assert_array_equal(got, want)


def test_parameters_alone_are_stored_as_halves(tmp_path):
  trained = saved_cases.trained("efficient")  # has running statistics
  path, whole = tmp_path / "x.safetensors", tmp_path / "y.safetensors"
  capjax.save(trained, path, half=True)
  capjax.save(trained, whole)
  parameters = dict(leaves(nnx.state(trained.model, nnx.Param)))
  assert len(parameters) < len(leaves(trained.model))
  size = sum(x.size for x in parameters.values())
  assert whole.stat().st_size - path.stat().st_size > 1.9 * size
  loaded = capjax.load(path).model
  for (name, x), (_, want) in zip(
    leaves(loaded), leaves(trained.model), strict=True
  ):
    assert x.dtype == want.dtype
    if name in parameters:
      want = want.astype(jnp.float16).astype(want.dtype)
    elif jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
      x, want = map(jax.random.key_data, (x, want))
    np.testing.assert_array_equal(x, want)


def test_what_float16_cannot_hold_is_refused(tmp_path):
  trained = saved_cases.trained("capsnet")
  trained.model.classes.bias[...] += 7e4
  with pytest.raises(ValueError, match="values up to 7e.*save without half"):
    capjax.save(trained, tmp_path / "x.safetensors", half=True)
  assert not os.listdir(tmp_path)


def test_loading_initialises_nothing(tmp_path, monkeypatch):
  path = tmp_path / "x.safetensors"
  capjax.save(saved_cases.trained("capsnet"), path)
  make, traced = specs.Spec.make, []

  def watched(self, rngs):
    traced.append(isinstance(rngs.params(), jax.core.Tracer))
    return make(self, rngs)

  monkeypatch.setattr(specs.Spec, "make", watched)
  monkeypatch.setattr(specs, "_SHAPES", {})
  capjax.load(path)
  # Only shapes are computed: no key has a value.
  assert traced and all(traced)


@pytest.mark.long
def test_a_loaded_model_is_in_evaluation_mode(tmp_path):
  path = tmp_path / "x.safetensors"
  capjax.save(saved_cases.trained("efficient"), path)
  loaded = capjax.load(path)
  assert loaded.model.norms[0].use_running_average
  before = np.array(loaded.model.norms[0].mean[...])
  images = saved_cases.images((12, 12, 1))
  one = loaded(loaded.preprocess(images[:1])).activations
  all_of_them = loaded(loaded.preprocess(images)).activations
  np.testing.assert_allclose(one[0], all_of_them[0], atol=1e-6)
  np.testing.assert_array_equal(loaded.model.norms[0].mean[...], before)


def test_a_model_is_printed_in_one_line():
  printed = repr(saved_cases.trained("capsnet"))
  assert printed.startswith("<TrainedModel: CapsNet of images of 12x12x1, ")
  assert "\n" not in printed and len(printed) < 100


def test_chains_are_kept(tmp_path):
  trained = saved_cases.trained("rbm")
  chains = rbm.PersistentChains(
    jnp.ones((2, 3, 2)), jnp.ones((2, 3)), jnp.float32(7)
  )
  trained.model.set_chains(chains)
  capjax.save(trained, tmp_path / "x.safetensors")
  kept = capjax.load(tmp_path / "x.safetensors").model.fantasy.get_value()
  assert isinstance(kept, rbm.PersistentChains) and kept.age == 7
  np.testing.assert_array_equal(kept.hidden, chains.hidden)


class Noisy(nnx.Module):
  """Has random streams, and a parameter in bfloat16."""

  def __init__(self, size: int, *, rngs: nnx.Rngs):
    self.dropout = nnx.Dropout(0.5, rngs=rngs)
    self.scale = nnx.Param(jnp.full(size, 1.5, jnp.bfloat16))


def test_random_streams_and_bfloat16_are_kept(tmp_path, monkeypatch):
  spec = specs.Spec(Noisy, {"size": 3})
  monkeypatch.setattr(specs, "from_json", lambda described: spec)
  model = spec.make(nnx.Rngs(5))
  model.dropout(jnp.ones(4))  # counts the stream
  card = saved.make_card(spec, image_shape=(1, 1, 1), class_names=("a",))
  path = tmp_path / "x.safetensors"
  capjax.save(saved.TrainedModel(model, card), path)
  loaded = capjax.load(path).model
  assert loaded.scale[...].dtype == jnp.bfloat16
  assert_same_state(loaded, model)
  for x in (loaded, model):
    x.train()
  np.testing.assert_array_equal(
    loaded.dropout(jnp.ones(99)), model.dropout(jnp.ones(99))
  )


@pytest.mark.parametrize("name", ["canvas", "stereo"])
@pytest.mark.long
def test_preprocessing_goes_with_the_model(name, tmp_path):
  steps = saved_cases.STEPS[name]
  shape = (12, 12, 2) if name == "canvas" else (48, 48, 2)
  spec = saved_cases.SPECS["matrix"]
  size = steps.output_shape(shape)
  spec = spec.with_arguments(image_shape=size)
  card = saved.make_card(
    spec,
    image_shape=shape,
    class_names=tuple("abc"),
    steps=steps,
    note={"x": (1, 2)},
  )
  trained = saved.TrainedModel(spec.make(nnx.Rngs(0)), card)
  capjax.save(trained, tmp_path / "x.safetensors")
  loaded = capjax.load(tmp_path / "x.safetensors")
  assert loaded.preprocessing == steps and loaded.card["note"] == {"x": [1, 2]}
  images = saved_cases.images(shape)
  prepared = loaded.preprocess(images)
  want = jax.vmap(steps)(images.astype(np.float32) / 255)
  np.testing.assert_allclose(prepared, want, atol=1e-5)
  scores = loaded.predict(images).scores
  np.testing.assert_allclose(scores, loaded(prepared).activations, atol=1e-5)


def test_a_card_of_another_model_is_refused(tmp_path):
  trained, other = map(saved_cases.trained, ("capsnet", "baseline"))
  mixed = saved.TrainedModel(trained.model, other.card)
  with pytest.raises(ValueError, match="describes another model; it lacks"):
    capjax.save(mixed, tmp_path / "x.safetensors")
  assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
  ("change", "words"),
  [
    ({"routing": "uniform", "num_iterations": None}, "class.*Dynamic"),
    ({"num_iterations": 2}, "=3.*not .*=2"),
  ],
  ids=["routing", "iterations"],
)
def test_a_card_of_other_settings_is_refused(tmp_path, change, words):
  """Their weights have the same shapes, and would mean something else."""
  trained = saved_cases.trained("capsnet")
  spec = saved_cases.SPECS["capsnet"].with_arguments(**change)
  card = trained.card | spec.as_json()
  with pytest.raises(ValueError, match=words):
    capjax.save(saved.TrainedModel(trained.model, card), tmp_path / "x")
  assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", saved_cases.SPECS)
def test_a_card_from_json_is_of_its_model(name):
  """Also with a list in place of a tuple, and in training mode."""
  spec = saved_cases.SPECS[name]
  listed = spec
  if "image_shape" in spec.arguments:
    shape = list(spec.arguments["image_shape"])
    listed = spec.with_arguments(image_shape=shape)
  for model in (spec.make(nnx.Rngs(0)), listed.make(nnx.Rngs(1))):
    model.train()
    again = specs.from_json(spec.as_json())
    assert named_tensors.other_setting(again, model) is None


def test_dtypes_are_compared_by_their_names():
  spec = saved_cases.SPECS["bfloat16"]
  model = spec.with_arguments(dtype=jnp.bfloat16).make(nnx.Rngs(0))
  assert named_tensors.other_setting(spec, model) is None
  single = saved_cases.SPECS["capsnet"]
  assert "bfloat16" in named_tensors.other_setting(single, model)


def test_some_parameters_can_be_kept_in_further_training():
  """The recipe of docs/models.md."""
  page = pathlib.Path(__file__).parents[2] / "docs" / "models.md"
  blocks = page.read_text().split("```python\n")
  (start,) = (x for x in blocks if "specs.from_json(digits.card)" in x)
  (recipe,) = (x for x in blocks if "optax.multi_transform" in x)
  names: dict = {}
  for block in (start, recipe):
    exec(block.partition("```")[0], names)  # noqa: S102 (of our own page)
  model, copied = names["parity"], names["copied"]
  before = {
    n: np.array(x) for n, x in named_tensors.named(nnx.state(model)).items()
  }
  images = jnp.full((2, *model.image_shape), 0.5)
  gradients = nnx.grad(lambda model: jnp.sum(model(images).poses))(model)
  names["optimizer"].update(model, gradients)
  for name, x in named_tensors.named(nnx.state(model)).items():
    is_same = np.array_equal(x, before[name])
    assert is_same or name not in copied
  assert not np.array_equal(
    model.classes.transforms[...], before["classes.transforms"]
  )


def test_models_of_old_class_paths_load(tmp_path):
  trained = saved_cases.trained("rbm")
  trained.card["class"] = "capjax.boltzmann.CapsuleRBM"
  capjax.save(trained, tmp_path / "x.safetensors")
  loaded = capjax.load(tmp_path / "x.safetensors")
  assert_same_state(loaded.model, trained.model)


def test_weights_start_another_model_with_new_classes():
  trained = saved_cases.trained("capsnet")
  spec = saved_cases.SPECS["capsnet"]
  spec = spec.with_arguments(num_classes=4)
  model = spec.make(nnx.Rngs(9))
  initial = spec.make(nnx.Rngs(9))
  copied, new = saved.start_from(model, trained)
  assert new == [
    "classes.bias", "classes.transforms", "decoder.layers.0.kernel",
  ]  # fmt: skip
  assert "conv.kernel" in copied and not set(copied) & set(new)
  sources = {True: trained.model, False: initial}
  for name, x in named_tensors.named(nnx.state(model)).items():
    want = named_tensors.named(nnx.state(sources[name in copied]))[name]
    np.testing.assert_array_equal(x, want)
  # The weights were copied: changing one model leaves the other.
  assert model.conv.kernel[...] is not trained.model.conv.kernel[...]


def test_statistics_start_another_model_but_constants_and_chains_do_not():
  model = saved_cases.SPECS["efficient"].make(nnx.Rngs(1))
  copied, new = saved.start_from(model, saved_cases.trained("efficient"))
  assert "norms.0.mean" in copied and not new
  for name, constant in (("matrix", "offsets"), ("rbm", "fantasy")):
    model = saved_cases.SPECS[name].make(nnx.Rngs(1))
    before = {
      n: np.array(x) for n, x in named_tensors.named(nnx.state(model)).items()
    }
    copied, new = saved.start_from(model, saved_cases.trained(name))
    kept = [n for n in before if constant in n]
    assert kept and not new and not set(kept) & set(copied)
    for n in kept:
      np.testing.assert_array_equal(
        named_tensors.named(nnx.state(model))[n], before[n]
      )


def test_weights_that_fit_nothing_are_refused():
  model = saved_cases.SPECS["rbm"].make(nnx.Rngs(1))
  with pytest.raises(
    ValueError, match="no weight of the CapsNet fits the Caps"
  ):
    saved.start_from(model, saved_cases.trained("capsnet"))


def test_a_card_is_json():
  card = saved_cases.trained("capsnet", metrics={"test_accuracy": 0.5}).card
  assert json.loads(json.dumps(card)) == card
  assert card["num_classes"] == 3 and card["preprocessing"] == {}


def test_a_trained_model_leaves_the_mode_of_the_given_one():
  model = saved_cases.SPECS["efficient"].make(nnx.Rngs(0))
  model.train()
  trained = saved_cases.trained("efficient")
  card = trained.card
  images = saved_cases.images(saved_cases.image_shape("efficient"))
  copied = saved.TrainedModel(model, card)
  assert not model.norms[0].use_running_average  # it can go on learning
  assert copied.model.norms[0].use_running_average
  want = copied.predict(images).scores
  copied.model.train()  # predictions do not depend on the mode
  np.testing.assert_array_equal(copied.predict(images).scores, want)
  assert not copied.model.norms[0].use_running_average


@pytest.mark.parametrize(
  ("options", "kind", "words"),
  [
    ({"num_labels": -1}, ValueError, "num_labels is -1"),
    ({"num_labels": 4}, ValueError, "num_labels is 4, of 3 class_names"),
    ({"num_labels": 2.0}, TypeError, "num_labels is 2.0"),
    ({"class_names": {"a", "b", "c"}}, ValueError, "in the order of"),
    ({"image_shape": (8, 0, 1)}, ValueError, "image_shape is 0"),
  ],
)
def test_a_card_that_says_nothing_of_use_is_refused(options, kind, words):
  make_card = inspect.unwrap(saved.make_card)
  spec = specs.Spec(capjax.CapsNet, {})
  usual = {"image_shape": (8, 8, 1), "class_names": ["a", "b", "c"]}
  for names in (usual["class_names"], np.array(["a", "b", "c"])):
    card = make_card(spec, **(usual | {"class_names": names}))
    assert card["num_labels"] == 1 and card["class_names"] == ["a", "b", "c"]
  with pytest.raises(kind, match=words):
    make_card(spec, **(usual | options))


@pytest.mark.usefixtures("as_a_user")
def test_numbers_of_numpy_are_saved(tmp_path):
  trained = saved_cases.trained("capsnet", num_labels=np.int64(1))
  capjax.save(trained, tmp_path / "model.safetensors")
  assert capjax.load(tmp_path / "model.safetensors").card["num_labels"] == 1


def test_images_are_not_prepared_within_a_trace():
  trained = saved_cases.trained("capsnet")
  shape = (2, *trained.card["image_shape"])
  with pytest.raises(TypeError, match="images are traced; prepare them outs"):
    jax.jit(trained.preprocess)(np.zeros(shape, np.uint8))


def test_a_model_without_its_card_is_refused(tmp_path):
  # Without the checks of annotations, which only tests have.
  save = inspect.unwrap(saved.save)
  with pytest.raises(TypeError, match="give TrainedModel.model, make_card"):
    save(nnx.Module(), tmp_path / "a.safetensors")


@pytest.mark.parametrize(
  ("change", "words"),
  [
    ({"class_names": ["a", "b"]}, "it has 2 class_names, and the model 3 cl"),
    ({"image_shape": [9, 9, 1]}, r"images become \[9, 9, 1\], and the model"),
  ],
)
def test_a_card_of_other_classes_or_images_is_refused(tmp_path, change, words):
  trained = saved_cases.trained("capsnet")
  wrong = saved.TrainedModel(trained.model, trained.card | change)
  with pytest.raises(ValueError, match=words):
    capjax.save(wrong, tmp_path / "x.safetensors")
  assert not os.listdir(tmp_path)


def test_a_card_is_compared_with_default_arguments(tmp_path):
  spec = specs.Spec(capjax.EfficientCapsNet, {})
  model = spec.make(rngs=nnx.Rngs(0))
  card = saved.make_card(
    spec, image_shape=(28, 28, 1), class_names=list(map(str, range(10)))
  )
  for change, words in (
    ({"class_names": ["a", "b"]}, "it has 2 class_names, and the model 10 cl"),
    ({"image_shape": [9, 9, 1]}, r"images become \[9, 9, 1\], and the model"),
  ):
    with pytest.raises(ValueError, match=words):
      saved.save(saved.TrainedModel(model, card | change), tmp_path / "x")


def test_a_folder_that_is_not_there_is_named(tmp_path):
  path = tmp_path / "missing" / "x.safetensors"
  with pytest.raises(FileNotFoundError, match="missing; make it, or name"):
    capjax.save(saved_cases.trained("capsnet"), path)


def test_a_folder_is_no_file(tmp_path):
  trained = saved_cases.trained("vae")
  with pytest.raises(IsADirectoryError, match="is a folder; name a file, whic"):
    saved.save(trained, tmp_path)
  assert not list(tmp_path.parent.glob("*.partial"))


def test_weights_start_from_a_trained_model_alone():
  model = saved_cases.trained("capsnet").model
  with pytest.raises(TypeError, match="trained is a str; give a trained mod"):
    inspect.unwrap(saved.fitting)(model, "digits")
