"""`--help` of the binaries."""

import re

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


def test_help_is_asked_for():
  assert usage.is_asked(["--seed=1", "--help"]) and usage.is_asked(["-h"])
  assert not usage.is_asked(["--helpfull", "--hidden=3"])
