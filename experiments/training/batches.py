"""Batches of images that a host has read, in place of all images.

Most examples need only their own image, but overlaid digits need two. To find
which images a `train_step.Sample` reads, it is called with a substitute for the
images, which only records the indices.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Sample = Callable[..., tuple[Any, Any]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
  """The images of one batch, in place of all images.

  Attributes:
    indices: [B], the number of each example in the data.
    reads: [B R], the numbers of the images that each example needs.
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
    """The example of each index by `sample`, with random keys [B]."""

    def one(key, index, reads, images):
      few = _Few(reads, images, self.total)
      return sample(key, index, few, labels, *arguments)

    return jax.vmap(one)(keys, self.indices, self.reads, self.images)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Block:
  """The batches of K steps, for updates that follow each other in one call.

  Attributes:
    first: the step of the first batch.
    batches: a `Batch` of arrays [K B ...]; those after the last step are not
      used.
  """

  first: Any
  batches: Batch

  def __len__(self) -> int:
    return len(self.batches)

  def at(self, step: jax.Array) -> Batch:
    """The batch of a step."""
    return jax.tree.map(
      lambda x: jax.lax.dynamic_index_in_dim(x, step - self.first, 0, False),
      self.batches,
    )


class _Few:
  """Substitute for all images [N H W C]: those that one example reads."""

  def __init__(self, reads: jax.Array, images: jax.Array, total: int):
    self._reads, self._images = reads, images
    self.shape, self.dtype = (total, *images.shape[1:]), images.dtype

  def __len__(self) -> int:
    return self.shape[0]

  def __getitem__(self, index: Any) -> jax.Array:
    found = self._reads == jnp.asarray(index)[..., None]
    return self._images[jnp.argmax(found, axis=-1)]


class _Noting:
  """Substitute for all images [N H W C]: black ones; records what is read."""

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
    sample: makes an example; it reads images only by `images[index]`.
    shape: [N H W C], of all images.
    keys_of: `*where -> keys [B]` of the examples.
    labels: all labels.
    *arguments: further arguments of `sample`.

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
