"""Training on arrays without flags."""

import inspect
import json

import fit_arrays
import jaxtyping
import numpy as np
import optax
import processes
import pytest

import capjax
from capjax import data, specs
from experiments import fitting, pipeline
from experiments.run import directory, provenance
from experiments.run.invocation import Invocation
from experiments.tasks import capsnet, matrix_capsules, scae
from experiments.training import loop_config


def fit(workdir, **options):
  words = str(workdir), json.dumps(options)
  return processes.Running("fit_arrays", *words, package="").wait()


def sets():
  arrays = fit_arrays.arrays
  return data.from_arrays(
    arrays(60), arrays(20, seed=1), class_names=fit_arrays.CLASS_NAMES
  )


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
  workdir = tmp_path_factory.mktemp("fit") / "run"
  code, printed = fit(workdir)
  assert code == 0, printed
  return workdir


@pytest.mark.long
def test_the_folder_is_that_of_a_binary(fitted):
  names = {path.name for path in fitted.iterdir()}
  assert names >= {
    "checkpoints", "data.json", "figures", "metrics.jsonl", "model.json",
    "model.safetensors", "provenance.json", "summary.json",
  }  # fmt: skip
  summary, trained = processes.summary_of(fitted), capjax.load(fitted)
  train, test = sets()
  assert summary["experiment"] == "fit"
  assert summary["data"]["train"] == data.fingerprint(train)
  assert summary["data"]["test"] == data.fingerprint(test)
  assert summary["flags"]["num_steps"] == summary["num_steps"] == 4
  assert tuple(trained.class_names) == fit_arrays.CLASS_NAMES
  found = trained.predict(test.images)
  accuracy = np.mean(found.classes == test.labels)
  assert accuracy == pytest.approx(summary["metrics"]["test_accuracy"])


@pytest.mark.long
def test_the_same_call_returns_the_finished_model(fitted):
  before = (fitted / "metrics.jsonl").read_text()
  code, printed = fit(fitted)
  assert code == 0, printed
  assert (fitted / "metrics.jsonl").read_text() == before
  assert f"fitted {capjax.load(fitted).card['sha256']}" in printed


@pytest.mark.long
def test_other_data_and_options_are_refused(fitted):
  code, printed = fit(fitted, count=64)
  assert code != 0 and "the run was started with other data" in printed
  code, printed = fit(fitted, seed=1)
  assert code != 0 and "other options: seed=0 is now seed=1. Give" in printed
  before = (fitted / "flags.cfg").read_bytes()
  code, printed = fit(fitted, optimizer="sgd", num_steps=9)
  assert code != 0 and "of another model or optimiser" in printed, printed
  assert (fitted / "flags.cfg").read_bytes() == before
  code, printed = fit(fitted, batch_size=600)  # more than there are images
  assert code != 0 and "is now batch_size=600" in printed, printed


@pytest.mark.long
def test_a_killed_run_resumes_to_the_same_numbers(fitted, tmp_path):
  code, _ = fit(tmp_path, stop_at=2)
  assert code != 0 and not (tmp_path / "summary.json").exists()
  code, printed = fit(tmp_path)
  assert code == 0, printed
  metrics = processes.summary_of(fitted)["metrics"]
  assert processes.summary_of(tmp_path)["metrics"] == metrics


@pytest.mark.long
def test_what_a_saved_state_depends_on_is_fixed_before_the_first_line(tmp_path):
  code, _ = fit(tmp_path, stop_at=1, log_every=4)
  assert code != 0 and not (tmp_path / "metrics.jsonl").read_text()
  assert (tmp_path / "checkpoints").exists()
  code, printed = fit(tmp_path, log_every=4, count=64)
  assert code != 0 and "the run was started with other data" in printed


