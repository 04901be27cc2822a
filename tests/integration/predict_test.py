"""Predictions of image files by a model, as a user asks for them."""

import csv
import re

import numpy as np
import processes
import pytest
import saved_cases

import capjax

image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Models, and files of the images that they take and of others."""
  folder = tmp_path_factory.mktemp("predict")
  capjax.save(saved_cases.trained("capsnet"), folder / "model.safetensors")
  capjax.save(saved_cases.trained("rbm"), folder / "rbm.safetensors")
  images = saved_cases.images((12, 12, 1), 3)
  for number, pixels in enumerate(images):
    image.fromarray(pixels[..., 0]).save(folder / f"{number}.png")
  colour = np.repeat(np.repeat(images[0], 3, axis=2), 2, axis=0)
  image.fromarray(np.repeat(colour, 2, axis=1)).save(folder / "large.png")
  (folder / "text.png").write_text("no image")
  dark = np.arange(144, dtype=np.uint16).reshape(12, 12)
  image.fromarray(dark).save(folder / "dark.png")
  return folder


def predict(folder, *words):
  return processes.Running("predict", *words).wait()


@pytest.mark.long
def test_files_are_predicted(folder):
  names = [str(folder / f"{n}.png") for n in range(3)]
  out = folder / "classes.csv"
  code, printed = predict(folder, f"--model={folder}", *names, f"--out={out}")
  assert code == 0, printed
  header, *rows = csv.reader(out.read_text().splitlines())
  assert header == ["file", "class", *(f"activations_{x}" for x in "abc")]
  trained = capjax.load(folder)
  found = trained.predict(saved_cases.images((12, 12, 1), 3))
  for row, name, index, scores in zip(
    rows, names, found.classes, found.scores, strict=True
  ):
    assert row[:2] == [name, "abc"[index]]
    np.testing.assert_allclose([float(x) for x in row[2:]], scores, atol=1e-5)


@pytest.mark.long
def test_other_files_are_resized_or_named(folder):
  names = "0", "text", "large", "absent", "dark"
  words = [str(folder / f"{name}.png") for name in names]
  code, printed = predict(folder, f"--model={folder}", *words)
  assert code == 1 and "Traceback" not in printed
  table = [x for x in printed.splitlines() if x.startswith(str(folder))]
  rows = {x.split(",")[0]: x.split(",")[1:] for x in table if "," in x}
  assert rows.keys() == {words[0], words[2]}
  # Every pixel was written four times.
  small, large = ([float(x) for x in rows[words[n]][1:]] for n in (0, 2))
  np.testing.assert_allclose(small, large, atol=0.1)
  assert f"{words[2]}: 24x24 was resized to 12x12" in printed
  for name in (words[1], *words[3:]):
    assert f"not read: {name}: " in printed
  assert "of 16 bits are at most 143 of 65535, and would be black" in printed
  assert f"{words[1]}: is no image that Pillow reads" in printed


@pytest.mark.long
def test_where_no_file_is_read_an_older_table_stays(folder):
  out = folder / "kept.csv"
  out.write_text("old")
  words = [str(folder / "absent.png"), f"--out={out}"]
  code, printed = predict(folder, f"--model={folder}", *words)
  assert code == 1 and "nothing is written" in printed
  assert out.read_text() == "old"


@pytest.mark.long
def test_presences_have_columns(folder):
  model = folder / "rbm.safetensors"
  code, printed = predict(folder, f"--model={model}", str(folder / "0.png"))
  assert code == 0, printed
  header = next(x for x in printed.splitlines() if x.startswith("file,"))
  assert header == "file,activities_1_0,activities_1_1,activities_1_2"


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (["--model=nothing", "0.png"], "nothing does not exist; .* or one of "),
    (["--model=digits"], "no image is given; name files after the flags"),
  ],
)
def test_requests_that_cannot_be_met(folder, words, message):
  code, printed = predict(folder, *words)
  assert code == 1 and "Traceback" not in printed
  assert re.search(message, printed), printed
