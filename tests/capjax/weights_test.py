"""Files that are absent, foreign or damaged, and what is said about them."""

import json
import struct

import numpy as np
import pytest
import safetensors.numpy
import saved_cases

import capjax
from capjax import weights


@pytest.fixture
def path(tmp_path):
  path = tmp_path / "x.safetensors"
  capjax.save(saved_cases.trained("vae"), path)
  return path


def rewrite(path, change):
  """Writes a file again after a change of its card or tensors."""
  card, tensors = weights.read(path)
  card, tensors = change(card, tensors) or (card, tensors)
  weights.write(path, card, tensors)


def test_a_name_without_a_folder_may_be_of_a_shipped_model():
  hint = "capjax.pretrained.load takes the names of shipped models"
  with pytest.raises(FileNotFoundError, match=hint):
    weights.find("letters")
  for path in ("runs/letters", "/letters"):
    with pytest.raises(FileNotFoundError) as caught:
      weights.find(path)
    assert hint not in str(caught.value)


def test_an_absent_file(tmp_path):
  with pytest.raises(FileNotFoundError, match="nothing does not exist; give"):
    capjax.load(tmp_path / "nothing")


@pytest.mark.parametrize(
  ("files", "words"),
  [
    ([], "the folder holds no run"),
    (["provenance.json"], "is not finished; repeat its training command"),
    (["provenance.json", "summary.json"], "capjax export --workdir=.*run"),
  ],
)
def test_a_folder_without_a_model(tmp_path, files, words):
  run = tmp_path / "run"
  run.mkdir()
  for name in files:
    (run / name).write_text("{}")
  with pytest.raises(
    FileNotFoundError, match=f"model.safetensors is .*{words}"
  ):
    capjax.load(run)


def test_the_folder_of_a_run(path):
  path.rename(path.with_name("model.safetensors"))
  assert capjax.load(path.parent).card["num_classes"] == 3


@pytest.mark.parametrize(
  ("content", "words"),
  [
    (b"", "is no safetensors file; give the folder of a run, or a file"),
    (b"\x89PNG\r\n\x1a\n and so on", "is no safetensors file"),
    (struct.pack("<Q", 500) + b"{", "is cut off within its header"),
    (struct.pack("<Q", 5) + b"other", "is damaged"),
  ],
)
def test_other_files(path, content, words):
  path.write_bytes(content)
  with pytest.raises(ValueError, match=f"x.safetensors {words}.*[.]$"):
    capjax.load(path)


def test_tensors_without_a_card(path):
  tensors = {"a": np.zeros(3, np.float32)}
  for metadata in (None, {"format": "pt"}):
    safetensors.numpy.save_file(tensors, path, metadata)
    with pytest.raises(ValueError, match="holds no card: capjax.save did not"):
      capjax.load(path)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.5, 0.99])
def test_a_file_that_was_cut_off(path, share):
  content = path.read_bytes()
  path.write_bytes(content[: int(share * len(content))])
  with pytest.raises(ValueError, match="cut off|no safetensors"):
    capjax.load(path)


def test_every_flipped_bit_is_found(path):
  """In bytes over the whole file, of header, card and tensors."""
  content = path.read_bytes()
  header = 8 + struct.unpack("<Q", content[:8])[0]
  padding = len(content[8:header].rstrip(b" ")) + 8
  rng = np.random.default_rng(0)
  places = [*range(0, padding, 7), *rng.integers(header, len(content), 40)]
  for place in places:
    changed = bytearray(content)
    changed[place] ^= 1 << int(rng.integers(8))
    path.write_bytes(changed)
    with pytest.raises(ValueError, match="x.safetensors"):
      capjax.load(path)
  path.write_bytes(content)
  capjax.load(path)


def test_a_newer_format(path):
  rewrite(path, lambda card, tensors: ({**card, "format": 2}, tensors))
  with pytest.raises(ValueError, match="card of format 2, .* reads 1; install"):
    capjax.load(path)


@pytest.mark.parametrize("name", ["class", "arguments", "preprocessing"])
def test_a_card_without_an_entry(path, name):
  rewrite(path, lambda card, _: card.pop(name) and None)
  with pytest.raises(ValueError, match=f"has a card without {name}"):
    capjax.load(path)


@pytest.mark.parametrize(
  ("entry", "words"),
  [
    ({"class": "capjax.capsnet.Other"}, "is no model of capjax"),
    ({"class": "os.system"}, "is no model of capjax"),
    ({"arguments": {"depth": 3}}, "depth"),
    ({"arguments": {"num_latents": 0}}, "num_latents"),
    ({"preprocessing": {"rotate": 1}}, "unknown preprocessing rotate"),
  ],
)
def test_a_card_that_cannot_be_used(path, entry, words):
  rewrite(path, lambda card, tensors: (card | entry, tensors))
  with pytest.raises(ValueError, match=f"cannot use: .*{words}"):
    capjax.load(path)


@pytest.mark.parametrize(
  ("change", "words"),
  [
    (lambda x: x.pop("code.bias"), "it lacks code.bias;"),
    (lambda x: x.clear(), "it lacks code.bias and .* more"),
    (lambda x: x.update(extra=x["code.bias"]), "it has besides extra"),
    (lambda x: x.update({"code.bias": np.zeros(5, np.float32)}),
     r"code.bias is float32 \[5\], not float32 \[6\]"),
    (lambda x: x.update({"code.bias": np.zeros(6, np.int32)}),
     r"code.bias is int32 \[6\], not float32 \[6\]"),
  ],
)  # fmt: skip
def test_tensors_that_do_not_fit(path, change, words):
  rewrite(path, lambda card, tensors: (change(tensors), None)[1])
  with pytest.raises(ValueError, match=f"does not fit capjax.base.*{words}"):
    capjax.load(path)


def test_a_failed_write_keeps_the_old_file(path, monkeypatch):
  before = path.read_bytes()

  def full(file):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(weights.os, "fsync", full)
  with pytest.raises(OSError, match="No space left"):
    capjax.save(saved_cases.trained("vae", seed=1), path)
  assert path.read_bytes() == before
  assert [x.name for x in path.parent.iterdir()] == ["x.safetensors"]


def test_a_card_that_is_no_card(path):
  _, tensors = weights.read(path)
  for text in ("[1]", "{", json.dumps({"class": "x"})):
    safetensors.numpy.save_file(tensors, path, {"capjax": text})
    with pytest.raises(ValueError, match="its card is invalid"):
      capjax.load(path)