@pytest.mark.long
def test_a_run_without_an_update_starts_again(fitted, tmp_path):
  code, printed = fit(tmp_path, fails=True, log_every=4, start_from=str(fitted))
  assert code != 0 and "the first update fails" in printed
  assert (tmp_path / "checkpoints" / "latest" / "0").exists()
  assert (tmp_path / "start_from.json").exists()
  code, printed = fit(tmp_path, log_every=2, count=64, task="transforming")
  assert code == 0 and "starting again" in printed, printed
  assert "start_from" not in processes.summary_of(tmp_path)


@pytest.mark.long
def test_a_refused_call_changes_nothing(fitted):
  names = "flags.cfg", "provenance.json", "data.json", "model.json"
  before = [(fitted / name).read_bytes() for name in names]
  code, printed = fit(fitted, num_steps=8, count=64)
  assert code != 0 and "lengthened" not in printed
  assert "other data (the train images or labels differ)" in printed
  assert [(fitted / name).read_bytes() for name in names] == before


def test_an_error_that_is_kept_does_not_keep_the_folder(tmp_path, monkeypatch):
  """As in a notebook, which keeps the last one with its frames."""

  def refused(task, run, *arguments, invocation, **options):
    run.lock(invocation)
    raise RuntimeError("refused")

  monkeypatch.setattr(fitting.pipeline, "complete", refused)
  kept = []
  for _ in range(2):
    with pytest.raises(RuntimeError, match="refused") as caught:
      fitting.fit(
        capsnet.make_task(specs.Spec(capjax.CapsNet, {}), optax.sgd(0.1)),
        workdir=tmp_path, train=fit_arrays.arrays(60), num_steps=4,
      )  # fmt: skip
    kept.append(caught.value)


@pytest.mark.long
def test_code_that_continues_a_run_is_recorded(tmp_path, monkeypatch, request):
  # As for users: without the checks of annotations.
  jaxtyping.config.update("jaxtyping_disable", True)
  request.addfinalizer(
    lambda: jaxtyping.config.update("jaxtyping_disable", False)
  )
  monkeypatch.setattr(provenance, "is_dirty", lambda: False)
  # The third call finds a finished run.
  for letter, num_steps in (("a", 1), ("b", 2), ("c", 2)):
    monkeypatch.setattr(provenance, "commit", lambda: letter * 40)  # noqa: B023
    fitting.fit(
      fit_arrays.task(), workdir=tmp_path, train=fit_arrays.arrays(60),
      num_steps=num_steps, batch_size=20,
    )  # fmt: skip
  recorded = json.loads((tmp_path / "provenance.json").read_text())
  assert recorded["commit"] == "a" * 40
  assert [x["commit"] for x in recorded["resumptions"]] == ["b" * 40]
  # The call that made the run longer, whole.
  assert "fit(" in recorded["command"] and "num_steps=2" in recorded["command"]
  assert "num_steps=1" not in recorded["command"]


def test_a_task_of_another_length_is_refused(tmp_path):
  spec = specs.Spec(capjax.MatrixCapsules, {"features": 2, "types": (1, 1, 1)})
  with pytest.raises(ValueError, match="num_steps is missing.*margin_steps"):
    matrix_capsules.make_task(spec, optax.sgd(0.1))
  for options in ({"margin_steps": 2.0}, {"kind": "margin"}):
    for length in ({}, {"num_steps": 9}):
      task = matrix_capsules.make_task(
        spec, optax.sgd(0.1), **options, **length
      )
      assert task.num_steps is None
  task = matrix_capsules.make_task(spec, optax.sgd(0.1), num_steps=9)
  # A folder whose first update was never made holds no run.
  (tmp_path / "task.json").write_text("{}")
  with pytest.raises(ValueError, match="num_steps is 4, .* for 9; give both"):
    fitting.fit(
      task, workdir=tmp_path, train=fit_arrays.arrays(60), num_steps=4
    )


