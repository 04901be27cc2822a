"""The models that come with the package, measured again."""

import re
import shutil

import pytest

from capjax import data, pretrained


@pytest.mark.parametrize("name", pretrained.names())
def test_cards_say_what_was_measured_with_the_stored_weights(name):
  card = pretrained.load(name).card
  measured = card["measured"]
  assert measured["dirty"] is False and card["dirty"] is False
  assert re.fullmatch("[0-9a-f]{40}", measured["commit"])
  assert measured["num_images"] >= measured["num_first_images"] > 300
  assert card["name"] == name and len(card["data"]["test"]) == 64


@pytest.mark.parametrize("name", pretrained.names())
def test_the_measure_is_that_of_the_card(name, request):
  trained = pretrained.load(name)
  dataset = trained.card["data"]["name"]
  folder = None if dataset == "digits" else request.getfixturevalue("data_dir")
  test = data.load(dataset, "test", folder)
  assert data.fingerprint(test) == trained.card["data"]["test"]
  count = trained.card["measured"]["num_first_images"]
  got = pretrained.measure(trained, test.images[:count], test.labels[:count])
  assert got == pytest.approx(trained.card["measured"]["first_images"], 1e-3)
  wrong = pretrained.measure(
    trained, test.images[:count, ::-1], test.labels[:count]
  )
  assert wrong != pytest.approx(got, 1e-3)


def test_together_they_fit_into_the_wheel():
  sizes = [x.stat().st_size for x in pretrained.FOLDER.glob("*.safetensors")]
  assert len(sizes) == len(pretrained.names()) and sum(sizes) <= 32 * 2**20


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
