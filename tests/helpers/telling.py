"""Prints the tasks that command lines of a binary make, as JSON.

It runs in a process of its own, by `processes.Running("telling", BINARY,
LINE..., package="")`, where each LINE holds flags. Nothing is trained.
"""

import importlib
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from absl import flags
from absl.testing import flagsaver

from experiments import launch
from experiments.flags import limits, runs
from experiments.training import task as tasks

# Flags that several binaries share, but not those of all runs.
_SHARED = (
  "augmentation", "boltzmann", "networks", "photometry", "scenes", "viewpoints",
)  # fmt: skip


def _at_ends(schedule: Callable[[int], Any]) -> list[float]:
  """The values of the first step and of the one after the last."""
  steps = (0, runs.NUM_STEPS.value)
  return [float(f"{float(schedule(step)):.3g}") for step in steps]


def _rates(optimizer: optax.GradientTransformation) -> list[float]:
  weights = jnp.zeros(1)
  state = optimizer.init(weights)

  def is_schedule(part):
    return isinstance(part, optax.ScaleByScheduleState)

  def rate(step):
    def reach(part):
      return part._replace(count=step) if is_schedule(part) else part

    reached = jax.tree.map(reach, state, is_leaf=is_schedule)
    # The first update of Adam is the rate too.
    return -optimizer.update(weights + 1, reached, weights)[0][0]

  return _at_ends(rate)


def _kept_proper(optimizer: optax.GradientTransformation) -> list[str]:
  """The units whose precisions do not leave their range."""
  least = jnp.array([[0.0], [-0.005]])
  units = {"hidden": least, "visible": least}
  gradient = jax.tree.map(lambda x: -jnp.ones_like(x), units)
  update, _ = optimizer.update(gradient, optimizer.init(units), units)
  return [name for name, x in update.items() if abs(x[1, 0]) < 1e-6]


def _options(task: tasks.Task) -> dict[str, Any]:
  """The options of a task, with numbers for those that JSON cannot hold."""
  options = task.record()["options"]
  if temperature := task.options.get("temperature"):
    options["temperature"] = _at_ends(temperature)
  if pretraining := task.options.get("pretraining"):
    _, config = pretraining.fit.args
    options["pretraining"] = pretraining._asdict() | {
      "fit": config.num_steps,
      "optimizer": _rates(pretraining.optimizer),
    }
  return options


def _at_default(binary: str) -> Iterable[str]:
  """Yields the flags of the binary that have their default values."""
  own = {binary, *(f"flags.{name}" for name in _SHARED)}
  for module, some in flags.FLAGS.flags_by_module_dict().items():
    if module.removeprefix("experiments.") in own:
      yield from (x.name for x in some if limits.is_default(x.name))


def main(binary: str, lines: list[str]) -> None:
  """Prints a list with one task for each line."""
  module = importlib.import_module(f"experiments.{binary}")
  told: list[dict[str, Any]] = []

  def tell(make_task: Callable[[], tasks.Task]) -> None:
    """Notes the task; replaces `launch.train`."""
    task = make_task()
    told.append(
      {
        "task": task.name,
        **task.model.as_json(),
        "options": _options(task),
        "rates": _rates(task.optimizer),
        "kept_proper": _kept_proper(task.optimizer),
        "at_default": [*_at_default(binary)],
      }
    )

  launch.train = tell
  for line in lines:
    with flagsaver.flagsaver():
      flags.FLAGS([binary, *line.split()])
      module.main()
  print(json.dumps(told))


if __name__ == "__main__":
  main(sys.argv[1], sys.argv[2:])