def test_a_run_may_change_the_length_of_its_loss(tmp_path, monkeypatch):
  """With a remark."""
  told = []

  def complete(*arguments, of_length, **options):
    told.append(pipeline.length_remark(of_length()))
    raise RuntimeError("stopped")

  monkeypatch.setattr(fitting.pipeline, "complete", complete)
  monkeypatch.setattr(directory.Run, "holds_a_run", lambda run: True)
  spec = specs.Spec(capjax.MatrixCapsules, {})
  for options in ({"num_steps": 9}, {"margin_steps": 2.0}):
    task = matrix_capsules.make_task(spec, optax.sgd(0.1), **options)
    with pytest.raises(RuntimeError, match="stopped"):
      fitting.fit(
        task, workdir=tmp_path, train=fit_arrays.arrays(60), num_steps=4
      )
  assert told == [
    "; the loss depends on the length, so that the numbers are not those of an "
    "uninterrupted run",
    "",
  ]
  assert "; a and b depend on the length" in pipeline.length_remark(["a", "b"])


def test_training_that_diverges_is_an_error(tmp_path):
  with pytest.raises(FloatingPointError, match="Try a smaller learning_rate"):
    fitting.fit(
      fit_arrays.task(optimizer="sgd", rate=1e30), workdir=tmp_path,
      train=fit_arrays.arrays(60), num_steps=4, batch_size=20, log_every=1,
    )  # fmt: skip


@pytest.mark.long
def test_a_stopped_run_can_end_earlier(fitted, tmp_path):
  options = {"log_every": 5}  # so that the step of the stop has no line yet
  code, _ = fit(tmp_path, num_steps=8, stop_at=2, **options)
  assert code != 0
  code, printed = fit(tmp_path, num_steps=3, **options)
  assert (
    code != 0
    and "4 updates, which cannot be undone; give num_steps=4 or" in printed
  )
  code, printed = fit(tmp_path, num_steps=4, **options)
  lines = processes.metrics_of(tmp_path)
  assert [x["step"] for x in lines if x["split"] == "train"] == [4]
  assert code == 0 and "shortened from 8 to 4 steps" in printed, printed
  metrics = processes.summary_of(fitted)["metrics"]
  assert processes.summary_of(tmp_path)["metrics"] == metrics


@pytest.mark.parametrize(
  ("card", "want"),
  [
    (None, False),
    ({}, False),
    ({"test": "b"}, True),
    ({"test": "a"}, False),
    ({"test": "b", "name": "other"}, False),
    ({"test": "b", "class_names": ["y"]}, False),
    ({"test": "b", "class_names": ["w", "x"]}, True),
  ],
)
def test_a_model_of_other_images_of_the_data_set_is_told(card, want):
  """Those that it was trained on may be among the test images now."""
  known = {"name": "mine", "class_names": ["x"]}
  found = pipeline.is_of_other_images(
    card and {**known, **card},
    Invocation("fit", dataset="mine"),
    {"test": "a", "class_names": ["x"]},
  )
  assert found == want


@pytest.mark.parametrize("test", ["a", "b"])
def test_a_model_of_other_images_without_labels_is_told(test):
  found = pipeline.is_of_other_images(
    {"name": "mine", "test": "a", "class_names": None},
    Invocation("fit", dataset="mine"),
    {"test": test, "class_names": []},
  )
  assert found == (test == "b")


@pytest.mark.long
def test_a_model_to_start_from_is_for_a_new_run_alone(fitted, tmp_path):
  code, printed = fit(tmp_path, start_from=str(fitted), num_steps=2)
  assert code == 0 and "weights start from a model in memory" in printed
  assert "another version of" not in printed
  origin = processes.summary_of(tmp_path)["start_from"]
  assert origin["sha256"] == capjax.load(fitted).card["sha256"]
  other = tmp_path / "other"
  code, printed = fit(other, num_steps=2)
  assert code == 0, printed
  code, printed = fit(other, start_from=str(fitted), num_steps=4)
  assert code == 0 and "weights start from" not in printed
  assert "start_from" not in processes.summary_of(other)


