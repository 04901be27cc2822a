"""The command `capjax`."""

import sys

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


@pytest.mark.parametrize("words", [["train"], ["train", "x"], ["x"], ["../x"]])
def test_other_words_end_with_the_usage(monkeypatch, words):
  monkeypatch.setattr(sys, "argv", ["capjax", *words])
  with pytest.raises(SystemExit, match="unknown command\n.*usage") as error:
    cli.main()
  assert "train_" not in str(error.value)


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_help_lists_all_models(monkeypatch, capsys, words):
  monkeypatch.setattr(sys, "argv", ["capjax", *words])
  with pytest.raises(SystemExit) as error:
    cli.main()
  assert error.value.code == 0
  printed = capsys.readouterr().out
  for model in ("capsnet", "scae", "helmholtz", "vae"):
    assert model in printed
