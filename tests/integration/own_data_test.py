"""Tests of the binaries on data of one's own, as real processes."""

import json
import shutil
import string

import image_files
import numpy as np
import processes
import pytest

STEPS = ("--num_steps=4", "--eval_every=2", "--log_every=2", "--batch_size=16")
SMALL = (*processes.SMALL, *STEPS, "--max_shift=1")


@pytest.fixture(scope="module")
def letters(train, tmp_path_factory):
  """Coloured images of 26 classes, and a CapsNet trained on them."""
  folder = tmp_path_factory.mktemp("somewhere")
  counts = dict.fromkeys(string.ascii_lowercase, 5)
  image_files.write(folder / "letters", counts, height=19, width=14, mode="RGB")
  code, printed = train(
    folder / "run", *SMALL, f"--dataset={folder / 'letters'}"
  )
  assert code == 0, printed
  assert "87 images of 19x14x3 to train on, 17 for validation" in printed
  assert "26 to test; 26 classes" in printed
  assert "a seeded fifth" in printed
  return folder


@pytest.fixture
def moved(letters, tmp_path):
  """The run, with its data elsewhere."""
  shutil.copytree(letters / "run", tmp_path / "run")
  shutil.copytree(letters / "letters", tmp_path / "new" / "letters")
  for path in (tmp_path / "run" / "flags.cfg",):
    old, new = str(letters), str(tmp_path / "gone")
    path.write_text(path.read_text().replace(old, new))
  return tmp_path


@pytest.mark.long
def test_records_hold_a_name_and_no_path(letters):
  run = letters / "run"
  summary = processes.summary_of(run)
  assert summary["dataset"] == summary["flags"]["dataset"] == "letters"
  assert "--dataset=letters --data_dir=DATA" in summary["command"]
  assert len(summary["data"]["train"]) == 64
  for name in ("summary.json", "provenance.json", "data.json", "model.json"):
    assert str(letters) not in (run / name).read_text()
  model = json.loads((run / "model.json").read_text())
  assert (model["image_shape"], model["num_classes"]) == ([19, 14, 3], 26)


@pytest.mark.long
@pytest.mark.parametrize("inside", [".", "new/run"])
def test_a_run_is_not_written_into_its_data(train, letters, inside):
  folder = letters / "letters"
  before = sorted(folder.rglob("*"))
  code, printed = train(folder / inside, *SMALL, f"--dataset={folder}")
  assert code == 1 and "is in the folder of the data" in printed
  assert "Traceback" not in printed and sorted(folder.rglob("*")) == before


@pytest.mark.long
def test_a_run_is_not_written_into_a_folder_of_images(train, letters):
  folder = letters / "letters"
  before = sorted(folder.rglob("*"))
  code, printed = train(folder, *SMALL)
  assert code == 1 and "holds folders of images, and" in printed
  assert sorted(folder.rglob("*")) == before


@pytest.mark.long
def test_the_same_command_resumes(train, letters, tmp_path):
  shutil.copytree(letters / "run", tmp_path / "run")
  before = processes.metrics_of(tmp_path / "run")
  code, printed = train(
    tmp_path / "run", *SMALL, f"--dataset={letters / 'letters'}/"
  )
  assert code == 0, printed
  assert processes.metrics_of(tmp_path / "run") == before


@pytest.mark.long
def test_evaluation_finds_the_data(train, letters):
  code, printed = train(
    letters / "run", "--suite=accuracy,attacks,diagnostics,affnist_like",
    "--images=10", "--views=2", binary="evaluate",
  )  # fmt: skip
  assert code == 0, printed
  assert str(letters) not in (letters / "run" / "evaluation.json").read_text()
  record = processes.evaluation_of(letters / "run")["accuracy"]
  assert record["dataset"] == "letters"
  assert record["num_images"]["test_accuracy"] == 26


@pytest.mark.long
def test_moved_data_are_named_by_their_folder(train, moved):
  code, printed = train(moved / "run", binary="evaluate")
  assert code == 1
  assert "'letters'" in printed and "Traceback" not in printed
  where = f"--data_dir={moved / 'new'}"
  code, printed = train(moved / "run", where, binary="evaluate")
  assert code == 0, printed
  words = ("--dataset=letters", where)
  code, printed = train(moved / "run", *SMALL, *words)
  assert code == 0, printed


@pytest.mark.long
def test_changed_data_are_refused(train, moved):
  image_files.picture(1000, 19, 14, "RGB").save(
    moved / "new" / "letters" / "a" / "0.png"
  )
  where = f"--data_dir={moved / 'new'}"
  code, printed = train(moved / "run", where, binary="evaluate")
  assert code == 1
  assert "the data differ from those of the run" in printed
  code, printed = train(moved / "run", *SMALL, "--dataset=letters", where)
  assert code == 1
  assert "started with other data" in printed


@pytest.mark.long
def test_images_are_resized_and_grey(train, letters, tmp_path):
  code, printed = train(
    tmp_path / "run", *SMALL, f"--dataset={letters / 'letters'}",
    "--image_size=16,13", "--grayscale",
  )  # fmt: skip
  assert code == 0, printed
  assert "of 16x13x1" in printed
  flags = processes.summary_of(tmp_path / "run")["flags"]
  assert flags["image_size"] == ["16", "13"] and flags["grayscale"]
  code, printed = train(tmp_path / "run", binary="evaluate")
  assert code == 0, printed


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
  """An archive of coloured images of 25x23."""
  rng = np.random.default_rng(0)
  path = tmp_path_factory.mktemp("archive") / "dots.npz"
  labels = np.arange(120) % 3
  images = rng.integers(0, 256, (120, 25, 23, 3), np.uint8)
  np.savez(path, images=images, labels=labels)
  return path


