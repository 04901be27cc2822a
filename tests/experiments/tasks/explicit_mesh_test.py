"""Models of all tasks under a mesh with explicit axes, by shapes.

Layers reshape images into windows, which JAX refuses there: its
`jax.sharding.auto_axes` makes the axes automatic within a model.
"""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from task_rows import TASKS, untrained

_MESH = AbstractMesh((8,), ("data",), axis_types=(AxisType.Explicit,))


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.long_after_first
def test_a_model_measures_a_batch_that_is_split(name):
  task, dataset, model = untrained(name)

  def sample(images, labels):
    keys = jax.random.split(jax.random.key(0), 8)
    make = jax.vmap(task.sample_test, (0, 0, None, None))
    return make(keys, jnp.arange(8), images, labels)

  batch = jax.eval_shape(sample, dataset.images, dataset.labels)

  def placed(tree, spec):
    where = NamedSharding(_MESH, spec)
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), tree
    )

  measure = jax.sharding.auto_axes(
    task.measure, axes="data", out_sharding=P("data")
  )
  with jax.sharding.use_abstract_mesh(_MESH):
    measures = jax.eval_shape(
      measure, placed(model, P()), *placed(batch, P("data"))
    )
  for x in measures.values():
    assert len(x) == 8 and x.sharding.spec[0] == "data"
