"""Tests of the binary that trains transforming auto-encoders, and suites."""

import signal
import time

import numpy as np
import processes
import pytest

SMALL = (
  "--num_capsules=8", "--recognition_units=6", "--generation_units=8",
  "--max_jitter=1", "--max_shift=1", "--learning_rate=0.01",
  "--batch_size=64", "--num_validation=300",
)  # fmt: skip
STEPS = ("--num_steps=600", "--eval_every=300", "--log_every=100")
FEW = ("--num_steps=4", "--eval_every=2", "--log_every=2")


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "shifts"
  code, printed = train(workdir, *SMALL, *STEPS, binary="train_transforming")
  assert code == 0, printed
  assert "test_reconstruction_loss" in printed
  return workdir


def test_coordinates_learn_where_digits_are(trained):
  scores = processes.summary_of(trained)["metrics"]
  for axis in "xy":
    assert scores[f"r2_{axis}"] > 0.75
    assert scores[f"r2_coordinates_{axis}"] > 0.6
    # Of a centre along the other axis it would be nearly 0.
    assert scores[f"r2_mass_{axis}"] > 0.5
    assert scores[f"r2_{axis}"] >= scores[f"r2_capsules_{axis}"][0]
    assert len(scores[f"slope_capsules_{axis}"]) == 8
    alone = scores[f"r2_capsules_{axis}"]  # ordered on training images
    assert len(alone) == 8 and alone[0] > np.median(alone)
  figures = {path.stem for path in (trained / "figures").iterdir()}
  assert figures >= {
    "learning_curves", "coordinates", "unseen_shifts", "shifted"
  }  # fmt: skip


def test_errors_of_shifts_are_those_of_images(trained):
  scores = processes.summary_of(trained)["metrics"]
  assert scores["distance"] == [0, 1, 2, 3, 4, 5]
  error, unmoved = scores["relative_error"], scores["relative_error_unmoved"]
  assert unmoved[0] == 0  # an image in its place
  assert error[1] < 0.5 * unmoved[1]
  seen, unseen = np.mean(error[:2]), np.mean(error[2:])
  assert scores["seen_relative_error"] == pytest.approx(seen)
  assert scores["unseen_relative_error"] == pytest.approx(unseen)
  assert seen < unseen


@pytest.mark.long
def test_few_labels_of_a_trained_model(train, trained):
  code, printed = train(trained, "--suite=few_labels", binary="evaluate")
  assert code == 0, printed
  scores = processes.evaluation_of(trained)["few_labels"]["metrics"]
  assert scores["num_labels"] == [10, 25, 100, 1000]
  for way in ("analysers", "linear"):
    for features in ("capsules", "pixels"):
      accuracies = scores[f"{way}_accuracy_{features}"]
      assert len(accuracies) == len(scores[f"{way}_accuracy_sd_{features}"])
      assert accuracies[-1] > max(accuracies[0], 0.5)
  assert 0.3 < scores["central_accuracy_pixels"] <= 1


@pytest.mark.long
def test_affine_poses_train(train, tmp_path):
  code, printed = train(
    tmp_path, *SMALL, *FEW, "--pose=affine", "--output=linear",
    "--max_rotation=10", binary="train_transforming",
  )  # fmt: skip
  assert code == 0, printed
  scores = processes.summary_of(tmp_path)["metrics"]
  for name in ("x", "y", "xx", "xy", "yx", "yy"):
    assert np.isfinite(scores[f"r2_{name}"])


@pytest.mark.long
def test_without_jitter_there_are_no_coordinates_to_ask_for(train, tmp_path):
  """An image that is always in the middle says nothing about its position."""
  given = (*SMALL, *FEW, "--max_jitter=0")
  code, printed = train(tmp_path, *given, binary="train_transforming")
  assert code == 0, printed
  assert "r2_x" not in processes.summary_of(tmp_path)["metrics"]
  code, printed = train(tmp_path, "--suite=coordinates", binary="evaluate")
  assert code == 1
  assert "coordinates: not for the model" in printed
  assert "Traceback" not in printed


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (("--max_rotation=10",), "--pose=shift does not use --max_rotation"),
    (("--max_shift=7",), "leave the frame when shifted by 8 pixels"),
    (("--stop_accuracy=0.5",), "not use --stop_accuracy"),
    (("--num_capsules=0",), "num_capsules"),
    (("--pose=rotation",), "pose"),
  ],
)
@pytest.mark.long_after_first
def test_flags_that_do_not_fit_are_refused(train, tmp_path, words, message):
  code, printed = train(
    tmp_path, *SMALL, *FEW, *words, binary="train_transforming"
  )
  assert code == 1
  assert message in printed and "Traceback" not in printed


@pytest.mark.long
def test_a_killed_run_ends_with_the_same_numbers(
  train, start, trained, tmp_path
):
  process = start(tmp_path, *SMALL, *STEPS, binary="train_transforming")
  deadline = time.monotonic() + 120
  while not any(x["step"] >= 300 for x in processes.metrics_of(tmp_path)):
    assert time.monotonic() < deadline and not process.has_ended()
    time.sleep(0.02)
  process.send_signal(signal.SIGKILL)
  process.wait()
  code, printed = train(tmp_path, *SMALL, *STEPS, binary="train_transforming")
  assert code == 0, printed
  assert processes.metrics_of(tmp_path) == processes.metrics_of(trained)
