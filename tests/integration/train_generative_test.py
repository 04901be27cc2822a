"""Tests of the binary that trains generative capsules."""

import shutil
from types import SimpleNamespace

import generative_cases
import jax
import numpy as np
import processes
import pytest

import capjax
from capjax.generative import guides
from experiments.evaluation import generative as dreams
from experiments.evaluation import generative_rotations, models
from experiments.run import directory

SMALL = (
  "--num_capsules=3,2", "--conv_features=4", "--width=4", "--template_size=5",
  "--num_steps=60", "--eval_every=30", "--log_every=10",
  "--learning_rate=0.01", "--canvas=10",
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
  values = [
    line["objective"]
    for line in processes.metrics_of(trained)
    if line["split"] == "validation"
  ]
  assert values[-1] > values[0]
  # Of digits on the canvas, which is black around them.
  digits = capjax.data.load("digits", "test").images
  assert scores["images_mean"] == pytest.approx(
    np.mean(digits) / 255 * 8**2 / 10**2, rel=1e-5
  )
  # Of validation too, by which settings are chosen.
  assert 0 <= scores["validation_presence_and_pose_accuracy"] <= 1
  figures = {path.stem for path in (trained / "figures").iterdir()}
  assert figures >= {
    "learning_curves", "samples", "templates", "decompositions"
  }  # fmt: skip


@pytest.mark.long
def test_suites_of_rotations(train, trained):
  code, printed = train(
    trained, "--suite=linear,swaps,duplicates,repair", "--images=4",
    binary="evaluate",
  )  # fmt: skip
  assert code == 0, printed
  record = {
    name: suite["metrics"]
    for name, suite in processes.evaluation_of(trained).items()
  }
  for name in ("presence", "rotated_presence_and_pose"):
    assert 0 <= record["linear"][f"{name}_accuracy"] <= 1
  # Of an image that is not turned, all pixels keep their part.
  assert record["swaps"]["angles"][0] == 0
  assert record["swaps"]["same_owner"][0] == 1
  assert max(record["swaps"]["same_owner"][1:]) < 1
  assert 0 <= record["duplicates"]["flat_templates"] <= 1
  repaired = record["repair"]
  before, after = (repaired[f"objective_{x}"] for x in ("before", "after"))
  assert np.less(before, after).all()
  assert repaired["adam_objectives"][0] < repaired["adam_objectives"][-1]
  code, printed = train(
    trained, "--suite=linear", "--images=4", f"--compare_with={trained}",
    binary="evaluate",
  )  # fmt: skip
  assert code == 0, printed
  figures = {path.stem for path in (trained / "figures").iterdir()}
  assert figures >= {"swaps", "duplicates", "repair", "climbs", "rotations"}


@pytest.mark.long
def test_flat_templates_are_no_duplicates(tmp_path):
  bar, ring = np.zeros((2, 9, 9, 1), np.float32)
  bar[2:7, 4] = 1
  ring[1:8, 1:8] = 1
  ring[3:6, 3:6] = 0
  noise = np.random.default_rng(0).normal(0.5, 0.03, (2, *bar.shape))
  colours = np.stack([bar, bar.transpose(1, 0, 2), ring, *noise])
  run = directory.Run(str(tmp_path))
  some = _with_templates(colours.astype(np.float32))
  scores = generative_rotations.duplicates(run, some, models.Options())
  assert scores["flat_templates"] == pytest.approx(2 / 5)
  assert scores["near_duplicates"] == pytest.approx(2 / 3)
  assert run.figure("duplicates").exists()
  # As many random strokes, which have other numbers of bars.
  assert 0 <= scores["strokes_near_duplicates"] <= 1
  assert 0 < scores["strokes_nearest_residual"] < 1
  assert scores["patterned_templates"] == 3
  none = _with_templates(noise)
  nothing = generative_rotations.duplicates(run, none, models.Options())
  assert nothing["near_duplicates"] == 0 and nothing["flat_templates"] == 1


def _with_templates(colours):
  templates = SimpleNamespace(colours=colours)
  capsules = SimpleNamespace(templates=templates)
  model = SimpleNamespace(capsules=capsules)
  return models.Trained(None, None, model, 0, {}, None, {})


@pytest.mark.long
def test_gaussian_poses_start_from_known_ones(train, trained, tmp_path):
  workdir, start = tmp_path / "run", tmp_path / trained.name
  words = (*SMALL, "--gaussian_poses", "--learning_rate=0", "--num_steps=1")
  typo = tmp_path / "nowhere"
  code, printed = train(
    workdir, *words, "--start_from", str(typo), binary="train_generative"
  )
  assert code == 1 and "Traceback" not in printed
  assert f"{typo} does not exist; give the folder of a run" in printed
  assert not typo.exists() and not workdir.exists()
  # That does not stand in the way of what is right.
  shutil.copytree(trained, start)
  words = (*words, "--start_from", str(start))
  code, printed = train(workdir, *words, binary="train_generative")
  assert code == 0, printed
  assert "new: guide.encoders.0.log_scales.bias" in printed
  before, after = (
    processes.summary_of(path)["metrics"]["test_reconstruction_loss"]
    for path in (trained, workdir)
  )
  np.testing.assert_allclose(after, before, rtol=1e-5)
  # Records are read on other machines, where folders are others.
  summary = processes.summary_of(workdir)
  assert summary["flags"]["start_from"] == trained.name
  assert summary["command"].endswith(f"--start_from={trained.name}")
  card = capjax.load(start).card
  assert summary["start_from"] == {
    "name": trained.name, "sha256": card["sha256"],
  }  # fmt: skip
  # What it has taken over it needs no more.
  shutil.rmtree(start)
  code, printed = train(workdir, *words, binary="train_generative")
  assert code == 0, printed
  assert processes.summary_of(workdir)["metrics"] == summary["metrics"]


@pytest.mark.long
def test_an_importance_weighted_bound_is_trained_and_measured(train, tmp_path):
  code, printed = train(
    tmp_path, *SMALL, "--gaussian_poses", "--num_importance=2",
    "--final_temperature=0.3", "--scale_prior=0.5", binary="train_generative",
  )  # fmt: skip
  assert code == 0, printed
  bounds = [
    line["elbo"]
    for line in processes.metrics_of(tmp_path)
    if line["split"] == "validation"
  ]
  assert bounds[-1] > bounds[0]
  code, printed = train(
    tmp_path, "--suite=importance", "--images=20", binary="evaluate"
  )
  assert code == 0, printed
  scores = processes.evaluation_of(tmp_path)["importance"]["metrics"]
  assert scores["bound_1"] < scores["bound_10"] < scores["bound_100"]
  assert scores["effective_samples_1"] == 1 and scores["num_images"] == 20
  assert 1 < scores["effective_samples_100"] < 100


@pytest.mark.long
def test_chains_start_from_draws_of_the_guide(monkeypatch, tmp_path):
  """Chains that hardly move are as likely as these."""
  capsules, guide, images = generative_cases.small(True, (2, 1))

  def stay(capsules, start, image, key, **options):
    return tuple(
      layer.poses[0]
      + 1e-4 * jax.random.normal(key, (20, *layer.poses.shape[1:]))
      for layer in start
    )

  monkeypatch.setattr(dreams.inference, "sample_poses", stay)
  drawn = lambda *_: (images, None)  # noqa: E731
  monkeypatch.setattr(dreams.models, "make_examples", drawn)
  task, test = SimpleNamespace(sample_test=None), SimpleNamespace(labels=[0, 1])
  model = guides.AmortisedCapsules(capsules, guide)
  scores = dreams.chains(
    SimpleNamespace(figure=lambda name: tmp_path / f"{name}.png"),
    models.Trained(task, None, model, 0, {}, test, {}),
    models.Options(),
  )
  assert scores["num_images"] == 2 and (tmp_path / "chains.png").exists()
  np.testing.assert_allclose(
    scores["log_joint_chains"], scores["log_joint_guide"], rtol=1e-3
  )


@pytest.mark.long
def test_poses_that_are_taken_as_known_have_one_sample(
  train, trained, tmp_path
):
  code, printed = train(
    tmp_path, *SMALL, "--num_importance=2", binary="train_generative"
  )
  assert code == 1 and "needs --gaussian_poses" in printed
  code, printed = train(trained, "--suite=importance", binary="evaluate")
  assert code == 1 and "importance: not for the model" in printed


def test_accuracy_is_no_reason_to_stop(train, tmp_path):
  code, printed = train(
    tmp_path, *SMALL, "--stop_accuracy=0.9", binary="train_generative"
  )
  assert code == 1
  assert "does not use" in printed and "Traceback" not in printed
