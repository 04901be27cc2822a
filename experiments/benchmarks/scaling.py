"""Counts of a training step on several devices, from its compiled form."""

import re
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from capjax.evaluation import operations

from ..training import placing, train_step
from ..training.task import Task

DEVICES = 8  # of the mesh whose collective operations are counted
_EXAMPLES = 65_536  # in the data set for which the update is compiled
_COLLECTIVE = re.compile(
  r" = (.*?) (all-reduce|all-gather|reduce-scatter|collective-permute"
  r"|all-to-all)(?:-start)?\("
)
_ARRAY = re.compile(r"(pred|[a-z]+)(\d*)\[([\d,]*)\]")


class Case(NamedTuple):
  """A model in the size of its paper, and how it is trained.

  Attributes:
    make_task: makes the task.
    image_shape: [H W C] of the data.
    num_classes: of the data.
    batch: examples of one device in a step.
  """

  make_task: Callable[[], Task]
  image_shape: tuple[int, int, int]
  num_classes: int
  batch: int


def costs(case: Case) -> dict[str, float]:
  """Counts what a step costs each device; JAX must have `DEVICES` or more.

  Args:
    case: the model and its training.

  Returns:
    `parameters`; `batch` of a device; `operations` of the loss, in all
    iterations of loops (see `capjax.evaluation.operations`);
    `flops` and `bytes`, XLA's counts for the whole update on one device, in
    which the body of a loop counts once; `temporary_bytes` that XLA allocates;
    `gradient_bytes`, which devices sum; `row_bytes` of an image and its label;
    `collective_megabytes`, the size of the results of all operations between
    `DEVICES` devices in a step; and `summed_megabytes`, the size of the
    gradients and the batch among them.
  """
  task = case.make_task()
  devices = jax.devices()
  alone, _, _ = _compiled(task, case, _mesh(devices[:1]))
  together, state, batch = _compiled(task, case, _mesh(devices[:DEVICES]))
  parameters = jax.tree.leaves(nnx.state(state.model, nnx.Param))
  analysis, key = alone.cost_analysis(), jax.random.key(0)

  def loss(model, inputs, targets):
    model = nnx.merge(*nnx.split(model))
    model.train()
    return task.loss(model, inputs, targets, key, jnp.int32(0))[0]

  height, width, channels = case.image_shape
  gradient_bytes = sum(x.size * x.dtype.itemsize for x in parameters)
  row_bytes = height * width * channels + 4
  summed = gradient_bytes + DEVICES * case.batch * row_bytes
  return {
    "parameters": sum(x.size for x in parameters),
    "batch": case.batch,
    "operations": operations.count(loss, state.model, *batch),
    "flops": int(analysis["flops"]),
    "bytes": int(analysis["bytes accessed"]),
    "temporary_bytes": alone.memory_analysis().temp_size_in_bytes,
    "gradient_bytes": gradient_bytes,
    "row_bytes": row_bytes,
    "collective_megabytes": collective_bytes(together.as_text()) / 1e6,
    "summed_megabytes": summed / 1e6,
  }


def collective_bytes(text: str) -> int:
  """The bytes of the results of operations between devices.

  Args:
    text: a compiled program, as XLA prints it.
  """
  return sum(
    _bytes(kind, width, shape)
    for results, _ in _COLLECTIVE.findall(text)
    for kind, width, shape in _ARRAY.findall(results)
  )


def _bytes(kind: str, width: str, shape: str) -> int:
  count = 1
  for side in filter(None, shape.split(",")):
    count *= int(side)
  return count * (1 if kind == "pred" else int(width) // 8)


def _mesh(devices: list[jax.Device]) -> Mesh:
  return placing.data_mesh(len(devices), devices)


def _compiled(task: Task, case: Case, mesh: Mesh):
  """The compiled update; the shapes of its state, and of a device's batch."""
  batch_size = case.batch * mesh.size
  update = train_step.make_update(
    task.loss, task.optimizer, sample=task.sample, batch_size=batch_size,
    mesh=mesh,
  )  # fmt: skip

  def begin():
    spec = task.describe(case.image_shape, case.num_classes)
    model = spec.make(nnx.Rngs(0))
    return train_step.init(model, task.optimizer, jax.random.key(0))

  def data(shape, dtype):
    split = NamedSharding(mesh, P("data"))
    return placing.Divided(
      jax.ShapeDtypeStruct(shape, dtype, sharding=split), shape[0]
    )

  images = data((_EXAMPLES, *case.image_shape), jnp.uint8)
  labels = data((_EXAMPLES,), jnp.int32)
  state = placing.placed_shapes(jax.eval_shape(begin), mesh)
  totals = update.zeros(state, images, labels)
  run = update.add.lower(state, totals, images, labels, 1).compile()

  def sample(images, labels):
    keys = jax.random.split(jax.random.key(0), case.batch)
    make = jax.vmap(task.sample, (0, 0, None, None))
    return make(keys, jnp.arange(case.batch), images, labels)

  whole = jax.eval_shape(placing.whole, (images, labels))
  return run, state, jax.eval_shape(sample, *whole)
