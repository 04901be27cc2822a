"""Tests of the binaries that train Helmholtz machines and auto-encoders."""

import json
import shutil
import signal
import time

import numpy as np
import processes
import pytest

from capjax import specs
from capjax.energy import rbm
from experiments.training import train_step

MAX_ERROR = 0.21  # that of pixels is less, that of the capsules above them more
SMALL = (
  "--num_capsules=4,3", "--capsule_size=3", "--num_sweeps=2", "--num_steps=60",
  "--pretrain_steps=40", "--eval_every=20", "--log_every=10",
  f"--max_error={MAX_ERROR}",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "helmholtz"
  code, printed = train(workdir, *SMALL, binary="train_helmholtz")
  assert code == 0, printed
  return workdir


def test_a_run_trains_layer_by_layer_and_then_all(trained):
  summary = processes.summary_of(trained)
  assert summary["num_steps"] == 60
  scores = summary["metrics"]
  assert 0 < scores["test_reconstruction_error"] < 0.5
  assert {"probe_accuracy_layer_1", "probe_accuracy_layer_2"} <= scores.keys()
  figures = {path.stem for path in (trained / "figures").glob("*.png")}
  assert figures == {
    "learning_curves", "dreams_ancestral", "dreams_gibbs", "spectra_layer_1",
    "spectra_layer_2",
  }  # fmt: skip
  for layer in ("layer_1", "layer_2"):
    steps = [line["step"] for line in processes.metrics_of(trained / layer)]
    assert max(steps) == 40


def test_layers_tell_their_models(trained):
  wants = {"layer_1": ((8, 8, 1), 4), "layer_2": ((4, 3), 3)}
  for layer, (image_shape, num_capsules) in wants.items():
    record = json.loads((trained / layer / "model.json").read_text())
    machine = specs.from_json(record).shapes()
    assert isinstance(machine, rbm.CapsuleRBM)
    assert machine.image_shape == image_shape
    assert machine.hidden.shape[1:] == (num_capsules, 3)
    assert record["num_parameters"] == train_step.num_parameters(machine)
    assert record["image_shape"] == [8, 8, 1]


def test_errors_are_bounded_of_pixels_alone(trained):
  for folder, beyond in (("layer_1", False), ("layer_2", True), ("", False)):
    for line in processes.metrics_of(trained / folder):
      assert line["split"] != "restart"
      assert (line["reconstruction_error"] > MAX_ERROR) == beyond


def test_its_seconds_are_those_of_all_phases(trained):
  spent = 0.0
  for folder in ("layer_1", "layer_2", ""):
    step = 0
    for line in processes.metrics_of(trained / folder, timed=True):
      if line["split"] == "train":
        spent += (line["step"] - step) * 100 / line["images_per_second"]
        step = line["step"]
  assert processes.summary_of(trained)["seconds"] > spent


@pytest.mark.long
def test_a_folder_without_updates_takes_another_length(
  train, trained, tmp_path
):
  """As after a kill before the first update."""
  record = json.loads((trained / "provenance.json").read_text())
  record["flags"] |= {"num_steps": 3, "pretrain_steps": 3}
  (tmp_path / "provenance.json").write_text(json.dumps(record))
  words = [x for x in SMALL if not x.startswith(("--num_steps", "--pretrain"))]
  code, printed = train(
    tmp_path, *words, "--num_steps=2", binary="train_helmholtz"
  )
  assert code == 0, printed
  assert processes.metrics_of(tmp_path / "layer_1")[-1]["step"] == 2


@pytest.mark.long
def test_bounds_of_a_trained_machine(train, trained):
  code, printed = train(
    trained, "--suite=bound", "--images=50", binary="evaluate"
  )
  assert code == 0, printed
  scores = processes.evaluation_of(trained)["bound"]["metrics"]
  # 64 pixels: fair coins would give -44 nats.
  for inputs in ("", "_mean_field"):
    elbo, bound = (
      scores[f"{name}{inputs}"] for name in ("elbo", "importance_bound")
    )
    assert -44 < elbo < bound < -15
  assert scores["elbo"] != scores["elbo_mean_field"]


@pytest.mark.long
@pytest.mark.parametrize(
  "words",
  [
    ("--visible=gaussian", "--hidden=gaussian", "--learning_rate=0.001",
     "--pretrain_learning_rate=0.001", "--pretrain_steps=10"),
    ("--num_capsules=3", "--mean_field_iterations=0", "--pretrain_steps=10"),
  ],
)  # fmt: skip
def test_other_machines_train(train, tmp_path, words):
  code, printed = train(tmp_path, *SMALL, *words, binary="train_helmholtz")
  assert code == 0, printed
  scores = processes.summary_of(tmp_path)["metrics"]
  assert np.isfinite(list(scores.values())).all()
  trained_by = "exact" if "--mean_field_iterations=0" in words else "mean_field"
  errors = "test_reconstruction_error"
  assert scores[errors] == scores[f"{errors}_{trained_by}"]
  assert scores[f"{errors}_mean_field"] != scores[f"{errors}_exact"]
  if "gaussian" in words[0]:
    code, printed = train(
      tmp_path, "--suite=bound", "--images=50", binary="evaluate"
    )
    assert code == 0, printed
    scores = processes.evaluation_of(tmp_path)["bound"]["metrics"]
    # As dense as with all pixels at their means, of the greatest precision.
    most = 64 * np.log(10 / (2 * np.pi)) / 2
    assert -most < scores["elbo"] < scores["importance_bound"] < most


@pytest.mark.long
def test_a_longer_run_names_the_pretraining_that_it_had(train, tmp_path):
  words = [x for x in SMALL if x.partition("=")[0] not in (
    "--pretrain_steps", "--num_steps")]  # fmt: skip
  for steps in (4, 6):
    code, printed = train(
      tmp_path, *words, f"--num_steps={steps}", binary="train_helmholtz"
    )
    assert code == (steps == 6), printed
  assert "give --pretrain_steps=4 to change its --num_steps" in printed
  code, printed = train(
    tmp_path, *words, "--num_steps=6", "--pretrain_steps=4",
    binary="train_helmholtz",
  )  # fmt: skip
  assert code == 0 and "lengthened from 4 to 6" in printed, printed


@pytest.mark.long
def test_machines_without_pretraining(train, tmp_path):
  words = [word for word in SMALL if "num_sweeps" not in word]
  words.append("--pretrain_steps=0")
  code, printed = train(tmp_path, *words, binary="train_helmholtz")
  assert code == 0, printed
  assert "no pretraining" in printed and "capsule RBM" not in printed
  assert not (tmp_path / "layer_1").exists()
  code, printed = train(
    tmp_path / "other", *words, "--num_sweeps=3", binary="train_helmholtz"
  )
  assert code == 1 and "does not use --num_sweeps" in printed


@pytest.mark.long
@pytest.mark.parametrize(
  ("flag", "value"),
  [("pretrain_steps", 0), ("pretrain_steps", 41), ("num_capsules", "4")],
)
def test_pretraining_goes_on_with_its_own_flags_alone(
  train, trained, tmp_path, flag, value
):
  folder = tmp_path / "pretrained"
  shutil.copytree(trained, folder)
  shutil.rmtree(folder / "checkpoints")
  (folder / "metrics.jsonl").unlink()
  before = (folder / "flags.cfg").read_text()
  words = [x for x in SMALL if "num_sweeps" not in x or value != 0]
  code, printed = train(
    folder, *words, f"--{flag}={value}", binary="train_helmholtz"
  )
  assert code == 1 and "Traceback" not in printed
  assert f"is now --{flag}={value}" in printed
  assert (folder / "flags.cfg").read_text() == before


def test_bad_numbers_of_capsules_are_refused(train, tmp_path):
  code, printed = train(
    tmp_path, "--num_capsules=40,many", binary="train_helmholtz"
  )
  assert code == 1
  assert "give whole numbers above 0" in printed


@pytest.mark.long
@pytest.mark.parametrize("phase", ["layer_2", ""])
def test_a_killed_run_goes_on_where_it_was(
  train, start, trained, tmp_path, phase
):
  process = start(tmp_path, *SMALL, binary="train_helmholtz")
  deadline = time.monotonic() + 120
  folder = tmp_path / phase
  while not any(x["step"] >= 30 for x in processes.metrics_of(folder)):
    assert time.monotonic() < deadline and not process.has_ended()
    time.sleep(0.02)
  process.send_signal(signal.SIGKILL)
  process.wait()
  code, printed = train(tmp_path, *SMALL, binary="train_helmholtz")
  assert code == 0, printed
  for folder in ("layer_1", "layer_2", ""):
    assert processes.metrics_of(tmp_path / folder) == processes.metrics_of(
      trained / folder
    )


@pytest.mark.long
def test_what_pretrained_in_between_is_recorded(train, start, tmp_path):
  """Another device for a part of the first layer alone."""
  words = [x for x in SMALL if not x.startswith("--pretrain_steps")]
  words += ["--pretrain_steps=4000", "--checkpoint_every=20"]
  layer = tmp_path / "layer_1"
  reached = 0
  for devices in (1, 2):
    process = start(
      tmp_path, *words, f"--cpu_devices={devices}", binary="train_helmholtz"
    )
    reached += 40
    deadline = time.monotonic() + 120
    while not any(x["step"] >= reached for x in processes.metrics_of(layer)):
      assert time.monotonic() < deadline and not process.has_ended()
      time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    reached = processes.metrics_of(layer)[-1]["step"]
  code, printed = train(
    tmp_path, *words, "--cpu_devices=1", binary="train_helmholtz"
  )
  assert code == 0, printed
  summary = processes.summary_of(tmp_path)
  devices = [x["device"] for x in summary["resumptions"]]
  assert "as 2 devices" in devices[0] and devices[1:] == [summary["device"]]


@pytest.mark.long
def test_an_auto_encoder_trains_and_is_bounded(train, tmp_path):
  code, printed = train(
    tmp_path, "--num_latents=5", "--num_steps=120", "--eval_every=60",
    "--learning_rate=0.01", binary="train_vae",
  )  # fmt: skip
  assert code == 0, printed
  scores = processes.summary_of(tmp_path)["metrics"]
  assert scores["test_reconstruction_error"] < 0.3
  assert scores["probe_accuracy"] > 0.5
  code, printed = train(
    tmp_path, "--suite=bound", "--images=50", binary="evaluate"
  )
  assert code == 0, printed
  scores = processes.evaluation_of(tmp_path)["bound"]["metrics"]
  assert -44 < scores["elbo"] < scores["importance_bound"] < -15


@pytest.mark.long
def test_an_auto_encoder_of_gaussian_pixels_is_bounded(train, tmp_path):
  code, printed = train(
    tmp_path, "--num_latents=5", "--num_steps=120", "--eval_every=60",
    "--learning_rate=0.01", "--pixel_scale=0.3", binary="train_vae",
  )  # fmt: skip
  assert code == 0, printed
  code, printed = train(
    tmp_path, "--suite=bound", "--images=50", binary="evaluate"
  )
  assert code == 0, printed
  scores = processes.evaluation_of(tmp_path)["bound"]["metrics"]
  # Of the best that there is, with all pixels at their means.
  best = -64 * np.log(0.3 * np.sqrt(2 * np.pi))
  assert best - 60 < scores["elbo"] < scores["importance_bound"] < best
