"""A run's model as `capjax.load` gives it, and what starts from it."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest
from flax import nnx

import capjax
from capjax import data, saved, specs

SHORT = (*processes.SMALL, "--num_steps=20", "--average_decay=0.9")


@pytest.fixture(scope="module")
def run(train, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("load") / "run"
  code, printed = train(workdir, *SHORT)
  assert code == 0, printed
  return workdir


def test_the_model_of_a_run_is_loaded(run):
  trained = capjax.load(run)
  summary = processes.summary_of(run)
  test = data.load("digits", "test")
  found = trained.predict(test.images)
  accuracy = np.mean(found.classes == test.labels)
  assert accuracy == pytest.approx(summary["metrics"]["test_accuracy"])
  raw = summary["metrics"]["raw_test_margin_loss"]
  assert raw != summary["metrics"]["test_margin_loss"]
  present = jax.nn.one_hot(test.labels, 10)
  margin = capjax.losses.margin_loss(jnp.asarray(found.scores), present)
  np.testing.assert_allclose(
    np.mean(margin), summary["metrics"]["test_margin_loss"], rtol=1e-4
  )


def test_the_card_of_a_run_says_what_it_is(run):
  card, summary = capjax.load(run).card, processes.summary_of(run)
  written = json.loads((run / "model.json").read_text())
  assert card == written and card.items() >= summary["model"].items()
  assert card["data"] == {"name": "digits", **summary["data"]}
  assert card["metrics"]["test_accuracy"] == summary["metrics"]["test_accuracy"]
  assert card["num_images"]["test_accuracy"] == 360
  for name in ("commit", "versions", "command", "seed", "reported"):
    assert card[name] == summary[name]


@pytest.mark.long
def test_an_older_run_is_exported(run, train):
  path = run / "model.safetensors"
  before = path.read_bytes()
  path.unlink()
  with pytest.raises(FileNotFoundError, match="capjax export --workdir"):
    capjax.load(run)
  code, printed = train(run, "--format=safetensors", binary="export")
  assert code == 0, printed
  assert path.read_bytes() == before
  assert capjax.load(run).card["sha256"] in printed


def test_an_unfinished_run_is_not_exported(run, train, tmp_path):
  (tmp_path / "provenance.json").write_text("{}")
  with pytest.raises(FileNotFoundError, match="repeat its training command"):
    capjax.load(tmp_path)
  code, printed = train(tmp_path, binary="export")
  assert code == 1 and "no run was completed there" in printed


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (("--out=graph",), "--format=safetensors does not use --out"),
    (
      ("--format=onnx", "--out=graph", "--half"),
      "--format=onnx does not use --half",
    ),
    (
      ("--format=onnx", "--out=graph", "--dataset=mnist", "--grayscale"),
      "--format=onnx does not use --dataset, --grayscale",
    ),
    (
      ("--format=stablehlo", "--out=graph", "--source=digits"),
      "--source and --workdir both name a model",
    ),
    (("--format=onnx",), "--format=onnx needs --out=FILE"),
    (
      ("--without_decoder",),
      "--without_decoder is for --pretrained=NAME alone",
    ),
  ],
)
@pytest.mark.long_after_first
def test_flags_of_other_formats_are_refused(train, tmp_path, words, message):
  code, printed = train(tmp_path, *words, binary="export")
  assert code == 1 and message in printed


def small(num_classes):
  """The network of `processes.SMALL`, with these classes."""
  arguments = dict(
    image_shape=(8, 8, 1), num_classes=num_classes, conv_features=4,
    conv_kernel=3, num_types=2, primary_kernel=3, decoder_features=(8,),
  )  # fmt: skip
  spec = specs.Spec(capjax.CapsNet, arguments)
  card = saved.make_card(
    spec,
    image_shape=(8, 8, 1),
    class_names=[str(n) for n in range(num_classes)],
  )
  return saved.TrainedModel(spec.make(nnx.Rngs(7)), card)


@pytest.mark.long
def test_training_starts_from_weights_of_other_classes(train, tmp_path):
  source, workdir = tmp_path / "three.safetensors", tmp_path / "run"
  card = capjax.save(small(3), source)
  given = os.path.relpath(source, processes.ROOT)
  words = (
    *processes.SMALL, "--num_steps=2", "--learning_rate=0",
    f"--start_from={given}",
  )  # fmt: skip
  code, printed = train(workdir, *words)
  assert code == 0, printed
  new = "classes.bias, classes.transforms, decoder.layers.0.kernel"
  assert f"7 weights start from {given}; new: {new}\n" in printed
  # From any working folder.
  assert f"--start_from={source}\n" in (workdir / "flags.cfg").read_text()
  summary = processes.summary_of(workdir)
  record = {"name": "three.safetensors", "sha256": card["sha256"]}
  assert summary["start_from"] == record
  assert str(tmp_path) not in json.dumps(summary)
  trained = capjax.load(workdir)
  assert trained.card["start_from"] == record
  for name in ("conv", "primary"):
    got, want = (
      nnx.to_flat_state(nnx.state(getattr(x.model, name)))
      for x in (trained, small(3))
    )
    for (_, x), (_, y) in zip(got, want, strict=True):
      np.testing.assert_array_equal(x[...], y[...])
  # A run that resumes does not read it again.
  source.unlink()
  code, printed = train(workdir, *words)
  assert code == 0 and "start from" not in printed, printed
  assert processes.summary_of(workdir)["start_from"] == record


@pytest.mark.long
def test_weights_of_another_network_are_refused(train, tmp_path):
  source, workdir = tmp_path / "x.safetensors", tmp_path / "run"
  capjax.save(small(10), source)
  code, printed = train(workdir, *processes.BASELINE, f"--start_from={source}")
  assert code == 1 and "Traceback" not in printed
  assert "no weight of the CapsNet fits the CapsNetBaseline" in printed
  assert not workdir.exists()


def test_pretraining_and_other_weights_exclude_each_other(train, tmp_path):
  code, printed = train(
    tmp_path / "run", "--start_from=digits", binary="train_helmholtz"
  )
  assert code == 1 and "give --pretrain_steps=0" in printed
