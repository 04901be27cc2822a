"""The models that come with the package, measured again."""

import hashlib
import re
import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import saved_cases
from flax import nnx

import capjax
from capjax import data, pretrained, saved
from capjax.data.sources import constellations
from capjax.evaluation import segmentation


@pytest.mark.parametrize("name", pretrained.names())
def test_cards_say_what_was_measured_with_the_stored_weights(name):
  card = pretrained.load(name).card
  measured = card["measured"]
  assert measured["dirty"] is False and card["dirty"] is False
  assert re.fullmatch("[0-9a-f]{40}", measured["commit"])
  assert measured["num_images"] >= measured["num_first_images"] > 300
  assert card["name"] == name and len(card["data"]["test"]) == 64


@pytest.mark.parametrize("name", pretrained.names())
@pytest.mark.long_after_first
def test_the_measure_is_that_of_the_card(name, request):
  trained = pretrained.load(name)
  dataset = trained.card["data"]["name"]
  computed = dataset in ("digits", "constellations")
  folder = None if computed else request.getfixturevalue("data_dir")
  if folder and not (folder / dataset).is_dir():
    pytest.skip(f"no {dataset} in {folder}")
  test = data.load(dataset, "test", folder)
  assert data.fingerprint(test) == trained.card["data"]["test"]
  count = trained.card["measured"]["num_first_images"]
  got = pretrained.measure(trained, test.images[:count], test.labels[:count])
  assert got == pytest.approx(trained.card["measured"]["first_images"], 1e-3)

  # Images upside down, or a damaged model of points.
  images, labels = test.images[:200], test.labels[:200]
  right = pretrained.measure(trained, images, labels)
  if dataset == "constellations":
    graph, state = nnx.split(trained.model)
    zeros = jax.tree.map(jnp.zeros_like, state)
    trained = saved.TrainedModel(nnx.merge(graph, zeros), trained.card)
  wrong = pretrained.measure(trained, images[:, ::-1], labels)
  assert wrong != pytest.approx(right, 1e-2)


@pytest.mark.parametrize(
  "labels", [np.zeros((4, 2), np.int32), np.zeros(4, np.float32), np.array(0)]
)
def test_constellations_have_numbers(labels):
  trained = pretrained.load("constellation")
  with pytest.raises(ValueError, match="labels are .*; give whole numbers"):
    pretrained.measure(trained, np.zeros((4, 1, 1, 1), np.uint8), labels)


def test_points_are_scored_as_segments():
  trained = pretrained.load("constellation")
  numbers = np.arange(40, dtype=np.int32)
  sampled = jax.vmap(constellations.numbered)(numbers)
  found = trained(sampled.points, sampled.presence).winners
  want = segmentation.score(
    *map(np.asarray, (found, sampled.objects, sampled.presence))
  )
  images = np.zeros((40, 1, 1, 1), np.uint8)
  got = pretrained.measure(trained, images, numbers)
  assert got == {"segmentation_accuracy": pytest.approx(want.accuracy)}


def test_weights_load_where_new_models_are_wider():
  name = "transforming_mnist"
  narrow = pretrained.load(name)
  with jax.enable_x64(True):
    wide = pretrained.load(name)
  for one, other in zip(
    *(jax.tree.leaves(nnx.state(x.model)) for x in (narrow, wide)), strict=True
  ):
    np.testing.assert_array_equal(one, other)


def test_together_they_fit_into_the_wheel():
  sizes = [x.stat().st_size for x in pretrained.FOLDER.glob("*.safetensors")]
  assert len(sizes) == len(pretrained.names()) and sum(sizes) <= 32 * 2**20


def test_the_table_has_the_digest_of_every_file():
  for path in pretrained.FOLDER.glob("*.safetensors"):
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert pretrained._table()[path.stem] == digest


@pytest.fixture
def copied(tmp_path, monkeypatch):
  folder = tmp_path / "pretrained"
  shutil.copytree(pretrained.FOLDER, folder)
  monkeypatch.setattr(pretrained, "FOLDER", folder)
  return folder / "digits.safetensors"


