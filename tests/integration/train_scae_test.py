"""Tests of the binary that trains stacked capsule autoencoders."""

import numpy as np
import processes
import pytest

from experiments.evaluation import scae

SMALL = (
  "--canvas=23", "--num_parts=3", "--num_objects=4", "--template_size=4",
  "--num_features=2", "--encoder_features=4", "--batch_size=32",
  "--num_steps=30", "--eval_every=10", "--log_every=10",
  "--learning_rate=0.003",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "scae"
  code, printed = train(workdir, *SMALL, binary="train_scae")
  assert code == 0, printed
  return workdir


def test_a_run_writes_what_all_runs_write(trained):
  summary = processes.summary_of(trained)
  assert summary["num_steps"] == 30
  scores = summary["metrics"]
  assert 0 <= scores["prior_match_accuracy"] <= 1
  # The best matching on the test images themselves is at least the average one.
  assert 0.1 <= scores["posterior_refit_accuracy"] <= 1
  assert 0 <= scores["idle_objects"] <= 1
  figures = {path.stem for path in (trained / "figures").iterdir()}
  assert figures >= {
    "learning_curves", "templates", "reconstructions", "presences", "embedding"
  }  # fmt: skip


def test_the_loss_falls(trained):
  lines = [x for x in processes.metrics_of(trained) if x["split"] == "train"]
  assert lines[-1]["loss"] < lines[0]["loss"]
  assert lines[-1]["image_log_prob"] > lines[0]["image_log_prob"]


@pytest.mark.long
def test_other_suites(train, trained):
  code, printed = train(
    trained, "--suite=label_curve,affnist_like_clusters", "--images=40",
    "--views=2", binary="evaluate",
  )  # fmt: skip
  assert code == 0, printed
  scores = processes.evaluation_of(trained)
  curve = scores["label_curve"]["metrics"]
  assert len(curve["labels"]) == len(curve["linear_accuracy"])
  views = scores["affnist_like_clusters"]["metrics"]
  assert 0 <= views["affnist_like_posterior_match_accuracy"] <= 1


@pytest.mark.long
def test_tensorflow_optimiser_trains(train, tmp_path):
  code, printed = train(
    tmp_path, *SMALL, "--optimizer=rmsprop", "--decay_rate=1",
    "--nonoise", "--kind=similarity", "--nonlinearity=relu1", "--edges",
    "--normalise=all", "--mixing=coupled", binary="train_scae",
  )  # fmt: skip
  assert code == 0, printed
  scores = processes.summary_of(tmp_path)["metrics"]
  assert np.isfinite(list(scores.values())).all()


@pytest.mark.long
def test_a_model_with_all_parts_replaced_trains(train, tmp_path):
  code, printed = train(
    tmp_path, *SMALL, "--num_features=0", "--nodeformations",
    "--object_encoder=mlp", "--part_encoder=pixels", binary="train_scae",
  )  # fmt: skip
  assert code == 0, printed
  scores = processes.summary_of(tmp_path)["metrics"]
  assert np.isfinite(list(scores.values())).all()


@pytest.mark.parametrize(
  "given, message",
  [
    (["--momentum=0.5"], "--optimizer=adam does not use --momentum"),
    (
      ["--object_encoder=mlp", "--masking=near_hard"],
      "--object_encoder=mlp does not use --masking",
    ),
  ],
)
@pytest.mark.long_after_first
def test_useless_flags_are_refused(train, tmp_path, given, message):
  code, printed = train(tmp_path, *SMALL, *given, binary="train_scae")
  assert code == 1
  assert message in printed
  assert "Traceback" not in printed


def test_collapse_is_named():
  good = {
    "dead_parents": 0.0,
    "flat_templates": 0.0,
    "part_log_prob": 100.0,
    "present_parts": 9.0,
  }
  assert not scae.warn(good, num_parts=40)
  for name, value, word in (
    ("dead_parents", 0.6, "60% of the object capsules"),
    ("flat_templates", 0.7, "70% of the templates are flat"),
    ("part_log_prob", 157.5, "17.5 nats (9 of 40 are present)"),
    ("present_parts", 1e-3, "0.001 of 40 parts"),
    ("present_parts", 0.0, "0 of 40 parts"),
  ):
    (message,) = scae.warn({**good, name: value}, num_parts=40)
    assert word in message


def test_absent_parts_hide_no_explosion():
  """They have no likelihood; and few parts of many need not be sharp."""
  scores = {"dead_parents": 0.0, "flat_templates": 0.0, "present_parts": 8.0}
  (message,) = scae.warn({**scores, "part_log_prob": 8 * 22.0}, num_parts=24)
  assert "22.0 nats" in message
  assert not scae.warn({**scores, "part_log_prob": 8 * 14.0}, num_parts=24)


@pytest.mark.long
def test_warnings_are_said(train, tmp_path):
  """One part cannot wake many objects."""
  code, printed = train(
    tmp_path, *SMALL, "--num_parts=1", "--num_objects=12", binary="train_scae"
  )
  assert code == 0, printed
  assert "warning: " in printed
  assert "explain no part best" in printed


@pytest.mark.long
def test_pairs_of_images_train(train, tmp_path):
  words = [word for word in SMALL if not word.startswith("--canvas")]
  code, printed = train(
    tmp_path, *words, "--scene=multimnist", "--pad=8", "--max_shift=2",
    binary="train_scae",
  )  # fmt: skip
  assert code == 0, printed
  scores = processes.summary_of(tmp_path)["metrics"]
  assert -0.5 <= scores["multimnist_rand_index"] <= 1
  assert "prior_match_accuracy" not in scores  # of images of one class
  code, printed = train(tmp_path, "--suite=object_masks", binary="evaluate")
  assert code == 0, printed


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (("--scene=multimnist",), "--scene=multimnist does not use --canvas"),
    (("--scene=multimnist", "--canvas=0"), "say how far, such as --max_shift"),
    (("--scene=affnist_like", "--pad=2"), "does not use --pad"),
    (("--scene=affnist_like", "--canvas=0"), "give its side"),
    (("--pad=2",), "training without --scene does not use --pad"),
  ],
)
@pytest.mark.long_after_first
def test_flags_that_no_scene_uses_are_refused(train, tmp_path, words, message):
  code, printed = train(tmp_path, *SMALL, *words, binary="train_scae")
  assert code == 1
  assert message in printed and "Traceback" not in printed
