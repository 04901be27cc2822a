"""Traces the loss of a binary, without compiling it or changing anything.

In a process of its own, by `processes.Running("tracing", BINARY, FLAGS...,
package="")`: its flags are parsed, its data loaded, and its model, optimiser
and loss are made and followed through in shapes alone, at full size.
"""

import importlib
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
from absl import app, flags
from flax import nnx

from experiments import launch
from experiments.flags import datasets, errors, runs
from experiments.training import task as tasks
from experiments.training import train_step


def _trace(make_task: Callable[[], tasks.Task]) -> None:
  """In the place of `launch.train`."""
  with errors.clear_errors():
    runs.configure()
    task = make_task()
    train = datasets.load("train")
    batch_size = runs.BATCH_SIZE.value

    def first_loss(images, labels):
      spec = task.describe(train.images.shape[1:], train.num_classes)
      model = spec.make(nnx.Rngs(0))
      state = train_step.init(model, task.optimizer, jax.random.key(0))
      keys = jax.random.split(state.key, batch_size)
      examples = jax.vmap(task.sample, (0, 0, None, None))(
        keys, jnp.arange(batch_size), images, labels
      )
      model.train()
      return task.loss(model, *examples, state.key, state.step)

    value, metrics = jax.eval_shape(first_loss, train.images, train.labels)
    assert value.shape == () and metrics
    assert all(x.shape == () for x in metrics.values()), metrics
    print("traced")


if __name__ == "__main__":
  binary = importlib.import_module(f"experiments.{sys.argv.pop(1)}")
  launch.train = _trace
  flags.FLAGS.workdir = "nowhere"
  app.run(binary.main)
