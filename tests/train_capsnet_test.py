"""Tests of the training binary as a user runs it: real processes, real signals.

A network of a few hundred weights on the embedded digits.
"""

import json
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import time

import numpy as np
import pytest
from tensorboard.backend.event_processing import event_accumulator

from experiments.common import checkpoints

ROOT = pathlib.Path(__file__).parents[1]
PRESETS = sorted((ROOT / "experiments" / "presets").glob("*.cfg"))
SMALL = (
  "--conv_features=4",
  "--conv_kernel=3",
  "--num_types=2",
  "--primary_kernel=3",
  "--decoder_features=8",
)
NUM_STEPS = 200
FLAGS = (
  *SMALL,
  f"--num_steps={NUM_STEPS}",
  "--batch_size=64",
  "--log_every=5",
  "--checkpoint_every=10",
)


@pytest.fixture(scope="module")
def unbroken(train, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "unbroken"
  code, printed = train(workdir, *FLAGS)
  assert code == 0, printed
  return workdir, printed


def metrics_of(workdir: pathlib.Path) -> list[dict]:
  """The lines of metrics.jsonl without those about time."""
  path = workdir / "metrics.jsonl"
  lines = []
  for line in path.read_text().splitlines() if path.exists() else ():
    try:
      lines.append(json.loads(line))
    except json.JSONDecodeError:
      continue  # still being written
  for line in lines:
    line.pop("images_per_second", None)
  return lines


def summary_of(workdir: pathlib.Path) -> dict:
  return json.loads((workdir / "summary.json").read_text())


def wait_for_step(process: subprocess.Popen, workdir: pathlib.Path, step: int):
  deadline = time.monotonic() + 120
  while not any(line["step"] >= step for line in metrics_of(workdir)):
    assert process.poll() is None, process.communicate()
    assert time.monotonic() < deadline
    time.sleep(0.005)


def assert_same_run(workdir: pathlib.Path, other: pathlib.Path) -> None:
  assert metrics_of(workdir) == metrics_of(other)
  for volatile in (summary := summary_of(workdir), want := summary_of(other)):
    for name in ("seconds", "images_per_second", "command"):
      volatile.pop(name)
  assert summary == want


def test_the_folder_holds_what_the_contract_names(unbroken):
  workdir, printed = unbroken
  assert "test accuracy" in printed and str(workdir / "figures") in printed
  summary = summary_of(workdir)
  assert summary["experiment"] == "train_capsnet"
  assert summary["dataset"] == "digits"
  assert summary["preset"] is None
  assert summary["seed"] == 0
  assert summary["num_steps"] == NUM_STEPS
  assert summary["flags"]["conv_features"] == 4
  assert summary["versions"].keys() >= {"python", "jax", "flax", "optax"}
  assert len(summary["commit"]) == 40 or summary["commit"] == "unknown"
  assert isinstance(summary["dirty"], bool)
  assert summary["device"].startswith("CPU")
  assert summary["seconds"] > 0 and summary["images_per_second"] > 0
  assert summary["num_parameters"] == (
    (9 * 4 + 4) + (9 * 4 * 16 + 16) + (2 * 2 * 2 * 10 * 8 * 16 + 160)
    + (160 * 8 + 8) + (8 * 64 + 64)
  )  # fmt: skip
  scores = summary["metrics"]
  assert 0.2 < scores["test_accuracy"] <= 1
  assert scores["test_error_percent"] == pytest.approx(
    100 * (1 - scores["test_accuracy"])
  )
  assert str(ROOT) not in summary["command"]
  for name in ("learning_curves", "reconstructions", "perturbations"):
    assert (workdir / "figures" / f"{name}.png").stat().st_size > 1000


def test_the_best_on_validation_is_reported(unbroken):
  workdir, _ = unbroken
  validations = [m for m in metrics_of(workdir) if m["split"] == "validation"]
  best = max(validations, key=lambda line: (line["accuracy"], -line["step"]))
  scores = summary_of(workdir)["metrics"]
  assert scores["best_step"] == best["step"]
  assert scores["validation_accuracy"] == best["accuracy"]


def test_tensorboard_reads_the_curves(unbroken):
  workdir, _ = unbroken
  events = event_accumulator.EventAccumulator(str(workdir))
  events.Reload()
  points = events.Scalars("train/loss")
  lines = [m for m in metrics_of(workdir) if m["split"] == "train"]
  assert [point.step for point in points] == [line["step"] for line in lines]
  assert points[-1].value == pytest.approx(lines[-1]["loss"])


def test_learning_happens(unbroken):
  losses = [m["loss"] for m in metrics_of(unbroken[0]) if m["split"] == "train"]
  assert losses[-1] < 0.9 * losses[0]


def test_a_killed_run_resumes_to_identical_numbers(
  start, train, unbroken, tmp_path
):
  process = start(tmp_path, *FLAGS)
  wait_for_step(process, tmp_path, 45)
  process.send_signal(signal.SIGKILL)
  process.communicate()
  assert process.returncode == -signal.SIGKILL
  assert not (tmp_path / "summary.json").exists()
  stopped = metrics_of(tmp_path)[-1]["step"]
  assert 45 <= stopped < NUM_STEPS
  code, printed = train(tmp_path, *FLAGS)
  assert code == 0, printed
  assert "step 5/" not in printed  # it went on, and did not start anew
  assert_same_run(tmp_path, unbroken[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_run_resumes(
  start, train, unbroken, tmp_path, number
):
  process = start(tmp_path, *FLAGS)
  wait_for_step(process, tmp_path, 35)
  process.send_signal(number)
  _, err = process.communicate(timeout=60)
  assert process.returncode == 128 + number
  stopped = metrics_of(tmp_path)[-1]["step"]
  assert f"stopped at step {stopped}" in err
  latest = checkpoints.Checkpoints(tmp_path / "checkpoints")._latest
  assert latest.steps()[-1] == stopped < NUM_STEPS
  code, printed = train(tmp_path, *FLAGS)
  assert code == 0, printed
  assert_same_run(tmp_path, unbroken[0])


def test_a_finished_run_repeats_its_answer(train, unbroken):
  workdir, printed = unbroken
  before = summary_of(workdir)["metrics"]
  code, again = train(workdir, *FLAGS)
  assert code == 0, again
  assert "step 5/" not in again
  assert summary_of(workdir)["metrics"] == before


def test_other_flags_on_an_old_folder_are_named(train, unbroken):
  workdir, _ = unbroken
  before = {p: p.stat().st_mtime_ns for p in workdir.rglob("*") if p.is_file()}
  code, printed = train(workdir, *FLAGS, "--seed=1", "--leaky")
  assert code == 1
  assert "--seed=0 is now --seed=1" in printed
  assert "--noleaky is now --leaky" in printed
  assert "batch_size" not in printed and "Traceback" not in printed
  after = {p: p.stat().st_mtime_ns for p in workdir.rglob("*") if p.is_file()}
  assert after == before


def test_evaluation_repeats_the_numbers_of_the_run(train, unbroken):
  workdir, _ = unbroken
  code, printed = train(
    workdir,
    "--suite=accuracy,perturbations,reconstructions",
    binary="evaluate",
  )
  assert code == 0, printed
  records = json.loads((workdir / "evaluation.json").read_text())
  assert list(records) == ["accuracy", "perturbations", "reconstructions"]
  summary = summary_of(workdir)
  for name, record in records.items():
    assert record["suite"] == name
    assert record["seed"] == summary["seed"]
    for metric, value in record["metrics"].items():
      assert value == pytest.approx(summary["metrics"][metric])
  assert records["perturbations"]["metrics"]["largest_change"] > 0


def test_evaluation_names_what_is_wrong(train, unbroken, tmp_path):
  for workdir, suite, words in (
    (tmp_path, "accuracy", ["summary.json", "no run was completed"]),
    (unbroken[0], "beauty", ["beauty", "accuracy"]),
    (unbroken[0], "accuracy --seed=7", ["--seed", "has its own"]),
  ):
    flags = f"--suite={suite}".split()
    code, printed = train(workdir, *flags, binary="evaluate")
    assert code == 1
    assert all(word in printed for word in words)
    assert "Traceback" not in printed


def test_another_seed_gives_other_numbers(train, unbroken, tmp_path):
  code, printed = train(tmp_path, *FLAGS, "--seed=1", "--num_steps=10")
  assert code == 0, printed
  assert metrics_of(tmp_path)[0] != metrics_of(unbroken[0])[0]


@pytest.mark.parametrize(
  ("rate", "fault", "good_steps"),
  [("3e38", "the loss became", [1]), ("inf", "the parameters became", [])],
)
def test_infinite_numbers_stop_the_run_and_keep_the_last_good_state(
  train, tmp_path, rate, fault, good_steps
):
  flags = (*SMALL, "--batch_size=64", "--log_every=1", "--checkpoint_every=1")
  code, printed = train(tmp_path, *flags, f"--learning_rate={rate}")
  assert code == 1
  assert f"{fault} infinite or NaN" in printed
  assert "--learning_rate" in printed and "Traceback" not in printed
  assert not (tmp_path / "summary.json").exists()
  saved = checkpoints.Checkpoints(tmp_path / "checkpoints")
  assert saved._latest.steps() == good_steps
  assert [line["step"] for line in metrics_of(tmp_path)] == good_steps


@pytest.mark.parametrize(
  ("flags", "words"),
  [
    (["--dataset=mnist", "--data_dir=nowhere"], ["nowhere"]),
    (["--dataset=letters"], ["letters", "digits"]),
    (["--conv_kernel=9"], ["8x8", "too small"]),
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


def test_eight_devices_give_the_losses_of_one(train, unbroken, tmp_path):
  code, printed = train(
    tmp_path, *FLAGS, "--num_steps=50",
    XLA_FLAGS="--xla_force_host_platform_device_count=8",
  )  # fmt: skip
  assert code == 0, printed
  lines = {m["step"]: m["loss"] for m in metrics_of(unbroken[0])
           if m["split"] == "train"}  # fmt: skip
  compared = 0
  for line in metrics_of(tmp_path):
    if line["split"] == "train" and line["step"] in lines:
      assert line["loss"] == pytest.approx(lines[line["step"]], rel=1e-3)
      compared += 1
  assert compared >= 10


def test_devices_must_share_a_batch_evenly(train, tmp_path):
  code, printed = train(
    tmp_path, *FLAGS, "--batch_size=12",
    XLA_FLAGS="--xla_force_host_platform_device_count=8",
  )  # fmt: skip
  assert code == 1
  assert "12" in printed and "multiple of 8" in printed


@pytest.mark.parametrize("options", [
  ("--canvas=12",),
  ("--max_rotation=20", "--max_shear=0.2", "--max_scale=1.2"),
  ("--reconstruction=none", "--leaky", "--num_iterations=1"),
  ("--bfloat16", "--reconstruction=official"),
])  # fmt: skip
def test_every_option_trains(train, unbroken, tmp_path, options):
  code, printed = train(tmp_path, *FLAGS, *options, "--num_steps=5")
  assert code == 0, printed
  assert metrics_of(tmp_path)[0] != metrics_of(unbroken[0])[0]


def test_baseline_trains_and_refuses_flags_of_capsules(train, tmp_path):
  flags = ("--model=baseline", "--num_steps=2", "--batch_size=4")
  code, printed = train(tmp_path, *flags, "--leaky")
  assert code == 1
  assert "no use for --leaky" in printed
  # What was refused does not stand in the way of what is right.
  code, printed = train(tmp_path, *flags)
  assert code == 0, printed
  assert "test_accuracy" in summary_of(tmp_path)["metrics"]


def test_the_record_repeats_the_run_however_flags_are_written(train, tmp_path):
  code, printed = train(
    tmp_path, "--flagfile", "experiments/presets/digits.cfg", *FLAGS,
    "--num_steps", "3",
  )  # fmt: skip
  assert code == 0, printed
  summary = summary_of(tmp_path)
  assert summary["preset"] == "digits"
  assert summary["command"] == (
    "python -m experiments.train_capsnet --workdir=DIR "
    f"--flagfile=experiments/presets/digits.cfg {' '.join(FLAGS)} --num_steps=3"
  )


@pytest.mark.parametrize(
  ("given", "want"),
  [
    ("--decay_rate=1.0", 1e-3),
    ("--decay_rate=0.0", 1e-6),
    ("--schedule=cosine --num_steps=2", 5e-4),
    ("--schedule=cosine --warmup_steps=4", 2.5e-4),
  ],
)
def test_learning_rate_follows_the_flags(given, want):
  """Of the first step only Adam's rate is left: it moves weights by so much."""
  code = (
    "import sys; from absl import flags; "
    "from experiments.common import networks as t; import jax.numpy as jnp; "
    f"flags.FLAGS(['x', *{given.split()}]); o = t.make_optimizer(); "
    "w = jnp.ones(1); s = o.init(w); "
    "u, s = o.update(w, s); u, s = o.update(w, s); print(float(-u[0]))"
  )
  done = subprocess.run(
    [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
    check=True,
  )  # fmt: skip
  assert float(done.stdout) == pytest.approx(want, rel=1e-3)


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


@pytest.mark.parametrize("fault", ["metrics", "summary", "evaluation", "flags"])
def test_damaged_files_of_a_run_are_named(train, unbroken, tmp_path, fault):
  workdir = tmp_path / "copy"
  shutil.copytree(unbroken[0], workdir)
  names = {"metrics": "metrics.jsonl", "flags": "flags.cfg"}
  path = workdir / names.get(fault, f"{fault}.json")
  path.write_text("{" if fault != "flags" else "--seed=0\n--no_such_flag=1\n")
  if fault == "metrics":  # lines cut off by a crash are passed over
    code, printed = train(workdir, *FLAGS)
    assert "Traceback" not in printed
    return
  code, printed = train(workdir, "--suite=accuracy", binary="evaluate")
  assert code == 1
  assert (fault if fault != "flags" else "no_such_flag") in printed
  assert "Traceback" not in printed


@pytest.fixture(scope="module")
def few_digits(tmp_path_factory):
  """A folder with 200 noise images in the form of MNIST, and 20 to test."""
  folder = tmp_path_factory.mktemp("data")
  (folder / "mnist").mkdir()
  pixels = np.random.default_rng(0)
  for split, count in (("train", 200), ("t10k", 20)):
    images = pixels.integers(0, 256, (count, 28, 28), np.uint8)
    labels = np.arange(count, dtype=np.uint8) % 10
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
      header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
      path = folder / "mnist" / f"{split}-{name}-ubyte"
      path.write_bytes(header + array.tobytes())
  return folder


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_every_preset_takes_two_steps(train, few_digits, tmp_path, preset):
  header = preset.read_text().splitlines()[:4]
  assert any(
    "Expected:" in x or "Published:" in x or "GPU" in x for x in header
  )
  overlapping = preset.stem.startswith("multimnist")
  small = ["--conv_features=4", "--num_types=1", "--decoder_features=8"]
  if "baseline" in preset.stem:
    features = "4,4" if overlapping else "4,4,4"
    small = [f"--cnn_features={features}", "--cnn_dense=8"]
  elif "efficient" in preset.stem:  # its size is fixed
    small = []
  if "fashion" in preset.stem:
    small.append("--dataset=mnist")
  code, printed = train(
    tmp_path, f"--flagfile={preset}", *small, f"--data_dir={few_digits}",
    "--num_steps=2", "--batch_size=8", "--num_validation=20",
    binary="train_multimnist" if overlapping else "train_capsnet",
  )  # fmt: skip
  assert code == 0, printed
  assert summary_of(tmp_path)["preset"] == preset.stem