@pytest.fixture(scope="module")
def marks(tmp_path_factory):
  """Images of which each third is white where its class is present."""
  rng = np.random.default_rng(0)
  labels = rng.integers(0, 2, (400, 3))
  images = np.repeat(255 * labels[:, np.newaxis], 4, axis=2)
  images = np.repeat(images, 12, axis=1).astype(np.uint8)
  path = tmp_path_factory.mktemp("archive") / "marks.npz"
  np.savez(path, images=images, labels=labels)
  return path


@pytest.mark.long_after_first
@pytest.mark.parametrize("kind", ["capsules", "baseline"])
@pytest.mark.long
def test_several_classes_of_an_image_are_learnt(train, tmp_path, marks, kind):
  flags = (
    SMALL if kind == "capsules" else (*processes.BASELINE, "--max_shift=0")
  )
  code, printed = train(
    tmp_path / "run", *flags, f"--dataset={marks}", "--num_steps=150",
    "--eval_every=75", "--log_every=50", "--learning_rate=0.01",
    "--max_shift=0", "--batch_size=32",
  )  # fmt: skip
  assert code == 0, printed
  scores = processes.summary_of(tmp_path / "run")["metrics"]
  assert scores["test_accuracy"] > 0.9  # 1/8 for random guesses
  assert scores["test_class_accuracy"] >= scores["test_accuracy"]
  code, printed = train(tmp_path / "run", "--suite=attacks", binary="evaluate")
  assert code == 1
  assert "its suites are accuracy" in printed


@pytest.mark.parametrize(
  ("binary", "flags"),
  [("train_vae", ()), ("train_capsnet", (*SMALL, "--routing=self"))],
)
def test_several_classes_of_an_image_are_refused(
  train, tmp_path, marks, binary, flags
):
  code, printed = train(
    tmp_path / "run", f"--dataset={marks}", *flags, binary=binary
  )
  assert code == 1
  assert "several classes at once" in printed and "Traceback" not in printed


@pytest.mark.long
@pytest.mark.parametrize(
  "binary,flags",
  [
    (
      "train_scae",
      ("--num_parts=3", "--num_objects=4", "--template_size=4",
       "--num_features=2", "--encoder_features=4"),
    ),
    ("train_vae", ()),
    ("train_boltzmann", ("--num_capsules=4", "--capsule_size=3")),
    (
      "train_generative",
      ("--num_capsules=3,2", "--conv_features=4", "--width=4",
       "--template_size=5"),
    ),
  ],
)  # fmt: skip
def test_other_binaries_take_any_shape(train, archive, tmp_path, binary, flags):
  code, printed = train(
    tmp_path / "run", f"--dataset={archive}", *STEPS, *flags, binary=binary
  )
  assert code == 0, printed
  summary = processes.summary_of(tmp_path / "run")
  assert summary["dataset"] == "dots.npz"
  assert np.isfinite(summary["metrics"]["best_step"])


@pytest.mark.parametrize(
  "words,wants",
  [
    (["--dataset=nowhere/letters"], ["nothing is at nowhere/letters"]),
    (["--image_size=1,2,3"], ["image_size", "32 or 37,23"]),
    (["--image_size=big"], ["image_size", "32 or 37,23"]),
  ],
)
def test_bad_flags_are_refused(train, tmp_path, words, wants):
  code, printed = train(tmp_path / "run", *SMALL, *words)
  assert code == 1
  for want in wants:
    assert want in printed
  assert "Traceback" not in printed
  assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_images_without_labels_train_a_model(train, tmp_path):
  folder = tmp_path / "photographs"
  image_files.write(folder, {"train": 40, "test": 8}, height=12, width=12)
  words = *STEPS, f"--dataset={folder}"
  code, printed = train(tmp_path / "refused", *words, *processes.SMALL)
  assert code == 1 and "Traceback" not in printed
  assert "photographs: the images have no labels, which this task" in printed
  run = tmp_path / "run"
  words = *words, "--num_latents=3"
  code, printed = train(run, *words, binary="train_vae")
  assert code == 0, printed
  assert "to test; without labels" in printed
  assert "suite spectra" not in printed
  summary = processes.summary_of(run)
  assert summary["num_images"]["test_elbo"] == 8
  assert summary["data"]["class_names"] == []
  code, printed = train(run, "--suite=bound", binary="evaluate")
  assert code == 0, printed
  code, printed = train(run, "--suite=spectra", binary="evaluate")
  assert code == 1 and "spectra: not for the model" in printed
  files = sorted(map(str, (folder / "test").iterdir()))
  out = tmp_path / "latents.csv"
  code, printed = processes.Running(
    "predict", f"--model={run}", f"--out={out}", *files
  ).wait()
  assert code == 0, printed
  header, *rows = out.read_text().splitlines()
  assert header.startswith("file,latents_0,") and len(rows) == 8
