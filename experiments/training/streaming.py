"""Batches of images in files, read by Grain while earlier batches train.

The rows of step t are a function of the key and t alone, as in memory: the same
permutation, computed on the host. So there is no position to save. Training
that resumes at step t, or steps back to it, reads from t on, whatever was read
ahead, in any number of processes.
"""

import collections
import functools
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from capjax import data
from capjax.layers import inference, platforms

from . import order, placing
from .batches import Batch, Block, Sample, find_reads

_THREADS = 4  # that read
AHEAD = 64_000_000  # bytes of batches that are read ahead
_BLOCK = 16_000_000  # bytes of the batches that a device gets at a time
_MOST_STEPS = 32  # batches in a block
_IN_FLIGHT = 2  # blocks that a device may be behind

_DTYPES = (np.int32, np.int32, np.uint8)  # of the arrays of a batch

# number of a batch -> (indices [B] of its examples, reads [B R] of each)
Chosen = Callable[[int], tuple[np.ndarray, np.ndarray]]


def read(
  images: data.StoredImages,
  chosen: Chosen,
  numbers: range,
  mesh: Mesh,
  ahead: int = AHEAD,
) -> Iterator[Batch]:
  """Reads batches in turn, some of them ahead, by threads of Grain.

  Args:
    images: all images.
    chosen: called by several threads at a time.
    numbers: of the batches.
    mesh: the devices. A process reads only what its own devices get.
    ahead: bytes of batches that are read ahead.

  Returns:
    Batches of arrays on the host, [B/P ...] of one of P processes.

  Raises:
    ValueError: if Grain is not installed, or a file cannot be read any more.
  """
  try:
    import grain
  except ImportError as error:
    raise ValueError(
      f"{error}; reading images while training needs Grain, of `pip install "
      "'.[data]'`, in the folder of this repository"
    ) from error
  indices, reads = chosen(numbers.start)
  size = len(indices)
  split = NamedSharding(mesh, P("data"))
  places = split.addressable_devices_indices_map((size,)).values()
  own = np.unique(np.concatenate([np.arange(size)[x] for x in places]))

  def read_one(number):
    indices, reads = (x[own] for x in chosen(number))
    rows = images.read(reads.reshape(-1))
    return indices, reads, rows.reshape(*reads.shape, *images.shape[1:])

  num_bytes = max(1, len(own) * reads.shape[1] * math.prod(images.shape[1:]))
  options = grain.ReadOptions(
    num_threads=_THREADS,
    prefetch_buffer_size=max(_THREADS, min(500, ahead // num_bytes)),
  )
  steps = grain.MapDataset.range(numbers.start, numbers.stop)
  for parts in steps.map(read_one).to_iter_dataset(options):
    yield Batch(*parts, total=len(images))


def place(batch: Batch, mesh: Mesh, axis: int = 0) -> Batch:
  """Gives each device its part of a batch that is spread over the processes.

  Args:
    batch: arrays on the host, [B/P ...] in each of P processes.
    mesh: the devices.
    axis: the axis of B; 1 if an axis of steps comes first.
  """
  split = NamedSharding(mesh, P(*[None] * axis, "data"))
  return jax.tree.map(
    lambda x: jax.make_array_from_process_local_data(split, x), batch
  )


class Steps:
  """Which examples each step trains on, and which images they read.

  Computed by the CPU of the host, with the same result as on any other device.
  """

  def __init__(
    self,
    sample: Sample,
    train: data.Dataset,
    key: jax.Array,
    batch_size: int,
  ):
    """Prepares the choice; a call computes it.

    Args:
      sample: makes an example.
      train: the training set.
      key: of the state of training.
      batch_size: number of examples in a step.
    """
    self._key = jax.device_put(key, jax.local_devices(backend="cpu")[0])
    self._total, self._batch_size = len(train.labels), batch_size
    self._order = functools.lru_cache(2)(self._order_of)
    self._lock = threading.Lock()  # so that one thread computes an order

    def keys_of(key, step):
      return order.keys_of_step(key, step, batch_size)[0]

    self._find = find_reads(sample, train.images.shape, keys_of, train.labels)

  def __call__(self, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The indices [B] of a step, and the images [B R] that they read."""
    epoch, number = divmod(step, self._total // self._batch_size)
    with self._lock:
      rows = self._order(epoch)
    start = number * self._batch_size
    indices = rows[start : start + self._batch_size]
    return indices, self._find(indices, self._key, np.int32(step))

  def _order_of(self, epoch: int) -> np.ndarray:
    permute = jax.jit(order.of_epoch, static_argnums=2)
    return np.asarray(permute(self._key, epoch, self._total))


class Streamed:
  """An `Update` on images in files, which the loop uses like one in memory.

  Attributes:
    add: as in `train_step.Update`, but its argument `images` is not used.
    zeros: likewise.
  """

  def __init__(
    self,
    update: Any,
    sample: Sample,
    train: data.Dataset,
    *,
    batch_size: int,
    num_steps: int,
    mesh: Mesh,
    ahead: int = AHEAD,
  ):
    """Prepares the updates; the first one starts to read.

    Args:
      update: of `train_step.make_update`.
      sample: makes an example.
      train: the training set, whose images are stored.
      batch_size: number of examples in a step.
      num_steps: the last step.
      mesh: the devices.
      ahead: bytes of batches that are read ahead.
    """
    self._update, self._sample, self._train = update, sample, train
    self._batch_size, self._num_steps = batch_size, num_steps
    self._mesh, self._ahead = mesh, ahead
    self._batches: Iterator[Batch] = iter(())
    self._step: int | None = None  # of the batch that comes next
    self._key: np.ndarray | None = None  # by which examples are chosen
    self._chosen: Steps | None = None
    self._steps = 1  # in a block

  def add(self, state, totals, images, labels, num_steps):
    """Updates a block of batches at a time, while the next ones are read."""
    self._seek(state)
    # Place them as updates place the totals, so that `add` is compiled once.
    totals = placing.replicate(totals, self._mesh)
    running = collections.deque()
    for start in range(0, num_steps, self._steps):
      count = min(self._steps, num_steps - start)
      block = self._block(count)
      state, totals = self._update.add(state, totals, block, labels, count)
      running.append(totals)
      if len(running) > _IN_FLIGHT:
        jax.block_until_ready(running.popleft())
    return state, totals

  def zeros(self, state, images, labels):
    """Totals before the first step; only shapes are computed."""
    self._begin(state)
    indices, reads = self._chosen(int(state.step))
    shapes = [indices.shape, reads.shape]
    shapes.append((*reads.shape, *self._train.images.shape[1:]))
    batches = Batch(
      *(
        jax.ShapeDtypeStruct((self._steps, *shape), dtype)
        for shape, dtype in zip(shapes, _DTYPES, strict=True)
      ),
      total=len(self._train.images),
    )
    first = jax.ShapeDtypeStruct((), np.int32)
    return self._update.zeros(state, Block(first, batches), labels)

  def _block(self, count: int) -> Block:
    """The batches of the next steps; the block always has the same shape."""
    first = np.int32(self._step)
    batches = [next(self._batches) for _ in range(count)]
    self._step += count

    def stack(*parts):
      block = np.zeros((self._steps, *parts[0].shape), parts[0].dtype)
      for n, part in enumerate(parts):
        block[n] = part
      return block

    return Block(first, place(jax.tree.map(stack, *batches), self._mesh, 1))

  def _begin(self, state) -> None:
    """Chooses examples at the start, and again if a restart changes the key."""
    bits = np.asarray(jax.random.key_data(state.key))
    if self._key is None or not np.array_equal(bits, self._key):
      self._key, self._step = bits, None
      impl = jax.random.key_impl(state.key)
      key = jax.random.wrap_key_data(bits, impl=impl)
      self._chosen = Steps(self._sample, self._train, key, self._batch_size)
      _, reads = self._chosen(int(state.step))
      one = reads.size * math.prod(self._train.images.shape[1:])
      self._steps = max(1, min(_MOST_STEPS, _BLOCK // max(1, one)))

  def _seek(self, state) -> None:
    """Reads from the step of the state on, unless its batch comes next."""
    self._begin(state)
    step = int(state.step)
    if step != self._step:
      numbers = range(step, self._num_steps)
      self._batches = read(
        self._train.images, self._chosen, numbers, self._mesh, self._ahead
      )
      self._step = step


def make_evaluate(
  measure: Callable[[Any, Any, Any], dict[str, jax.Array]],
  *,
  sample: Sample,
  batch_size: int,
  mesh: Mesh,
) -> Callable[..., dict[str, np.ndarray]]:
  """As `train_step.make_evaluate`, of images that are stored in files."""
  split, everywhere = (NamedSharding(mesh, P(*x)) for x in (["data"], []))

  def keys_of(numbers):
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), numbers)

  where = mesh.devices.flat[0].platform, mesh.shape["data"]

  # Copied to each device, so that each process can read all measures.
  @functools.partial(jax.jit, out_shardings=everywhere)
  @platforms.known(*where)
  def run(model, numbers, batch, labels, *arguments):
    examples = batch.examples(sample, keys_of(numbers), labels, *arguments)
    return measure(model, *jax.lax.with_sharding_constraint(examples, split))

  def evaluate(model, images, labels, *arguments, views=1, between=None):
    total = len(images) * views
    count = -(-total // batch_size)
    numbers = np.arange(count * batch_size).reshape(-1, batch_size) % total
    numbers = numbers.astype(np.int32)
    find = find_reads(sample, images.shape, keys_of, labels, *arguments)
    arrays = placing.replicate((labels, *arguments), mesh)

    def chosen(number):
      indices = numbers[number] // views
      return indices, find(indices, numbers[number])

    if count > 1:
      with platforms.known(*where):
        model = inference.transform_kernels(model)
    parts = []
    for done, batch in enumerate(read(images, chosen, range(count), mesh)):
      measures = run(model, numbers[done], place(batch, mesh), *arrays)
      parts.append(jax.tree.map(np.asarray, measures))
      if between is not None:
        between(min((done + 1) * batch_size, total), total)
    return {
      name: np.concatenate([x[name] for x in parts])[:total]
      for name in parts[0]
    }

  return evaluate
