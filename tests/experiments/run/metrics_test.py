"""Writers of metrics, besides lines of JSON (see directory_files_test)."""

import sys
import types

import pytest

from experiments.run import metrics


class Recorded:
  """In the place of a run of `wandb`, which keeps what it gets."""

  def __init__(self, **options):
    self.options, self.lines, self.ended = options, [], False

  def log(self, values, step):
    self.lines.append((step, values))

  def finish(self):
    self.ended = True


@pytest.fixture
def runs(monkeypatch):
  made = []

  def init(**options):
    made.append(Recorded(**options))
    return made[-1]

  package = types.SimpleNamespace(init=init)
  monkeypatch.setitem(sys.modules, "wandb", package)
  return made


def test_weights_and_biases_gets_each_metric_of_each_split(tmp_path, runs):
  for step in (0, 20):  # the second as a process that resumes
    writer = metrics.WeightsAndBiases(tmp_path, step, project="capsules")
    writer.write(step + 5, "train", {"loss": 0.5, "accuracy": 0.25})
    writer.close()
  first, second = runs
  assert first.options["project"] == "capsules" and first.ended
  assert first.options["id"] == second.options["id"]
  assert first.lines == [(5, {"train/loss": 0.5, "train/accuracy": 0.25})]


def test_a_missing_package_is_named(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "wandb", None)
  with pytest.raises(ValueError, match="--wandb=x needs .* pip install wandb"):
    metrics.WeightsAndBiases(tmp_path, 0, project="x")
