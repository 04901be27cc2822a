"""Tests of the training binary as a user runs it, to the end.

What becomes of runs that are stopped is in `resume_test`.
"""

import json
import shutil
import subprocess
import sys

import dataset_files
import processes
import pytest
from tensorboard.backend.event_processing import event_accumulator

NUM_STEPS = 200
FLAGS = (
  *processes.SMALL, f"--num_steps={NUM_STEPS}", "--log_every=5",
  "--checkpoint_every=10", "--learning_rate=0.003",
)  # fmt: skip


@pytest.fixture(scope="module")
def unbroken(train, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "unbroken"
  code, printed = train(workdir, *FLAGS)
  assert code == 0, printed
  return workdir, printed


def test_the_folder_holds_what_the_contract_names(unbroken):
  workdir, printed = unbroken
  assert "test accuracy" in printed and str(workdir / "figures") in printed
  summary = processes.summary_of(workdir)
  assert summary["experiment"] == "train_capsnet"
  assert summary["dataset"] == "digits"
  assert summary["preset"] is None
  assert summary["seed"] == 0
  assert summary["num_steps"] == NUM_STEPS
  assert summary["flags"]["conv_features"] == 4
  assert summary["versions"].keys() >= {"python", "jax", "flax", "optax"}
  assert len(summary["commit"]) == 40 or summary["commit"] == "unknown"
  # Without git there is neither.
  assert (summary["dirty"] is None) == (summary["commit"] == "unknown")
  assert summary["device"].startswith("CPU")
  assert summary["seconds"] > 0 and summary["images_per_second"] > 0
  assert summary["num_parameters"] == (
    (9 * 4 + 4) + (9 * 4 * 16 + 16) + (2 * 2 * 2 * 10 * 8 * 16 + 160)
    + (160 * 8 + 8) + (8 * 64 + 64)
  )  # fmt: skip
  scores = summary["metrics"]
  assert 0.12 < scores["test_accuracy"] <= 1
  assert scores["test_error_percent"] == pytest.approx(
    100 * (1 - scores["test_accuracy"])
  )
  assert str(processes.ROOT) not in summary["command"]
  for name in ("learning_curves", "reconstructions", "perturbations"):
    assert (workdir / "figures" / f"{name}.png").stat().st_size > 1000


def test_the_best_on_validation_is_reported(unbroken):
  workdir, printed = unbroken
  validations = [
    m for m in processes.metrics_of(workdir) if m["split"] == "validation"
  ]
  best = max(
    validations,
    key=lambda line: (line["accuracy"], -line["margin_loss"], line["step"]),
  )
  scores = processes.summary_of(workdir)["metrics"]
  assert scores["best_step"] == best["step"]
  assert scores["validation_accuracy"] == best["accuracy"]
  chosen = "chosen on validation by accuracy"
  assert processes.summary_of(workdir)["reported"] == chosen
  assert f"(checkpoint of step {best['step']}, {chosen})" in printed


def test_tensorboard_reads_the_curves(unbroken):
  workdir, _ = unbroken
  events = event_accumulator.EventAccumulator(str(workdir))
  events.Reload()
  points = events.Scalars("train/loss")
  lines = [m for m in processes.metrics_of(workdir) if m["split"] == "train"]
  assert [point.step for point in points] == [line["step"] for line in lines]
  assert points[-1].value == pytest.approx(lines[-1]["loss"])


def test_learning_happens(unbroken):
  losses = [
    m["loss"]
    for m in processes.metrics_of(unbroken[0])
    if m["split"] == "train"
  ]
  assert losses[-1] < 0.9 * losses[0]


def test_evaluation_repeats_the_numbers_of_the_run(train, unbroken):
  workdir, _ = unbroken
  code, printed = train(
    workdir,
    "--suite=accuracy,perturbations,reconstructions",
    binary="evaluate",
  )
  assert code == 0, printed
  records = processes.evaluation_of(workdir)
  assert list(records) == ["accuracy", "perturbations", "reconstructions"]
  summary = processes.summary_of(workdir)
  for name, record in records.items():
    assert record["suite"] == name
    assert record["seed"] == summary["seed"]
    for metric, value in record["metrics"].items():
      assert value == pytest.approx(summary["metrics"][metric])
  assert records["perturbations"]["metrics"]["largest_change"] > 0


@pytest.mark.long
def test_a_run_older_than_a_flag_is_evaluated_as_it_was(
  train, unbroken, tmp_path
):
  workdir = tmp_path / "copy"
  shutil.copytree(unbroken[0], workdir)
  summary = processes.summary_of(workdir)
  del summary["flags"]["primary_scale"]  # then capsules had a scale of 1
  (workdir / "summary.json").write_text(json.dumps(summary))
  code, printed = train(workdir, "--suite=accuracy", binary="evaluate")
  assert code == 0, printed
  record = processes.evaluation_of(workdir)["accuracy"]
  name = "test_margin_loss"
  assert abs(record["metrics"][name] - summary["metrics"][name]) > 1e-3


def test_evaluation_names_what_is_wrong(train, unbroken, tmp_path):
  for workdir, suite, words in (
    (tmp_path, "accuracy", ["summary.json", "no run was completed"]),
    (unbroken[0], "beauty", ["beauty", "accuracy"]),
    (unbroken[0], "accuracy --seed=7", ["--seed", "leave it out"]),
  ):
    flags = f"--suite={suite}".split()
    code, printed = train(workdir, *flags, binary="evaluate")
    assert code == 1
    assert all(word in printed for word in words)
    assert "Traceback" not in printed


@pytest.mark.parametrize(
  ("flags", "words"),
  [
    (["--dataset=mnist", "--data_dir=nowhere"], ["nowhere"]),
    (["--dataset=letters"], ["letters", "digits"]),
    (["--conv_kernel=9"], ["8x8", "too small", "conv_kernel=9"]),
    (["--batch_size=5000"], ["5000", "--batch_size"]),
    (["--num_validation=1437"], ["--num_validation"]),
    (["--num_stepz=3"], ["num_stepz"]),
    (["--num_iterations=0"], ["num_iterations"]),
    (["stray"], ["stray"]),
  ],
)
def test_bad_flags_are_named_without_a_traceback(train, tmp_path, flags, words):
  code, printed = train(tmp_path, *FLAGS, *flags)
  assert code == 1
  for word in words:
    assert word in printed
  assert "Traceback" not in printed


def test_a_data_set_that_nobody_asked_for_is_named(train, tmp_path):
  hint = "--dataset is digits by default, for which --preset=digits has"
  for words, wants in (((), True), (("--dataset=digits",), False)):
    code, printed = train(tmp_path, "--num_types=8", *words)
    assert code == 1
    assert "8x8" in printed and "Traceback" not in printed
    assert (hint in printed) == wants


@pytest.mark.long
def test_eight_devices_give_the_losses_of_one(train, unbroken, tmp_path):
  code, printed = train(
    tmp_path, *FLAGS, "--num_steps=50",
    xla_flags="--xla_force_host_platform_device_count=8",
  )  # fmt: skip
  assert code == 0, printed
  lines = {m["step"]: m["loss"] for m in processes.metrics_of(unbroken[0])
           if m["split"] == "train"}  # fmt: skip
  compared = 0
  for line in processes.metrics_of(tmp_path):
    if line["split"] == "train" and line["step"] in lines:
      assert line["loss"] == pytest.approx(lines[line["step"]], rel=1e-3)
      compared += 1
  assert compared >= 10


@pytest.mark.long
def test_devices_must_share_a_batch_evenly(train, tmp_path):
  code, printed = train(
    tmp_path, *FLAGS, "--batch_size=12",
    xla_flags="--xla_force_host_platform_device_count=8",
  )  # fmt: skip
  assert code == 1
  assert "12" in printed and "multiple of 8" in printed


@pytest.mark.long
@pytest.mark.parametrize("options", [
  ("--seed=1",),
  ("--leaky", "--num_iterations=1"),
  (
    "--canvas=12", "--max_rotation=20", "--max_shear=0.2", "--max_scale=1.2",
    "--bfloat16", "--reconstruction=official",
  ),
])  # fmt: skip
def test_every_option_trains(train, unbroken, tmp_path, options):
  """What each of them does is in `networks_test`."""
  flags = (*processes.SMALL, *options, "--num_steps=5", "--log_every=5")
  code, printed = train(tmp_path, *flags)
  assert code == 0, printed
  want = processes.metrics_of(unbroken[0])
  assert processes.metrics_of(tmp_path)[0] != want[0]


@pytest.mark.long
def test_baseline_trains_and_refuses_flags_of_capsules(tmp_path):
  """Here without the short cuts of `processes`."""

  def run(*flags):
    done = subprocess.run(
      [sys.executable, "-m", "experiments.train_capsnet",
       f"--workdir={tmp_path / 'run'}", "--compilation_cache=",
       *processes.BASELINE, "--num_steps=2", *flags],
      cwd=processes.ROOT, capture_output=True, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr

  code, printed = run("--leaky")
  assert code == 1
  assert "not use --leaky" in printed and "Traceback" not in printed
  # What was refused does not stand in the way of what is right.
  code, printed = run()
  assert code == 0, printed
  summary = processes.summary_of(tmp_path / "run")
  assert "test_accuracy" in summary["metrics"]


@pytest.mark.long
def test_novel_viewpoints_are_kept_for_the_test(train, tmp_path):
  dataset_files.write_solids(tmp_path, train=90, test=90)
  place = f"--data_dir={tmp_path}"
  workdir = tmp_path / "run"
  code, printed = train(
    workdir, *processes.BASELINE, "--dataset=viewpoint_solids",
    "--viewpoints=azimuth", "--crop=24", "--standardise", "--num_steps=2",
    "--batch_size=8", place,
  )  # fmt: skip
  assert code == 0, printed
  scores = processes.summary_of(workdir)["metrics"]
  assert {"test_familiar_accuracy", "test_novel_accuracy"} <= set(scores)
  assert "test_accuracy" not in scores
  code, printed = train(
    workdir, "--suite=calibration", place, binary="evaluate"
  )
  assert code == 0, printed
  record = processes.evaluation_of(workdir)["calibration"]
  accuracy = record["metrics"]["accuracy"]
  assert accuracy == pytest.approx(scores["test_novel_accuracy"], abs=1e-5)
  code, printed = train(
    tmp_path / "other", "--viewpoints=azimuth", "--num_validation=9"
  )
  assert code == 1 and "--viewpoints does not use --num_validation" in printed


def test_a_missing_test_set_is_said_before_training(train, data_dir, tmp_path):
  folder = tmp_path / "data" / "mnist"
  folder.mkdir(parents=True)
  for path in (data_dir / "mnist").glob("train-*"):
    (folder / path.name).symlink_to(path)
  workdir = tmp_path / "run"
  code, printed = train(
    workdir, "--dataset=mnist", f"--data_dir={tmp_path / 'data'}"
  )
  assert code == 1
  assert "t10k-images" in printed and "Traceback" not in printed
  assert not workdir.exists()


@pytest.mark.long
def test_damaged_evaluations_are_kept_aside(train, unbroken, tmp_path):
  workdir = tmp_path / "copy"
  shutil.copytree(unbroken[0], workdir)
  (workdir / "evaluation.json").write_text("{")
  code, printed = train(workdir, "--suite=accuracy", binary="evaluate")
  assert code == 0, printed
  assert "evaluation.json" in printed and "Traceback" not in printed
  assert (workdir / "evaluation.json.damaged").read_text() == "{"
  assert "accuracy" in processes.evaluation_of(workdir)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["summary", "flags"])
def test_damaged_files_of_a_run_are_named(train, unbroken, tmp_path, fault):
  workdir = tmp_path / "copy"
  shutil.copytree(unbroken[0], workdir)
  path = workdir / ("flags.cfg" if fault == "flags" else f"{fault}.json")
  path.write_text("{" if fault != "flags" else "--seed=0\n--no_such_flag=1\n")
  code, printed = train(workdir, "--suite=accuracy", binary="evaluate")
  assert code == 1
  assert (fault if fault != "flags" else "no_such_flag") in printed
  assert "Traceback" not in printed
