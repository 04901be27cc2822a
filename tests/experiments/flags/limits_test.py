"""Flags that make no sense are refused by name, before anything is made."""

import contextlib

import jax
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from experiments import train_capsnet
from experiments.evaluation import suites
from experiments.flags import augmentation as flagged
from experiments.flags import datasets, limits, optimizer, runs
from experiments.run import directory
from experiments.training import augmentation, memory
from experiments.training import task as tasks

DIGITS = ("--conv_kernel=3", "--primary_kernel=3", "--dataset=digits")
# What the model, the optimiser and a batch of digits take is far below it.
SMALL = (*DIGITS, "--conv_features=4", "--num_types=2", "--decoder_features=8")


@contextlib.contextmanager
def given(*words):
  """The flags of a command line, until the end of the block."""
  with flagsaver.flagsaver():
    flags.FLAGS(["binary", *words])
    limits.check_flags()
    yield


def check(dataset):
  """As a binary does before it trains."""
  memory.check(
    train_capsnet.make_task(),
    dataset,
    runs.loop_config(),
    remedy=limits.flags_of_size,
  )


def estimate(dataset):
  return memory.estimate(train_capsnet.make_task(), dataset, runs.loop_config())


def float_flags():
  return [
    flag.name
    for flag in limits.experiment_flags()
    if isinstance(flag.parser, flags.FloatParser)
  ]


def test_every_float_refuses_what_is_not_finite():
  names = float_flags()
  assert {"learning_rate", "max_gradient", "stop_accuracy"} <= set(names)
  for name in names:
    for value in ("nan", "inf", "1e39"):
      with pytest.raises(flags.IllegalFlagValueError, match=f"--{name}="):
        with given(f"--{name}={value}"):
          pass


@pytest.mark.parametrize(
  ("word", "remedy"),
  [
    ("--max_gradient=0", "above 0"),
    ("--max_gradient=1e-45", "at least 1.2e-38"),
    ("--epsilon=0", "above 0"),
    ("--momentum=1", "0.9999"),
    ("--decay_rate=1.01", r"\[0.0, 1.0\]"),
    ("--seed=99999999999999999999", "at most 2147483647"),
    ("--seed=-1", "non-negative"),
    ("--num_steps=99999999999", "at most 2147483647"),
    ("--decoder_features=8,99999999999", "at most 2147483647"),
    ("--decoder_features=", "whole numbers above 0"),
    ("--decoder_features=\u00b2", "whole numbers above 0"),
    ("--canvas=20000", "10000"),
    ("--max_rotation=181", "180"),
    ("--num_iterations=1000", "100"),
  ],
)
def test_flags_beyond_their_range_are_refused(word, remedy):
  name = word.partition("=")[0]
  with pytest.raises(flags.IllegalFlagValueError, match=f"{name}=.*{remedy}"):
    with given(word):
      pass


@pytest.mark.parametrize(
  ("words", "wants"),
  [
    (["--warmup_steps=1000"], ["--warmup_steps=1000", "--num_steps=1000"]),
    (["--final_learning_rate=1"], ["--final_learning_rate=1", "lower one"]),
  ],
)
def test_rates_must_fit_the_run(words, wants):
  with given(*words), pytest.raises(ValueError) as error:
    optimizer.check_flags()
  assert all(word in str(error.value) for word in wants)


def test_a_run_may_end_within_its_warm_up(tmp_path):
  words = ["--warmup_steps=1000", f"--workdir={tmp_path}"]
  with given(*words), pytest.raises(ValueError, match="warmup_steps=1000"):
    optimizer.check_flags()  # of a folder without updates
  (tmp_path / "metrics.jsonl").write_text('{"step": 10, "split": "train"}\n')
  with given(*words):
    optimizer.check_flags()


def test_images_must_stay_in_the_frame():
  for words, wants in (
    (["--max_shift=8"], ["8x8", "8 pixels", "--max_shift"]),
    (["--canvas=7"], ["8x8", "canvas=7", "--canvas", "larger"]),
  ):
    with given(*words), pytest.raises(ValueError) as error:
      augmentation.canvas_of((8, 8, 1), flagged.placement())
    assert all(word in str(error.value) for word in wants)
  with given("--max_shift=7"):
    shape = augmentation.canvas_of((8, 8, 1), flagged.placement())
  assert shape == (8, 8, 1)


def test_groups_that_divide_the_model_hold_all_their_data(monkeypatch):
  monkeypatch.setattr(jax, "device_count", lambda: 4)
  found = []
  for words in ((), ("--model_parallel=4",)):
    with given(*SMALL, *words):
      found.append(estimate(datasets.load("train")).parts)
  monkeypatch.setattr(jax, "device_count", lambda: 1)
  with given(*SMALL, "--model_parallel=4"):  # which training refuses later
    assert estimate(datasets.load("train")).parts["data"] == found[1]["data"]
  for part in ("data", "batch"):
    assert found[1][part] == pytest.approx(4 * found[0][part], rel=1e-3)


