"""Models that are added to the pretrained ones."""

import numpy as np
import pytest
from flax import nnx

from capjax import data, pretrained, saved, specs
from experiments import export


def small(path, **arguments):
  """A small network of its own card."""
  spec = specs.from_json({"class": path, "arguments": arguments})
  card = saved.make_card(
    spec,
    image_shape=(8, 8, 1),
    class_names=["a", "b", "c"],
    num_parameters=10**6,
    metrics={"test_accuracy": 0.5, "test_reconstruction_loss": 3.0},
    num_images={"test_accuracy": 4, "test_reconstruction_loss": 4},
  )
  return saved.TrainedModel(spec.make(nnx.Rngs(0)), card)


def capsnet(decoder_features):
  return small(
    "capjax.capsnet.CapsNet", image_shape=(8, 8, 1), num_classes=3,
    conv_features=4, conv_kernel=3, num_types=2, primary_kernel=3,
    decoder_features=decoder_features,
  )  # fmt: skip


@pytest.fixture
def test_set():
  rng = np.random.default_rng(0)
  images = rng.integers(0, 256, (7, 8, 8, 1), np.uint8)
  return data.Dataset(images, np.arange(7) % 3, 3, {})


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """A folder of pretrained models without any."""
  monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
  return tmp_path


@pytest.mark.parametrize("half", [False, True])
def test_an_added_model_is_shipped_with_its_measures(folder, test_set, half):
  trained = capsnet((8,))
  path = export.add_pretrained(trained, "net", test_set, half=half)
  assert path == str(folder / "net.safetensors")
  loaded = pretrained.load("net")
  assert pretrained.names() == ["net"] and loaded.card["name"] == "net"
  found = loaded.predict(test_set.images)
  measured = loaded.card["measured"]
  assert measured["accuracy"] == np.mean(found.classes == test_set.labels)
  assert measured["num_images"] == measured["num_first_images"] == 7
  scores = trained.predict(test_set.images).scores
  np.testing.assert_allclose(found.scores, scores, atol=2e-3 if half else 0)


def test_a_failed_measure_changes_no_shipped_model(folder, test_set):
  with pytest.raises(ValueError, match="give .N 8 8 1."):
    export.add_pretrained(
      capsnet((8,)), "net", test_set._replace(images=test_set.images[:, :6])
    )
  assert not list(folder.iterdir())


def test_a_network_without_decoder_gives_the_same_classes(folder, test_set):
  whole = capsnet((8,))
  bare = export.without_decoder(whole)
  assert bare.model.decoder is None
  np.testing.assert_array_equal(
    bare.predict(test_set.images).scores, whole.predict(test_set.images).scores
  )
  # Of 3 x 3 convolutions to 4 and 16 channels, and 8 matrices of 3 classes.
  votes = 8 * 3 * 8 * 16 + 3 * 16
  assert bare.card["num_parameters"] == 9 * 4 + 4 + 9 * 4 * 16 + 16 + votes
  assert bare.card["metrics"] == {"test_accuracy": 0.5}
  assert bare.card["num_images"] == {"test_accuracy": 4}
  assert "test_reconstruction_loss" in whole.card["metrics"]
  assert whole.model.decoder is not None
  export.add_pretrained(bare, "bare", test_set)
  assert pretrained.load("bare").model.decoder is None


@pytest.mark.parametrize("make", [
  lambda: capsnet(()),
  lambda: small(
    "capjax.baselines.CapsNetBaseline", image_shape=(8, 8, 1), num_classes=3,
    conv_features=(4,), conv_kernels=(3,), dense_features=(4,),
  ),
])  # fmt: skip
def test_only_a_decoder_can_be_left_out(make):
  with pytest.raises(ValueError, match="has no decoder of class capsules"):
    export.without_decoder(make())
