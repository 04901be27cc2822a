"""Tests of the binary that trains Boltzmann machines, and of its suites."""

import shutil
import signal
import time

import numpy as np
import orbax.checkpoint as ocp
import processes
import pytest
from sklearn import metrics

from experiments.evaluation import latents

SMALL = (
  "--num_capsules=4", "--capsule_size=3", "--num_sweeps=2", "--num_steps=60",
  "--eval_every=30", "--log_every=10", "--learning_rate=0.05",
)  # fmt: skip
SUITES = ("samples", "spectra", "fields", "log_likelihood")


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "capsules"
  code, printed = train(workdir, *SMALL, binary="train_boltzmann")
  assert code == 0, printed
  assert "test_reconstruction_error 0." in printed
  return workdir


def test_a_run_writes_what_all_runs_write(trained):
  summary = processes.summary_of(trained)
  assert summary["num_steps"] == 60
  assert 0 < summary["metrics"]["test_reconstruction_error"] < 0.5
  errors = {
    name: summary["metrics"][f"test_reconstruction_error{name}"]
    for name in ("", "_mean_field", "_exact")
  }
  assert errors[""] == errors["_mean_field"] != errors["_exact"]
  counts = summary["num_images"]
  assert counts["test_reconstruction_error"] == 360
  assert counts["images_free_energy"] == 360
  assert counts["samples_free_energy"] == counts["fields_spread"] == 0
  assert "num_images" not in summary["metrics"]
  figures = {path.stem for path in (trained / "figures").iterdir()}
  assert figures >= {
    "learning_curves", "samples", "spectra", "fields", "decompositions"
  }  # fmt: skip


def test_the_last_model_is_the_one_to_report(trained):
  summary = processes.summary_of(trained)
  assert summary["metrics"]["best_step"] == summary["num_steps"]
  assert summary["restarts"] == 0


@pytest.mark.long
def test_spectra_are_plotted_with_those_of_other_runs(train, trained, tmp_path):
  other = tmp_path / "other"
  shutil.copytree(trained, other)
  words = ("--suite=spectra", f"--compare_with={other}")
  code, printed = train(trained, *words, binary="evaluate")
  assert code == 0, printed
  assert (trained / "figures" / "spectra_compared.png").exists()
  kept = other / "figures" / "spectra.npz"
  kept.write_bytes(kept.read_bytes()[:100])
  code, printed = train(trained, *words, binary="evaluate")
  assert code == 1
  assert f"cannot read {kept}" in printed and "Traceback" not in printed


@pytest.mark.long
def test_likelihood_of_a_trained_model(train, trained):
  code, printed = train(
    trained, "--suite=log_likelihood", "--images=50", binary="evaluate"
  )
  assert code == 0, printed
  record = processes.evaluation_of(trained)["log_likelihood"]
  summary = processes.summary_of(trained)
  counts = record["num_images"]
  of_samples = ("log_partition", "mean_log_weight")
  for name, count in counts.items():
    assert count == (0 if name.startswith(of_samples) else 50), name
  assert {*of_samples, "log_likelihood"} <= set(counts)
  assert record["training_commit"] == summary["commit"]
  assert record["training_dirty"] == summary["dirty"]
  scores = record["metrics"]
  error = 5 * scores["log_partition_standard_error"] + 0.05
  backwards = scores["log_partition_backwards"]
  assert abs(scores["log_partition"] - backwards) < error
  # 64 pixels: fair coins would give -44 nats.
  assert -44 < scores["log_likelihood"] < -15


def test_suites_of_classifiers_are_refused(train, trained):
  code, printed = train(trained, "--suite=attacks", binary="evaluate")
  assert code == 1
  assert "attacks: not for the model" in printed
  assert "Traceback" not in printed


@pytest.mark.long
@pytest.mark.parametrize(
  "words",
  [
    ("--noswitches", "--num_capsules=1", "--binary"),
    ("--visible=gaussian", "--hidden=gaussian", "--interaction"),
    ("--mean_field_iterations=0", "--sweep=block", "--num_chains=0"),
  ],
)
def test_other_models_train(train, tmp_path, words):
  code, printed = train(
    tmp_path, *SMALL, "--learning_rate=0.001", *words, binary="train_boltzmann"
  )
  assert code == 0, printed
  scores = processes.summary_of(tmp_path)["metrics"]
  assert np.isfinite(list(scores.values())).all()
  if "--visible=gaussian" in words:
    code, printed = train(tmp_path, "--suite=log_likelihood", binary="evaluate")
    assert code == 1 and "log_likelihood: not for the model" in printed