def evaluate(workdir, path, *flags):
  """Evaluates with the arrays in an archive, which is written."""
  images, labels = fit_arrays.arrays(60)
  others, marks = fit_arrays.arrays(20, seed=1)
  np.savez(
    path, images=images, labels=labels, test_images=others, test_labels=marks,
    class_names=fit_arrays.CLASS_NAMES,
  )  # fmt: skip
  flags = f"--workdir={workdir}", f"--dataset={path}", *flags
  code, printed = processes.Running("evaluate", *flags).wait()
  assert code == 0, printed


@pytest.mark.long
def test_evaluate_takes_the_arrays_as_an_archive(fitted, tmp_path):
  evaluate(fitted, tmp_path / "arrays.npz", "--suite=accuracy,views")
  accuracy = processes.evaluation_of(fitted)["accuracy"]["metrics"]
  metrics = processes.summary_of(fitted)["metrics"]
  assert accuracy["test_accuracy"] == metrics["test_accuracy"]
  code, printed = processes.Running("evaluate", f"--workdir={fitted}").wait()
  assert code == 1 and "--dataset=FILE.npz" in printed


@pytest.mark.long
def test_evaluate_takes_a_model_without_classes(tmp_path):
  code, printed = fit(tmp_path, task="transforming")
  assert code == 0, printed
  record = processes.summary_of(tmp_path)["task"]
  assert record["task"] == "transforming"
  assert record["options"]["movements"]["max_shift"] == 1
  evaluate(tmp_path, tmp_path / "arrays.npz", "--suite=errors,unseen_shifts")
  found = processes.evaluation_of(tmp_path)["errors"]["metrics"]
  metrics = processes.summary_of(tmp_path)["metrics"]
  name = "test_reconstruction_loss"
  assert found[name] == metrics[name]