@pytest.mark.parametrize(
  ("word", "part"),
  [
    ("--conv_features=2000000000", "primary"),
    ("--num_types=2000000000", "classes"),
    ("--batch_size=2000000000", "batch"),
    ("--canvas=10000", "decoder"),
  ],
)
def test_too_much_memory_is_named_before_it_is_taken(word, part):
  with given(*SMALL, *word.split()), pytest.raises(ValueError) as error:
    check(datasets.load("train"))
  for want in ("available", f"lower {word.partition('=')[0]}", part):
    assert want in str(error.value)


def test_devices_of_a_cpu_share_its_memory(monkeypatch):
  with given(*SMALL, "--batch_size=16"):
    train = datasets.load("train")
    free = 3 * estimate(train).total // 2
    monkeypatch.setattr(memory, "available", lambda: free)
    check(train)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    monkeypatch.setattr(jax, "local_device_count", lambda: 2)
    with pytest.raises(ValueError, match="available; lower"):
      check(train)


def test_an_estimate_is_what_arrays_take():
  with given(*SMALL, "--batch_size=16"):
    train = datasets.load("train")
    parts, _ = estimate(train)
    model = tasks.make_model(train_capsnet.make_task(), train)
  size = sum(x.nbytes for x in jax.tree.leaves(model))
  assert parts["model"] == parts["gradients"] == size
  assert parts["optimiser"] == 2 * size + 8  # and two counts
  assert "average" not in parts
  assert parts["data"] == train.images.nbytes + train.labels.nbytes
  assert parts["batch"] == 16 * 4 * (8 * 8 + 1)


def test_an_estimate_counts_averaged_weights():
  with given(*SMALL, "--average_decay=0.99"):
    need = estimate(datasets.load("train"))
  assert need.parts["average"] == need.parts["model"] > 0


def test_free_memory_is_that_of_the_host():
  free = memory.available()
  assert free is None or 2**20 < free < 2**50


def test_only_errors_about_images_tell_of_the_default_data_set():
  hint = "--dataset is digits by default"
  with flagsaver.flagsaver():
    for words, wants in (((), True), (("--cnn_pool=2",), False)):
      flags.FLAGS(["binary", *words])
      with pytest.raises(ValueError) as error, datasets.naming_the_default():
        tasks.make_model(train_capsnet.make_task(), datasets.load("train"))
      assert (hint in str(error.value)) == wants


def test_folders_need_names(monkeypatch, tmp_path):
  with pytest.raises(ValueError, match="--workdir"):
    directory.Run("")
  with pytest.raises(ValueError, match="data_dir is empty"):
    tasks.data.load("mnist", "train", "")
  monkeypatch.setenv("HOME", str(tmp_path))
  assert directory.Run("~/a").workdir == tmp_path / "a"
  (tmp_path / "b").mkdir()
  with pytest.raises(FileNotFoundError, match=str(tmp_path / "b")):
    tasks.data.load("smallnorb", "train", "~/b")


def test_suites_are_named(train, tmp_path):
  for word, want in (("--suite=", "--suite is empty"), ("--suite=,", "''")):
    code, printed = train(tmp_path, word, binary="evaluate")
    assert code == 1 and want in printed and "accuracy" in printed
    assert "Traceback" not in printed
  assert set(suites.SUITES) > {"accuracy"}


@pytest.mark.parametrize(
  ("word", "wants"),
  [
    ("--learning_rate=nan", ["--learning_rate=nan", "finite"]),
    ("--workdir=", ["--workdir"]),
    ("--conv_features=2000000000", ["--conv_features", "available"]),
  ],
)
def test_binaries_end_with_a_sentence(train, tmp_path, word, wants):
  workdir = tmp_path / "run"
  code, printed = train(workdir, *SMALL, word)
  assert code == 1 and "Traceback" not in printed
  assert all(want in printed for want in wants)
  assert not workdir.exists()  # nothing was begun


def test_a_run_of_small_numbers_is_let_through():
  with given(*SMALL):
    train = datasets.load("train")
    check(train)
    assert np.ndim(train.images) == 4


def test_a_file_needs_its_folder(tmp_path):
  limits.require_folder("out", str(tmp_path / "a.csv"))
  limits.require_folder("out", "a.csv")
  with pytest.raises(ValueError, match="--out=.*there is no folder"):
    limits.require_folder("out", str(tmp_path / "no" / "a.csv"))


def test_words_that_are_no_flags_are_refused(monkeypatch, capsys):
  calls = []
  monkeypatch.setattr("sys.argv", ["binary", "--seed=3", "stray", "word"])
  with flagsaver.flagsaver():
    with pytest.raises(SystemExit) as end:
      limits.run(lambda: calls.append("ran"))
    assert end.value.code == 1 and not calls
    assert "unexpected arguments: ['stray', 'word']" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
      limits.run_on_words(calls.append)
    assert not end.value.code and calls == [["stray", "word"]]
    monkeypatch.setattr("sys.argv", ["binary", "--seed=3"])
    with pytest.raises(SystemExit) as end:
      limits.run(lambda: calls.append("ran"))
    assert not end.value.code and calls[1:] == ["ran"]
