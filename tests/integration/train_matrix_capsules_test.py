"""Tests of the binary that trains matrix capsules, and of its suites."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest
from absl import flags
from dataset_files import write_idx, write_solids

from experiments.benchmarks import step_cost

TINY = ("--features=3", "--types=2,2,3", "--num_iterations=1")
BASELINE = ("--model=baseline", "--cnn_features=4,4", "--cnn_dense=8")
STEPS = (
  "--num_steps=4", "--eval_every=2", "--log_every=2", "--batch_size=8",
)  # fmt: skip


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  """Noise in the form of the viewpoint solids, and of MNIST all black."""
  folder = tmp_path_factory.mktemp("data")
  write_solids(folder, train=90, test=90)
  (folder / "mnist").mkdir()
  for split in ("train", "t10k"):
    images = np.zeros((60, 28, 28), np.uint8)
    labels = np.arange(60, dtype=np.uint8) % 10
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
      write_idx(folder / "mnist" / f"{split}-{name}-ubyte", array)
  return folder


@pytest.fixture(scope="module")
def solids(train, data_dir, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "solids"
  code, printed = train(
    workdir, "--dataset=viewpoint_solids", "--viewpoints=azimuth", *BASELINE,
    *STEPS, f"--data_dir={data_dir}", binary="train_matrix_capsules",
  )  # fmt: skip
  assert code == 0, printed
  return workdir


@pytest.mark.long
def test_cores_as_devices_give_the_losses_of_one_device(
  train, data_dir, tmp_path
):
  losses = []
  for count in (1, 2):
    workdir = tmp_path / str(count)
    code, printed = train(
      workdir, "--dataset=mnist", *TINY, *STEPS, f"--cpu_devices={count}",
      "--num_validation=0", f"--data_dir={data_dir}",
      binary="train_matrix_capsules",
    )  # fmt: skip
    assert code == 0, printed
    device = processes.summary_of(workdir)["device"]
    assert device.endswith("as 2 devices") == (count == 2)
    losses.append(
      [x["loss"] for x in processes.metrics_of(workdir) if "loss" in x]
    )
  assert len(losses[0]) == 2
  np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)

  # The number of devices is no part of the run: evaluation has its own, and
  # another one resumes it.
  assert "cpu_devices" not in (workdir / "flags.cfg").read_text()
  code, printed = train(
    workdir, "--suite=accuracy", "--cpu_devices=2", f"--data_dir={data_dir}",
    binary="evaluate",
  )  # fmt: skip
  assert code == 0, printed
  record = json.loads((workdir / "evaluation.json").read_text())["accuracy"]
  assert record["device"].endswith("as 2 devices")
  code, printed = train(
    workdir, "--dataset=mnist", *TINY, *STEPS, "--num_steps=6",
    "--cpu_devices=1", "--num_validation=0", f"--data_dir={data_dir}",
    binary="train_matrix_capsules",
  )  # fmt: skip
  assert code == 0, printed
  assert "lengthened from 4 to 6" in printed


def test_novel_viewpoints_are_scored_apart(solids):
  scores = processes.summary_of(solids)["metrics"]
  # A third of the azimuths is familiar.
  whole = (
    scores["test_familiar_accuracy"] + 2 * scores["test_novel_accuracy"]
  ) / 3
  assert scores["azimuth"] == [20.0 * n for n in range(18)]
  assert scores["elevation"] == [30.0 + 5 * n for n in range(9)]
  for name in ("azimuth", "elevation"):
    mean = np.mean(scores[f"{name}_accuracy"])
    assert mean == pytest.approx(whole, abs=1e-5)
  assert (solids / "figures" / "viewpoints.png").exists()


def test_validation_is_on_familiar_views_of_the_test_figures(solids):
  scores = processes.summary_of(solids)["metrics"]
  found = [
    x for x in processes.metrics_of(solids) if x["split"] == "validation"
  ]
  best = max(line["accuracy"] for line in found)
  assert best == pytest.approx(scores["test_familiar_accuracy"], abs=1e-6)
  assert "test_accuracy" not in scores  # nothing there is a test alone


@pytest.mark.long
def test_suites_of_stereo_pairs(train, solids, data_dir):
  code, printed = train(
    solids, "--suite=multi_crop,attacks,viewpoints,equivariance",
    "--images=20",
    f"--data_dir={data_dir}", binary="evaluate",
  )  # fmt: skip
  assert code == 0, printed
  crops = processes.evaluation_of(solids)["multi_crop"]["metrics"]
  assert 0 <= crops["multi_crop_accuracy"] <= 1
  poses = processes.evaluation_of(solids)["equivariance"]["metrics"]
  assert poses["num_poses"] > 1 and poses["rotation_degrees_mlp_r2"] <= 1
  gap = processes.evaluation_of(solids)["viewpoints"]["metrics"]
  assert gap["novel_gap_percent"] == pytest.approx(
    gap["novel_error_percent"] - gap["familiar_error_percent"]
  )
  attacks = processes.evaluation_of(solids)["attacks"]["metrics"]
  centre = pytest.approx(crops["centre_crop_accuracy"])
  assert attacks["bim_accuracy"][0] == centre


def learning_rates():
  """Of each step of a short run."""
  from experiments.train_matrix_capsules import make_task

  flags.FLAGS(["binary", "--num_steps=40"])
  optimizer, slope = make_task().optimizer, jnp.ones(())
  state, rates = optimizer.init(slope), []
  update_of = jax.jit(optimizer.update)
  for _ in range(41):
    update, state = update_of(slope, state)
    rates.append(-float(update))
  return rates


def test_the_learning_rate_is_scaled_to_the_run():
  """As the authors': it falls every 20,000 of 2,000,000 steps."""
  # In a process of its own: binaries share names of flags.
  rates = step_cost.in_process(learning_rates)
  np.testing.assert_allclose(rates[0], 3e-3, rtol=1e-4)
  np.testing.assert_allclose(rates[20], 3e-3 * 0.96**50, rtol=1e-4)
  np.testing.assert_allclose(rates[40], 3e-3 * 0.96**100, rtol=1e-4)