def test_what_is_out_of_range_is_refused(tmp_path):
  images, labels = fit_arrays.arrays(8)
  common = {"workdir": tmp_path, "train": (images, labels)}
  with pytest.raises(ValueError, match="num_steps is 0; give at least 1"):
    fitting.fit(fit_arrays.task(), **common, num_steps=0)
  for options, error, words in (
    ({"num_steps": 10.0}, TypeError, "num_steps is 10.0; give a whole number"),
    ({"num_steps": None}, TypeError, "num_steps is None; give a whole number"),
    ({"num_steps": 1, "profile": -1}, ValueError, "profile is -1; give at lea"),
    ({"num_steps": 1, "seed": 2**31}, ValueError, "seed is 2147483648; give a"),
    ({"num_steps": 1, "average_decay": "0"}, TypeError,
     "average_decay is '0'; give a number"),
    ({"num_steps": 1, "stop_accuracy": 95}, ValueError,
     "stop_accuracy is 95.0; give a share"),
    ({"num_steps": 1, "checkpoint_minutes": -1}, ValueError,
     "checkpoint_minutes is -1.0; give minutes, or 0"),
    ({"num_steps": 1, "class_names": "abc"}, ValueError,
     "class_names is 'abc'; give a sequence of words"),
  ):  # fmt: skip
    with pytest.raises(error, match=words):
      fitting.fit(fit_arrays.task(), **common, **options)
  config = loop_config.LoopConfig(
    np.int64(3), average_decay=np.float32(0.5), rematerialise=np.bool_(True)
  )
  json.dumps(loop_config.check(config))
  with pytest.raises(ValueError, match="average_decay is 1"):
    fitting.fit(fit_arrays.task(), **common, num_steps=1, average_decay=1)
  with pytest.raises(ValueError, match="num_validation is 0; keep images"):
    options = {"num_steps": 1, "stop_accuracy": 0.5, "num_validation": 0}
    fitting.fit(fit_arrays.task(), **common, **options)
  with pytest.raises(TypeError, match="num_steps"):
    fitting.fit(fit_arrays.task(), **common)
  fit = inspect.unwrap(fitting.fit)
  with pytest.raises(TypeError, match="task is the class CapsNet; give what"):
    fit(capjax.CapsNet, **common, num_steps=1)
  with pytest.raises(TypeError, match="start_from is 'digits'; give a trained"):
    fit(fit_arrays.task(), **common, num_steps=1, start_from="digits")
  other = capsnet.make_task(
    specs.Spec(
      capjax.CapsNet, {"num_classes": 7, "conv_kernel": 3, "primary_kernel": 3}
    ),
    optax.adam(1e-3),
  )
  with pytest.raises(ValueError, match="num_classes=7, and the data need [23]"):
    fitting.fit(other, **common, num_steps=1)
  other = capsnet.make_task(
    specs.Spec(capjax.CapsNet, {"image_shape": (8, 8)}), optax.adam(1e-3)
  )
  with pytest.raises(ValueError, match=r"image_shape=\(8, 8\), and the data"):
    fitting.fit(other, **common, num_steps=1)
  other = fit_arrays.task("transforming")
  with pytest.raises(ValueError, match="stop_accuracy is 0.5, and this task"):
    fitting.fit(other, **common, num_steps=1, stop_accuracy=0.5)
  other = capsnet.make_task(
    specs.Spec(capjax.CapsNet, {"conv_kernel": 3, "primary_kernel": 3}),
    optax.adam(1e-3), viewpoints="azimuth",
  )  # fmt: skip
  with pytest.raises(ValueError, match="num_validation is 0, and this task di"):
    fitting.fit(other, **common, num_steps=1, num_validation=0)
  other = scae.make_task(specs.Spec(capjax.SCAE, {}), optax.adam(1e-3))
  with pytest.raises(ValueError, match="num_micro_batches is 2, and prior_bet"):
    fitting.fit(other, **common, num_steps=1, batch_size=4, num_micro_batches=2)
  with pytest.raises(TypeError, match="eval_evry is .*did you mean eval_every"):
    fitting.fit(fit_arrays.task(), **common, num_steps=1, eval_evry=3)
  with pytest.raises(ValueError, match="the arrays: images holds 8 images"):
    common |= {"train": (images, labels[:6])}
    fitting.fit(fit_arrays.task(), **common, num_steps=1)


class OwnCapsNet(capjax.CapsNet):
  """A class of a user."""


def test_models_of_other_classes_are_refused_before_training(tmp_path):
  spec = specs.Spec(OwnCapsNet, {"conv_features": 4})
  task = capsnet.make_task(spec, optax.adam(1e-3))
  workdir = tmp_path / "run"
  with pytest.raises(ValueError, match="made by .*OwnCapsNet, which is not of"):
    fitting.fit(task, workdir=workdir, train=fit_arrays.arrays(60), num_steps=2)
  assert not workdir.exists()


@pytest.mark.long
def test_a_run_whose_suite_fails_has_its_model(fitted, tmp_path):
  code, printed = fit(tmp_path, suite_fails=True)
  assert code != 0 and "the suite fails" in printed
  summary = processes.summary_of(tmp_path)
  assert summary["num_steps"] == 4 and summary["metrics"] == {}
  assert summary["failed_suites"]["accuracy"] == "the suite fails"
  assert len(summary["failed_suites"]) > 1  # one does not end the others
  card = capjax.load(tmp_path).card
  assert card["metrics"] == {} and card["num_steps"] == 4
  code, printed = fit(tmp_path)
  assert code == 0, printed
  metrics = capjax.load(tmp_path).card["metrics"]
  assert metrics == capjax.load(fitted).card["metrics"]
  assert "failed_suites" not in processes.summary_of(tmp_path)
  # The model of a complete run keeps its scores.
  code, _ = fit(tmp_path, suite_fails=True)
  assert code != 0 and capjax.load(tmp_path).card["metrics"] == metrics
