"""A lower bound of the memory that training needs, checked before it starts."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from capjax import data
from capjax.memory import as_text, available

from . import placing, train_step
from . import task as tasks
from .loop_config import LoopConfig


class Estimate(NamedTuple):
  """Bytes that one device holds at the same time in an update.

  A lower bound: activations and XLA's own buffers need more.

  Attributes:
    parts: bytes, by purpose.
    largest: name and shape of the largest array.
  """

  parts: dict[str, int]
  largest: tuple[str, tuple[int, ...]]

  @property
  def total(self) -> int:
    """The sum of all parts."""
    return sum(self.parts.values())

  def describe(self) -> str:
    """The total, and its parts, as words."""
    parts = ", ".join(f"{part} {as_text(x)}" for part, x in self.parts.items())
    return f"at least {as_text(self.total)} ({parts})"


def check(
  task: tasks.Task,
  dataset: data.Dataset,
  config: LoopConfig,
  *,
  remedy: Callable[[Sequence[int]], str] = lambda shape: "the size of a batch",
) -> Estimate:
  """Checks that each device has the least memory that training needs.

  Evaluates the model and the optimiser by shape only, which takes no memory.

  Args:
    task: the task to train for.
    dataset: the training set.
    config: the configuration of training.
    remedy: `shape of the largest array -> text` that says what to lower.

  Returns:
    The least memory of one device; on a CPU, of all its devices together.

  Raises:
    ValueError: if memory is too small, or the task has no model for these
      images.
  """
  need, free = estimate(task, dataset, config), available()
  if jax.default_backend() == "cpu":  # its devices share the memory of the host
    count = jax.local_device_count()
    need = need._replace(parts={x: count * y for x, y in need.parts.items()})
  if free is None or need.total <= free:
    return need
  largest, shape = need.largest
  raise ValueError(
    f"training takes {need.describe()} of memory, but "
    f"{jax.devices()[0].device_kind} has {as_text(free)} available; lower "
    f"{remedy(shape)}: the largest array is {largest} of "
    f"[{' '.join(map(str, shape))}]"
  )


def estimate(
  task: tasks.Task, dataset: data.Dataset, config: LoopConfig
) -> Estimate:
  """The least memory of one device that an update for a task needs."""
  batch_size = config.batch_size

  def begin():
    spec = task.describe(dataset.images.shape[1:], dataset.num_classes)
    model = spec.make(nnx.Rngs(config.seed))
    average = bool(config.average_decay)
    key = jax.random.key(0)
    return train_step.init(model, task.optimizer, key, average=average)

  def sample(images, labels):
    keys = jax.random.split(jax.random.key(0), batch_size)
    indices = jnp.arange(batch_size)
    return jax.vmap(task.sample, (0, 0, None, None))(
      keys, indices, images, labels
    )

  state = jax.eval_shape(begin)
  # By shape, which images in files have too.
  images = jax.ShapeDtypeStruct(dataset.images.shape, dataset.images.dtype)
  batch = jax.eval_shape(sample, images, dataset.labels)
  in_files = isinstance(dataset.images, data.StoredImages)
  arrays = dataset.labels if in_files else (images, dataset.labels)
  parts = {
    "model": state.model,
    "gradients": nnx.state(state.model, nnx.Param),
    "optimiser": state.opt_state,
    "average": state.average,
    "data": arrays,
    "batch": batch,
  }
  sizes = {
    part: _bytes(tree, config.model_parallel)
    for part, tree in parts.items()
    if tree is not None
  }
  # At least 1: `placing.data_mesh` refuses too large a `model_parallel` later.
  shares = max(jax.device_count() // config.model_parallel, 1)
  sizes["data"] //= shares
  sizes["batch"] //= shares * config.num_micro_batches
  leaves = jax.tree_util.tree_flatten_with_path((state.model, batch))[0]
  path, largest = max(leaves, key=lambda leaf: _bytes(leaf[1]))
  inside = "model" if path[0].idx == 0 else "batch"
  name = jax.tree_util.keystr(path[1:]).removesuffix(".value")
  return Estimate(sizes, (f"{inside}{name}", largest.shape))


def _bytes(tree: Any, groups: int = 1) -> int:
  """Bytes of arrays on one device, where some are divided among groups."""
  return sum(
    math.prod(x.shape)
    * x.dtype.itemsize
    // (groups if placing.is_divided(path, x, groups) else 1)
    for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]
  )
