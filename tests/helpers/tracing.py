"""Lowers an update of a binary, without compiling it or changing anything.

It runs in a process of its own, by `processes.Running("tracing", BINARY,
FLAGS..., package="")`. The flags are parsed and the data loaded. Model,
optimiser and loss are traced at full size, as shapes only. Loss, gradient and
update must have a program for GPUs and for TPUs.
"""

import importlib
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from absl import app, flags
from flax import nnx

from capjax.layers import platforms
from experiments import launch
from experiments.flags import datasets, errors, runs
from experiments.training import task as tasks
from experiments.training import train_step


def _trace(make_task: Callable[[], tasks.Task]) -> None:
  """Lowers the update of a task; replaces `launch.train`."""
  with errors.clear_errors():
    runs.configure()
    task = make_task()
    train = datasets.load("train")
    batch_size = runs.BATCH_SIZE.value

    def begin():
      spec = task.describe(train.images.shape[1:], train.num_classes)
      model = spec.make(nnx.Rngs(0))
      model.train()
      return train_step.init(model, task.optimizer, jax.random.key(0))

    def update(state, images, labels):
      keys = jax.random.split(state.key, batch_size)
      examples = jax.vmap(task.sample, (0, 0, None, None))(
        keys, jnp.arange(batch_size), images, labels
      )
      graph, parameters, rest = nnx.split(state.model, nnx.Param, ...)

      def loss(parameters):
        model = nnx.merge(graph, parameters, rest, copy=True)
        return task.loss(model, *examples, state.key, state.step)

      (value, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(
        parameters
      )
      step, _ = task.optimizer.update(gradient, state.opt_state, parameters)
      return value, metrics, optax.apply_updates(parameters, step)

    state = jax.eval_shape(begin)
    with platforms.known("cuda"):  # the forms of all accelerators
      traced = jax.jit(update).trace(state, train.images, train.labels)
    traced.lower(lowering_platforms=("cuda", "tpu"))
    value, metrics, _ = traced.out_info
    assert value.shape == () and metrics
    assert all(x.shape == () for x in metrics.values()), metrics
    print("lowered")


if __name__ == "__main__":
  binary = importlib.import_module(f"experiments.{sys.argv.pop(1)}")
  launch.train = _trace
  flags.FLAGS.workdir = "nowhere"
  app.run(lambda argv: binary.main(*argv[1:]))
