"""Tests of the binary that trains generative capsules."""

import numpy as np
import processes
import pytest

SMALL = (
  "--num_capsules=3,2", "--conv_features=4", "--width=4", "--template_size=5",
  "--num_steps=60", "--eval_every=30", "--log_every=10",
  "--learning_rate=0.01",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "capsules"
  code, printed = train(workdir, *SMALL, binary="train_generative")
  assert code == 0, printed
  return workdir


def test_a_run_learns_and_draws(trained):
  scores = processes.summary_of(trained)["metrics"]
  assert np.isfinite(list(scores.values())).all()
  bounds = [
    line["elbo"]
    for line in processes.metrics_of(trained)
    if line["split"] == "validation"
  ]
  assert bounds[-1] > bounds[0]
  figures = {path.stem for path in (trained / "figures").iterdir()}
  assert figures >= {
    "learning_curves", "samples", "templates", "decompositions"
  }  # fmt: skip


def test_gaussian_poses_start_from_known_ones(train, trained, tmp_path):
  code, printed = train(
    tmp_path, *SMALL, "--gaussian_poses", "--start_from", str(trained),
    "--learning_rate=0", "--num_steps=1", binary="train_generative",
  )  # fmt: skip
  assert code == 0, printed
  before, after = (
    processes.summary_of(path)["metrics"]["test_reconstruction_loss"]
    for path in (trained, tmp_path)
  )
  np.testing.assert_allclose(after, before, rtol=1e-5)


def test_accuracy_is_no_reason_to_stop(train, tmp_path):
  code, printed = train(
    tmp_path, *SMALL, "--stop_accuracy=0.9", binary="train_generative"
  )
  assert code == 1
  assert "has no use for" in printed and "Traceback" not in printed
