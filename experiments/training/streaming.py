"""Batches of images that stay in their files, read by Grain while others train.

The rows of step t are a function of the key and t alone, as in memory: the same
permutation, computed on the host. So there is no position to save. Training
that resumes at step t, or steps back to it, reads from t on, whatever was read
ahead, in any number of processes.

An example often needs one image, its own, but overlaid digits need two. Which
images a `train_step.Sample` reads is found by calling it with images that only
note how they are indexed.
"""

import collections
import dataclasses
import functools
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from capjax import data

from . import order, placing

_THREADS = 4  # that read
AHEAD = 64_000_000  # bytes of batches that are read ahead
_IN_FLIGHT = 8  # updates that a device may be behind

Sample = Callable[..., tuple[Any, Any]]
# number of a batch -> (indices [B] of its examples, reads [B R] of each)
Chosen = Callable[[int], tuple[np.ndarray, np.ndarray]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
  """The images of one batch, in the place of all images.

  Attributes:
    indices: [B], which example of the data each one is.
    reads: [B R], the numbers of the images that it needs.
    images: uint8 [B R H W C], these images.
    total: N, the number of all images.
  """

  indices: Any
  reads: Any
  images: Any
  total: int = dataclasses.field(metadata={"static": True})

  def __len__(self) -> int:
    return self.total

  def examples(
    self, sample: Sample, keys: jax.Array, labels: jax.Array, *arguments: Any
  ) -> tuple[Any, Any]:
    """What `sample` makes of each index, with one random key each [B]."""

    def one(key, index, reads, images):
      few = _Few(reads, images, self.total)
      return sample(key, index, few, labels, *arguments)

    return jax.vmap(one)(keys, self.indices, self.reads, self.images)


class _Few:
  """In the place of all images [N H W C], those that an example reads."""

  def __init__(self, reads: jax.Array, images: jax.Array, total: int):
    self._reads, self._images = reads, images
    self.shape, self.dtype = (total, *images.shape[1:]), images.dtype

  def __len__(self) -> int:
    return self.shape[0]

  def __getitem__(self, index: Any) -> jax.Array:
    found = self._reads == jnp.asarray(index)[..., None]
    return self._images[jnp.argmax(found, axis=-1)]


class _Noting:
  """In the place of all images [N H W C], black ones; it notes what is read."""

  def __init__(self, shape: tuple[int, ...]):
    self.shape, self.dtype = shape, jnp.dtype(jnp.uint8)
    self.read: list[jax.Array] = [jnp.zeros(0, jnp.int32)]

  def __len__(self) -> int:
    return self.shape[0]

  def __getitem__(self, index: Any) -> jax.Array:
    index = jnp.asarray(index, jnp.int32)
    self.read.append(index.reshape(-1))
    return jnp.zeros((*index.shape, *self.shape[1:]), self.dtype)


def find_reads(
  sample: Sample,
  shape: tuple[int, ...],
  keys_of: Callable[..., jax.Array],
  labels: np.ndarray,
  *arguments: Any,
) -> Callable[..., np.ndarray]:
  """Finds which images the examples of a batch read, on the host.

  Args:
    sample: makes an example; it takes images by `images[index]` alone.
    shape: [N H W C], of all images.
    keys_of: `*where -> keys [B]` of the examples.
    labels: all labels.
    *arguments: what `sample` takes besides.

  Returns:
    `(indices [B], *where) -> int32 [B R]`.
  """
  host = jax.local_devices(backend="cpu")[0]

  @jax.jit
  def find(indices, where, labels, arguments):
    def one(key, index):
      noting = _Noting(shape)
      sample(key, index, noting, labels, *arguments)
      return jnp.concatenate(noting.read)

    return jax.vmap(one)(keys_of(*where), indices)

  rest = jax.device_put((labels, arguments), host)

  def found(indices, *where):
    return np.asarray(find(*jax.device_put((indices, where), host), *rest))

  return found


def batches(
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
    mesh: the devices, each of which gets its part of every batch. A process
      reads only what its own devices get.
    ahead: bytes of batches that are read ahead.

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
  split = NamedSharding(mesh, P("data"))
  indices, reads = chosen(numbers.start)
  size = len(indices)
  places = split.addressable_devices_indices_map((size,)).values()
  own = np.unique(np.concatenate([np.arange(size)[x] for x in places]))

  def read(number):
    indices, reads = (x[own] for x in chosen(number))
    rows = images.read(reads.reshape(-1))
    return indices, reads, rows.reshape(*reads.shape, *images.shape[1:])

  def place(part):
    return jax.make_array_from_process_local_data(
      split, part, (size, *part.shape[1:])
    )

  num_bytes = max(1, len(own) * reads.shape[1] * math.prod(images.shape[1:]))
  options = grain.ReadOptions(
    num_threads=_THREADS,
    prefetch_buffer_size=max(_THREADS, min(500, ahead // num_bytes)),
  )
  steps = grain.MapDataset.range(numbers.start, numbers.stop)
  for parts in steps.map(read).to_iter_dataset(options):
    yield Batch(*map(place, parts), total=len(images))


class Steps:
  """Which examples each step trains on, and which images they read.

  Computed on the host, and there by its CPU, where it is the same as on any
  other device.
  """

  def __init__(
    self,
    sample: Sample,
    train: data.Dataset,
    key: jax.Array,
    batch_size: int,
  ):
    """Computes nothing yet.

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
  """An `Update` on images in files; to the loop, one like that in memory.

  Attributes:
    add: as that of `train_step.Update`; the images that it is given are not
      used.
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
    """Reads nothing yet.

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
    self._chosen: Steps | None = None

  def add(self, state, totals, images, labels, num_steps):
    """Updates one batch at a time, while the next ones are read."""
    self._seek(state)
    running = collections.deque()
    for _ in range(num_steps):
      batch = next(self._batches)
      self._step += 1
      state, totals = self._update.add(state, totals, batch, labels, 1)
      running.append(totals)
      if len(running) > _IN_FLIGHT:
        jax.block_until_ready(running.popleft())
    return state, totals

  def zeros(self, state, images, labels):
    """Totals before the first step; only shapes are computed."""
    self._begin(state)
    indices, reads = self._chosen(int(state.step))
    shape = (*reads.shape, *self._train.images.shape[1:])
    batch = Batch(
      jax.ShapeDtypeStruct(indices.shape, indices.dtype),
      jax.ShapeDtypeStruct(reads.shape, reads.dtype),
      jax.ShapeDtypeStruct(shape, np.uint8),
      total=len(self._train.images),
    )
    return self._update.zeros(state, batch, labels)

  def _begin(self, state) -> None:
    if self._chosen is None:
      key = jax.random.wrap_key_data(
        np.asarray(jax.random.key_data(state.key)),
        impl=jax.random.key_impl(state.key),
      )
      self._chosen = Steps(self._sample, self._train, key, self._batch_size)

  def _seek(self, state) -> None:
    """Reads from the step of the state on, if that is not what comes next."""
    self._begin(state)
    step = int(state.step)
    if step != self._step:
      numbers = range(step, self._num_steps)
      self._batches = batches(
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

  # Whole on each device, so that each process can read all measures.
  @functools.partial(jax.jit, out_shardings=everywhere)
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

    parts = []
    for done, batch in enumerate(batches(images, chosen, range(count), mesh)):
      measures = run(model, numbers[done], batch, *arrays)
      parts.append(jax.tree.map(np.asarray, measures))
      if between is not None:
        between(min((done + 1) * batch_size, total), total)
    return {
      name: np.concatenate([x[name] for x in parts])[:total]
      for name in parts[0]
    }

  return evaluate
