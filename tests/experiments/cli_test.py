"""The command `capjax`."""

import configparser
import re
import sys

import processes
import pytest

from experiments import cli


@pytest.mark.parametrize(
  ("words", "module"),
  [
    (["train", "capsnet", "--seed=1"], "train_capsnet"),
    (["train", "matrix_capsules", "--seed=1"], "train_matrix_capsules"),
    (["evaluate", "--seed=1"], "evaluate"),
    (["predict", "--seed=1"], "predict"),
    (["export", "--seed=1"], "export"),
  ],
)
def test_words_name_a_binary(monkeypatch, words, module):
  ran = []

  def run(name, **options):
    ran.append((name, sys.argv[1:], options))

  monkeypatch.setattr(cli.runpy, "run_module", run)
  monkeypatch.setattr(sys, "argv", ["capjax", *words])
  cli.main()
  options = {"run_name": "__main__", "alter_sys": True}
  assert ran == [(f"experiments.{module}", ["--seed=1"], options)]


@pytest.mark.parametrize(
  "words",
  [
    ["train", "x"],
    ["x"],
    ["../x"],
    ["train", "a b c"],
    ["train capsnet"],
    ["evaluate --workdir=x"],
  ],
)
def test_other_words_end_with_the_usage(monkeypatch, words):
  monkeypatch.setattr(sys, "argv", ["capjax", *words])
  with pytest.raises(SystemExit, match="unknown command\n.*usage") as error:
    cli.main()
  assert "train_" not in str(error.value)


def test_a_model_is_asked_for(monkeypatch):
  monkeypatch.setattr(sys, "argv", ["capjax", "train"])
  with pytest.raises(SystemExit, match="give a model, one of .*capsnet"):
    cli.main()


@pytest.mark.parametrize(
  ("words", "near"),
  [
    (["train", "capsnets"], "capsnet"),
    (["trian", "capsnet"], "train"),
    (["evalute"], "evaluate"),
  ],
)
def test_a_misspelt_word_is_told_the_nearest(monkeypatch, words, near):
  monkeypatch.setattr(sys, "argv", ["capjax", *words])
  with pytest.raises(SystemExit, match=rf"command; did you mean {near}\?\n"):
    cli.main()


@pytest.mark.parametrize("words", [[], ["--help"], ["train", "--help"]])
def test_help_lists_all_models(monkeypatch, capsys, words):
  monkeypatch.setattr(sys, "argv", ["capjax", *words])
  with pytest.raises(SystemExit) as error:
    cli.main()
  assert error.value.code == 0
  printed = capsys.readouterr().out
  for model in ("capsnet", "scae", "helmholtz", "vae"):
    assert model in printed


@pytest.mark.parametrize(
  ("missing", "extra"),
  [("orbax.checkpoint", "train"), ("array_record", "data")],
)
def test_a_missing_extra_is_named(monkeypatch, missing, extra):
  def run(name, **options):
    raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

  monkeypatch.setattr(cli.runpy, "run_module", run)
  monkeypatch.setattr(sys, "argv", ["capjax", "train", "capsnet"])
  with pytest.raises(SystemExit) as error:
    cli.main()
  message = str(error.value)
  assert message.startswith(
    f"capjax train_capsnet needs {missing.split('.')[0]}"
  )
  assert f"pip install 'capjax[{extra}]'" in message


def test_a_module_of_ours_that_is_missing_is_a_fault(monkeypatch):
  def run(name, **options):
    raise ModuleNotFoundError("No module named 'x'", name="experiments.x")

  monkeypatch.setattr(cli.runpy, "run_module", run)
  monkeypatch.setattr(sys, "argv", ["capjax", "evaluate"])
  with pytest.raises(ModuleNotFoundError):
    cli.main()


def test_every_package_of_the_extra_train_is_known():
  parser = configparser.ConfigParser()
  parser.read(processes.ROOT / "setup.cfg")
  wanted = parser["options.extras_require"]["train"].split()
  names = {re.split("[<>=]", line)[0] for line in wanted}
  modules = {"pillow": "PIL", "scikit-learn": "sklearn"}
  assert {modules.get(n, n.removesuffix("-checkpoint")) for n in names} <= set(
    cli._EXTRAS
  )