def test_a_changed_file_is_refused(copied):
  whole = bytearray(copied.read_bytes())
  whole[-9] ^= 1
  copied.write_bytes(whole)
  with pytest.raises(ValueError, match="install capjax again"):
    pretrained.load("digits")


def test_a_missing_file_is_named(copied):
  copied.unlink()
  with pytest.raises(FileNotFoundError, match="digits.safetensors is missing"):
    pretrained.load("digits")


def test_an_unknown_name_is_refused():
  with pytest.raises(ValueError, match="'x'; give one of .*digits"):
    pretrained.load("x")


def test_a_name_or_a_path_is_loaded(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  trained = pretrained.load_any("digits")
  other = saved.TrainedModel(trained.model, {**trained.card, "note": "other"})
  capjax.save(other, "digits")
  assert "note" not in pretrained.load_any("digits").card
  assert pretrained.load_any("./digits").card["note"] == "other"
  with pytest.raises(FileNotFoundError, match="not exist.* or one of .*digits"):
    pretrained.load_any("letters")
  with pytest.raises(FileNotFoundError) as caught:
    pretrained.load_any("runs/letters")
  assert "digits" not in str(caught.value)


def test_measures_are_those_of_predictions():
  trained = saved_cases.trained("vae")
  images = saved_cases.images((12, 12, 1))
  (error,) = pretrained.measure(trained, images, np.zeros(5)).values()
  rendered = trained.predict(images).outputs["reconstructions"]
  want = np.mean(np.abs(rendered - images / 255))
  np.testing.assert_allclose(error, want, rtol=1e-5)
  sets = saved_cases.trained("capsnet", num_labels=None)
  classes = sets.predict(images).classes.astype(int)
  classes[0, 0] = 1 - classes[0, 0]
  assert pretrained.measure(sets, images, classes) == {"accuracy": 0.8}


def test_models_of_two_labels_are_measured_on_overlays():
  """Blank images tell nothing; a model that is told the classes is right."""
  trained = saved_cases.trained("capsnet", num_labels=2)
  size = trained.model.image_shape[0] - 2
  labels = np.arange(6) % 3
  images = np.zeros((6, size, size, 1), np.uint8)
  images[np.arange(6), 2, 2, 0] = 80 * (labels + 1)

  class Told(capjax.CapsNet):
    """Its three classes are pixels of 80, 160 and 240; two are overlaid."""

    def __init__(self):
      self.image_shape = trained.model.image_shape
      self.decoder = None

    def __call__(self, overlaid):
      bright = jnp.sort(overlaid.reshape(len(overlaid), -1))[:, -2:] * 255 / 80
      found = jnp.round(bright).astype(int) - 1
      return SimpleNamespace(activations=jax.nn.one_hot(found, 3).sum(axis=1))

  told = saved.TrainedModel(Told(), trained.card)
  accuracy = pretrained.measure(told, images, labels)["accuracy"]
  assert accuracy > 0.6  # pixels may fall on one another
  wrong = pretrained.measure(told, images[::-1], labels)["accuracy"]
  assert wrong < accuracy


@pytest.mark.parametrize("name", ["baseline", "scae"])
def test_other_models_of_two_labels_are_measured_too(name):
  """By the scores that `predict` has."""
  trained = saved_cases.trained(name, num_labels=2)
  height, width, channels = trained.model.image_shape
  blank = np.zeros((6, height, width, channels), np.uint8)
  first, second = trained.predict(blank).classes[0]
  third = 3 - first - second
  for other, want in ((second, 1.0), (third, 0.0)):
    labels = np.tile([first, other], 3)
    got = pretrained.measure(trained, blank[:, 2:, 2:], labels)
    assert got == {"accuracy": want}


def test_two_labels_count_in_any_order():
  trained = saved_cases.trained("capsnet", num_labels=2)
  images = saved_cases.images((12, 12, 1))
  found = trained.predict(images)
  assert repr(found) == "<Prediction: classes [5, 2], activations [5, 3]>"
  classes = found.classes
  for labels in (classes, classes[:, ::-1]):
    assert pretrained.measure(trained, images, labels) == {"accuracy": 1.0}
  with pytest.raises(ValueError, match=r"labels are \[5, 3\]; give \[5, 2\]"):
    pretrained.measure(trained, images, np.zeros((5, 3), int))
