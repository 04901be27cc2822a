"""Checks that the model of a binary can be made again from its record.

It runs in a process of its own, by `processes.Running("describing", BINARY,
FLAGS..., package="")`. It makes shapes only, and prints `same` if class,
arguments and shapes are those of the first model.
"""

import importlib
import json
import sys
from collections.abc import Callable

import jax
from absl import app, flags
from flax import nnx

from capjax import specs
from experiments import launch
from experiments.flags import datasets, errors
from experiments.training import task as tasks
from experiments.training import train_step


def _leaves(model):
  leaves = jax.tree_util.tree_leaves_with_path(nnx.state(model))
  return {jax.tree_util.keystr(path): (x.shape, x.dtype) for path, x in leaves}


def _describe(make_task: Callable[[], tasks.Task]) -> None:
  """Checks the record of a task's model; replaces `launch.train`."""
  with errors.clear_errors():
    task = make_task()
    train = datasets.load("train")
    record = json.loads(json.dumps(tasks.model_record(task, train)))
    model = task.describe(train.images.shape[1:], train.num_classes).shapes()
    again = specs.from_json(record)
    shapes = again.shapes()
    assert again.as_json().items() <= record.items()
    assert type(shapes) is type(model)
    assert _leaves(shapes) == _leaves(model)
    count = train_step.num_parameters(model)
    assert record["num_parameters"] == count > 0
    assert record["image_shape"] == list(train.images.shape[1:])
    # What the flags say is in the arguments: another spec has other shapes.
    for name, value in again.arguments.items():
      if name in ("num_capsules", "types", "num_objects", "width"):
        other = (
          [2 * x for x in value] if isinstance(value, tuple) else 2 * value
        )
        changed = specs.Spec(again.maker, again.arguments | {name: other})
        assert _leaves(changed.shapes()) != _leaves(model)
    print(f"same {record['class']}")


if __name__ == "__main__":
  binary = importlib.import_module(f"experiments.{sys.argv.pop(1)}")
  launch.train = _describe
  flags.FLAGS.workdir = "nowhere"
  app.run(lambda argv: binary.main(*argv[1:]))