@pytest.mark.long
def test_training_that_diverges_once_goes_back_a_little(tmp_path):
  """By as much as the preset of Gaussian units says, and with new chains."""
  # Judged at 240, 480 and 500.
  code, printed = processes.Running(
    "diverging", "train_boltzmann", "3", f"--workdir={tmp_path}",
    "--flagfile=experiments/presets/boltzmann/boltzmann_fashion.cfg",
    "--num_capsules=4", "--capsule_size=3", "--num_sweeps=1",
    "--mean_field_iterations=1",
    "--dataset=digits", "--num_validation=300", "--num_steps=500", package="",
  ).wait()  # fmt: skip
  assert code == 0, printed
  assert printed.count("resuming from step") == 1
  assert "training diverged; resuming from step 240\n" in printed
  summary = processes.summary_of(tmp_path)
  assert (summary["restarts"], summary["num_steps"]) == (1, 500)
  steps = [line["step"] for line in processes.metrics_of(tmp_path)]
  assert steps == sorted(steps) and {480, 500} < set(steps)
  # New chains run ten sweeps in their first update, then one in each.
  folder = tmp_path / "checkpoints" / "latest" / "500" / "default"
  leaves = ocp.StandardCheckpointer().restore(folder)
  (age,) = [x for name, x in leaves.items() if name.endswith(".age")]
  assert age == 10 + (500 - 240) - 1


@pytest.mark.long
def test_training_that_always_diverges_ends(train, tmp_path):
  code, printed = train(
    tmp_path, *SMALL, "--max_error=0.0", binary="train_boltzmann"
  )
  assert code == 1
  assert printed.count("resuming from step 0") == 20
  assert "training stopped" in printed and "Traceback" not in printed


@pytest.mark.parametrize(
  "words",
  [
    ("--noswitches", "--sweep=block"),
    ("--slower_by=1.5",),
    ("--visible=gaussian", "--binary"),
    ("--noswitches", "--interaction"),
  ],
)
def test_flags_without_use_are_refused(train, tmp_path, words):
  code, printed = train(tmp_path, *SMALL, *words, binary="train_boltzmann")
  assert code == 1
  assert "Traceback" not in printed
  assert "does not use" in printed or "needs switches" in printed


@pytest.mark.long
def test_the_preset_goes_with_the_exact_posterior(train, tmp_path):
  code, printed = train(
    tmp_path, "--flagfile=experiments/presets/boltzmann/boltzmann_mnist.cfg",
    *SMALL, "--mean_field_iterations=0", "--dataset=digits",
    "--num_validation=300",
    "--num_steps=2", binary="train_boltzmann",
  )  # fmt: skip
  assert code == 0, printed


@pytest.mark.long
def test_a_killed_run_goes_on_with_its_chains(train, start, trained, tmp_path):
  """Killed after its first checkpoint, it ends with the same numbers."""
  process = start(tmp_path, *SMALL, binary="train_boltzmann")
  deadline = time.monotonic() + 120
  while not any(x["step"] >= 40 for x in processes.metrics_of(tmp_path)):
    assert time.monotonic() < deadline and not process.has_ended()
    time.sleep(0.02)
  process.send_signal(signal.SIGKILL)
  process.wait()
  code, printed = train(tmp_path, *SMALL, binary="train_boltzmann")
  assert code == 0, printed
  assert processes.metrics_of(tmp_path) == processes.metrics_of(trained)


def test_information_is_that_of_scikit_learn():
  random = np.random.default_rng(0)
  labels = random.integers(4, size=500)
  units = np.stack(
    [labels % 2, random.integers(2, size=500), labels == 0], axis=1
  ).astype(np.float32)
  got = latents.information(units, labels)
  want = [metrics.mutual_info_score(labels, unit) for unit in units.T]
  np.testing.assert_allclose(got, np.array(want) / np.log(2), atol=1e-6)
