"""`--help` of the binaries."""

import re
import sys

from experiments import train_capsnet  # noqa: F401 (its flags)
from experiments.flags import limits, usage


def test_every_flag_of_ours_is_in_one_group():
  text = usage.text(limits.experiment_flags())
  for flag in limits.experiment_flags():
    heading = rf"^  --(\[no\])?{flag.name}(  \[.*\])?$"
    assert len(re.findall(heading, text, re.MULTILINE)) == 1, flag.name
  places = [text.index(f"\n{x}:\n") for x in ("Run", "Data", "Training")]
  assert places == sorted(places)
  assert "--stderrthreshold" not in text  # of absl
  assert text.index("--routing") < text.index("\nTraining:")
  for name in ("--max_shift", "--crop", "--viewpoints"):
    assert text.index(f"  {name}") < text.index("\nModel and loss:")


def test_commands_are_those_of_the_way_it_was_started(monkeypatch):
  about = (
    "Trains.\n\n  python -m experiments.train_scae --workdir=runs/scae \\\n"
    "    --flagfile=experiments/presets/scae/scae_mnist_cpu.cfg\n"
    "  python -m experiments.evaluate --workdir=runs/scae\n"
  )
  monkeypatch.setattr(sys.modules["__main__"], "__doc__", about)
  monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "experiments.x"])
  assert "python -m experiments.train_scae" in usage.text([])
  monkeypatch.setattr(sys, "orig_argv", ["python", "/bin/capjax", "train"])
  text = usage.text([])
  assert "capjax train scae --workdir" in text and "capjax evaluate" in text
  assert "--preset=scae_mnist_cpu\n" in text and "experiments" not in text


def test_help_is_asked_for():
  assert usage.is_asked(["--seed=1", "--help"]) and usage.is_asked(["-h"])
  assert not usage.is_asked(["--helpfull", "--hidden=3"])
