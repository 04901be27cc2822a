"""Traces one update of a binary, without compiling it or changing anything.

In a process of its own, by `processes.Running("tracing", BINARY, FLAGS...,
package="")`: its flags are parsed, its data loaded, and its model, optimiser
and loss are made and followed through in shapes alone, at full size.
"""

import importlib
import sys

import jax
from absl import app, flags

from capjax import data
from experiments.common import program, runs, training
from experiments.common import task as tasks


def _trace(task: tasks.Task) -> None:
  """In the place of `program.train`."""
  with runs.clear_errors():
    runs.configure()
    train = data.load(runs.DATASET.value, "train", runs.DATA_DIR.value)
    batch_size = runs.BATCH_SIZE.value
    optimizer = task.make_optimizer()
    update = training.make_update(
      task.loss,
      optimizer,
      draw=task.draw,
      batch_size=batch_size,
      mesh=training.data_mesh(batch_size),
    )

    def start():
      model = tasks.make_model(task, train)
      return training.init(model, optimizer, jax.random.key(0))

    state = jax.eval_shape(start)
    after, metrics = jax.eval_shape(
      update, state, train.images, train.labels, 1
    )
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert metrics and all(x.shape == () for x in metrics.values()), metrics
    unknown = {*task.after_training} - {*task.suites(state.model)}
    print("left out after training:", unknown)


if __name__ == "__main__":
  binary = importlib.import_module(f"experiments.{sys.argv.pop(1)}")
  program.train = _trace
  flags.FLAGS.workdir = "nowhere"
  app.run(binary.main)
