"""Where arrays lie: the mesh of devices, and how data are divided among them.

The devices may belong to several processes. Each process fills its own devices,
and reads no others.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from capjax.energy.rbm import Fantasy

from ..run import processes, provenance

_MOST_CPU_DEVICES = 8


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=["padded"],
  meta_fields=["count"],
)
@dataclasses.dataclass(frozen=True)
class Divided:
  """An array whose rows are divided among devices; a pytree.

  Attributes:
    padded: [N' ...], with rows of zeros at the end, so that all devices have
      the same number of rows.
    count: N, the number of true rows.
  """

  padded: jax.Array
  count: int


def cpu_devices_for(batch_size: int) -> int:
  """The number of devices that a CPU is divided into for a batch.

  One for each core, but at most 8, since each has a copy of the parameters; and
  fewer where they would not share the batch evenly.
  """
  most = min(provenance.num_cores(), _MOST_CPU_DEVICES)
  return max(n for n in range(1, most + 1) if batch_size % n == 0)


def data_mesh(
  batch_size: int,
  devices: Sequence[jax.Device] | None = None,
  *,
  model_parallel: int = 1,
) -> Mesh:
  """Devices along an axis `data`, over which batches are split.

  Args:
    batch_size: must be a multiple of the number of devices.
    devices: None for those of all processes that work together.
    model_parallel: size of a second axis, `model`, over which large parameters
      are split; a divisor of the number of devices.

  Returns:
    The mesh; with one device, the trivial one.

  Raises:
    ValueError: if the batch size is not a multiple of the number of devices, or
      this not a multiple of `model_parallel`.
  """
  devices = devices or processes.devices()
  shares, rest = divmod(len(devices), model_parallel)
  if rest:
    raise ValueError(
      f"{len(devices)} devices do not divide into groups of {model_parallel}; "
      "give a divisor of their number as model_parallel (--model_parallel)"
    )
  if batch_size % len(devices):
    raise ValueError(
      f"a batch of {batch_size} cannot be shared by {len(devices)} devices; "
      f"give a multiple of {len(devices)} as batch_size (--batch_size)"
    )
  return jax.make_mesh(
    (shares, model_parallel),
    ("data", "model"),
    axis_types=(AxisType.Auto, AxisType.Auto),
    devices=devices,
  )


def evaluation_mesh(
  batch_size: int, devices: Sequence[jax.Device] | None = None
) -> Mesh:
  """As `data_mesh`, of as many devices as share a batch evenly.

  A trained model may be evaluated on another machine than it was trained on.
  """
  devices = devices or processes.devices()
  counts = range(1, len(devices) + 1)
  count = max(n for n in counts if batch_size % n == 0)
  return data_mesh(batch_size, devices[:count])


def replicate(tree: Any, mesh: Mesh) -> Any:
  """Puts a copy on each device of the mesh; each process has the same arrays.

  Arrays that are spread over processes already stay as they are.
  """
  everywhere = NamedSharding(mesh, P())
  return jax.tree.map(lambda x: _put(x, everywhere), tree)


def place_state(state: Any, mesh: Mesh) -> Any:
  """Copies a training state to each device, but for what is divided.

  Persistent chains are divided along `data` where their number is a multiple
  of its size; each device then runs its own. Transforms [I J C D] of capsules,
  and what the optimiser keeps for them, are divided along `model` by their
  parts I.

  Args:
    state: a `train_step.TrainState`, the same in each process.
    mesh: as `data_mesh` makes it.

  Raises:
    ValueError: if `model` has several devices, but nothing can be divided.
  """
  groups, divided = mesh.shape["model"], []

  def put(path, x):
    if isinstance(x, Fantasy):
      return jax.tree.map(put_chain, x)
    spec = P()
    if groups > 1 and is_divided(path, x, groups):
      spec = P("model")
      divided.append(x)
    return _put(x, NamedSharding(mesh, spec))

  def put_chain(x):
    whole = not x.ndim or len(x) % mesh.shape["data"]
    return _put(x, NamedSharding(mesh, P() if whole else P("data")))

  placed = jax.tree_util.tree_map_with_path(
    put, state, is_leaf=lambda x: isinstance(x, Fantasy)
  )
  if groups > 1 and not divided:
    raise ValueError(
      f"model_parallel={groups} (--model_parallel): the model has no "
      f"transforms of a multiple of {groups} parts that could be divided; "
      "leave it out"
    )
  return placed


def is_divided(path: tuple[Any, ...], x: Any, groups: int) -> bool:
  """Whether `place_state` divides an array among so many devices.

  Args:
    path: its path in the state, which contains "transforms" for transforms.
    x: the array.
    groups: the size of the axis `model`.
  """
  named = "transforms" in jax.tree_util.keystr(path)
  return named and len(x.shape) == 4 and x.shape[0] % groups == 0


def placed_shapes(tree: Any, mesh: Mesh) -> Any:
  """Shapes and dtypes of arrays that are copied to each device of the mesh.

  Args:
    tree: arrays, or their shapes and dtypes.
    mesh: the devices.
  """
  everywhere = NamedSharding(mesh, P())
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), tree
  )


def divide(tree: Any, mesh: Mesh) -> Any:
  """Divides the rows of arrays among the devices of the mesh.

  Args:
    tree: arrays [N ...] on the host, the same in each process; only the rows
      of this process's devices are read.
    mesh: with an axis `data`.

  Returns:
    The tree with a `Divided` for each array.
  """
  split = NamedSharding(mesh, P("data"))

  def one(array):
    total = -(-len(array) // mesh.shape["data"]) * mesh.shape["data"]

    def rows(index):
      part = np.asarray(array[index[0]])
      part = part.astype(jax.dtypes.canonicalize_dtype(part.dtype), copy=False)
      start, stop, _ = index[0].indices(total)
      missing = stop - start - len(part)
      if not missing:
        return part
      return np.pad(part, [(0, missing)] + [(0, 0)] * (part.ndim - 1))

    shape = (total, *array.shape[1:])
    placed = jax.make_array_from_callback(shape, split, rows)
    return Divided(placed, len(array))

  return jax.tree.map(one, tree)


def whole(tree: Any) -> Any:
  """Under `jit`, the arrays [N ...] without rows that pad them.

  They stay divided: a row of another device is fetched where it is used. Other
  arrays are left as they are.
  """
  return jax.tree.map(
    lambda x: x.padded[: x.count] if isinstance(x, Divided) else x,
    tree,
    is_leaf=lambda x: isinstance(x, Divided),
  )


def _put(x: Any, where: NamedSharding) -> jax.Array:
  """An array that is the same in each process, on the devices of all."""
  if where.is_fully_addressable:
    return jax.device_put(x, where)
  if isinstance(x, jax.Array) and not x.is_fully_addressable:
    return x
  if jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key):
    data = _put(jax.random.key_data(x), where)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
  x = np.asarray(jnp.asarray(x))
  return jax.make_array_from_callback(x.shape, where, lambda at: x[at])
