"""Trains by a binary, and reports once that training has diverged.

It runs in a process of its own, by `processes.Running("diverging", BINARY,
COUNT, FLAGS..., package="")`. Only the COUNT-th metrics that `Task.diverged`
judges count as diverged. The trained model is not evaluated.
"""

import importlib
import itertools
import sys
from collections.abc import Callable

from absl import app

from experiments import launch
from experiments.training import task


def _diverge(count: int):
  """A replacement of `launch.train`, whose training diverges once."""
  train = launch.train

  def train_diverging(make_task: Callable[[], task.Task]) -> None:
    judged = itertools.count(1)
    train(
      lambda: make_task()._replace(
        diverged=lambda metrics: next(judged) == count, after_training=()
      )
    )

  return train_diverging


if __name__ == "__main__":
  binary = importlib.import_module(f"experiments.{sys.argv.pop(1)}")
  launch.train = _diverge(int(sys.argv.pop(1)))
  app.run(lambda argv: binary.main(*argv[1:]))