@pytest.mark.parametrize(
  "words",
  [
    (*TINY, "--num_iterations=2"),
    (*TINY, "--loss=margin", "--pose=vector", "--coordinates=none"),
    (
      *TINY,
      "--loss=cross_entropy",
      "--form=official",
      "--coordinates=pixels",
      "--start=official",
      "--data_amount=100",
      "--augmentation=ibm",
    ),
  ],
)
@pytest.mark.long
def test_other_networks_and_losses_train(train, data_dir, tmp_path, words):
  code, printed = train(
    tmp_path, "--dataset=viewpoint_solids", *words, *STEPS, "--num_steps=2",
    f"--data_dir={data_dir}", binary="train_matrix_capsules",
  )  # fmt: skip
  assert code == 0, printed
  assert np.isfinite(processes.summary_of(tmp_path)["metrics"]["test_accuracy"])


@pytest.mark.long
def test_black_images_and_a_high_rate_leave_the_network_finite(
  train, data_dir, tmp_path
):
  code, printed = train(
    tmp_path, "--dataset=mnist", *TINY, "--num_iterations=2", *STEPS,
    "--num_steps=20", "--learning_rate=0.03", f"--data_dir={data_dir}",
    binary="train_matrix_capsules",
  )  # fmt: skip
  assert code == 0, printed
  losses = [x["loss"] for x in processes.metrics_of(tmp_path) if "loss" in x]
  assert losses and np.isfinite(losses).all()


@pytest.mark.long
def test_a_rate_that_is_far_too_high_ends_with_a_message(train, tmp_path):
  code, printed = train(
    tmp_path, *TINY, "--padding=SAME", "--num_steps=40", "--log_every=5",
    "--learning_rate=1e30", binary="train_matrix_capsules",
  )  # fmt: skip
  assert code == 1
  assert "became infinite or NaN" in printed
  assert "Try a smaller learning_rate in another workdir" in printed
  assert "Traceback" not in printed


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (("--types=8,16",), "give 3 whole numbers"),
    (("--model=baseline", "--types=8,8,8"), "not use --types"),
    (("--cnn_dense=8",), "--model=capsules does not use --cnn_dense"),
    (("--model=baseline", "--cnn_features=8"), "give 2 whole numbers"),
    (
      ("--final_inverse_temperature=0", "--padding=SAME"),
      "final_inverse_temperature is 0.0",
    ),
    (("--data_amount=inf", "--padding=SAME"), "data_amount=inf: give a finite"),
    (("--model=baseline", "--data_amount=0"), "not use --data_amount"),
    (("--loss=margin", "--margin_steps=9"), "not use --margin_steps"),
    (("--augmentation=ibm",), "not use --augmentation"),
    (("--viewpoints=azimuth", "--padding=SAME"), "does not tell viewpoints"),
    (("--schedule=cosine", "--decay_rate=0.5"), "does not use --decay_rate"),
    (("--padding=VALID",), "images of 8x8 are too small"),
    (("--padding=SAME", "--coordinates=pixels"), "windows without padding"),
  ],
)
@pytest.mark.long_after_first
def test_flags_that_do_not_fit_are_refused(train, tmp_path, words, message):
  code, printed = train(
    tmp_path, *words, "--num_steps=2", binary="train_matrix_capsules"
  )
  assert code == 1
  assert message in printed and "Traceback" not in printed
