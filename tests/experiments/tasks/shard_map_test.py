"""Models of all tasks within `jax.shard_map`, by shapes.

Each device measures its part of a batch; the gradients of its loss are averaged
over devices.
"""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from task_rows import TASKS, untrained

_MESH = AbstractMesh((8,), ("data",))


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.long_after_first
def test_a_model_trains_on_a_batch_that_is_split(name):
  task, dataset, model = untrained(name)
  graph, parameters, rest = nnx.split(model, nnx.Param, ...)

  def shapes(function, out_specs, batch):
    function = jax.shard_map(
      function, mesh=_MESH, in_specs=(P(), P(), P("data")), out_specs=out_specs
    )
    return jax.eval_shape(function, parameters, rest, batch)

  def examples(sample):
    def make(images, labels):
      keys = jax.random.split(jax.random.key(0), 8)
      make = jax.vmap(sample, (0, 0, None, None))
      return make(keys, jnp.arange(8), images, labels)

    return jax.eval_shape(make, dataset.images, dataset.labels)

  def measure(parameters, rest, batch):
    return task.measure(nnx.merge(graph, parameters, rest), *batch)

  def gradient(parameters, rest, batch):
    def loss(parameters):
      model = nnx.merge(graph, parameters, rest, copy=True)
      model.train()
      return task.loss(model, *batch, jax.random.key(0), jnp.int32(0))[0]

    return jax.lax.pmean(jax.grad(loss)(parameters), "data")

  for x in shapes(measure, P("data"), examples(task.sample_test)).values():
    assert len(x) == 8
  gradients = shapes(gradient, P(), examples(task.sample))
  for x, y in zip(*map(jax.tree.leaves, (gradients, parameters)), strict=True):
    assert (x.shape, x.dtype) == (y.shape, y.dtype)
