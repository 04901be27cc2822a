"""Images that stay in their files, and are read where they are needed."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8

from capjax import memory

_BLOCK = 2**22  # bytes that are read at a time when all images are read


class StoredImages:
  """Images that are read by their indices, in place of an array [N H W C].

  Indexing reads images into an array, if they fit into memory. `select` chooses
  images without reading them.

  Attributes:
    shape: (N, H, W, C).
    dtype: uint8.
  """

  dtype = np.dtype(np.uint8)
  ndim = 4

  def __init__(
    self,
    read: Callable[[Int[np.ndarray, " M"]], UInt8[np.ndarray, "M H W C"]],
    rows: Int[np.ndarray, " N"],
    shape: tuple[int, ...] | None = None,
  ):
    """Chooses images of a reader.

    Args:
      read: `rows [M] -> images`, uint8 [M H W C]; it may be called by several
        threads at a time.
      rows: The rows that are images 0, 1, ....
      shape: [H W C] of an image; None reads the first one.
    """
    self._read, self._rows = read, rows
    if shape is None:
      shape = read(rows[:1]).shape[1:]
    self.shape = (len(rows), *shape)

  def __len__(self) -> int:
    return len(self._rows)

  @property
  def nbytes(self) -> int:
    """The bytes of all images in memory."""
    return math.prod(self.shape)

  def read(
    self, indices: Int[np.ndarray, " M"]
  ) -> UInt8[np.ndarray, "M H W C"]:
    """Reads images by their indices; repeated ones are read only once.

    Args:
      indices: In 0..N-1, in any order.

    Raises:
      ValueError: A file cannot be read any more.
    """
    rows = self._rows[indices]
    if not len(rows):
      return np.empty((0, *self.shape[1:]), np.uint8)
    distinct, places = np.unique(rows, return_inverse=True)
    images = self._read(distinct)
    # Back to the order of `indices`.
    return images[places]

  def whole(self) -> UInt8[np.ndarray, "N H W C"]:
    """All images as an array, whether or not they fit into memory."""
    # The reader must get each row only once; `read` repeats images as needed.
    if len(np.unique(self._rows)) < len(self._rows):
      return self.read(np.arange(len(self)))
    return self._read(self._rows)

  def select(self, part: Any) -> "StoredImages":
    """Selects images by a slice, indices or a mask [N], without reading.

    Args:
      part: As for NumPy.
    """
    return StoredImages(self._read, self._rows[part], self.shape[1:])

  def __getitem__(self, part: Any) -> np.ndarray:
    """Reads one image [H W C], or several [M H W C]."""
    numbers = np.arange(len(self))[part]
    if np.ndim(numbers) == 0:
      return self.read(np.array([numbers]))[0]
    memory.require(
      "the images",
      (len(numbers), *self.shape[1:]),
      dtype=np.uint8,
      on_host=True,
      remedy="fewer images, by --images=1000 where a suite has this flag",
    )
    return self.read(numbers)

  def __array__(self, dtype: Any = None, copy: bool | None = None):
    """All images, read into an array."""
    if copy is False:
      raise ValueError(
        "copy is False, but stored images are always read into a new array; "
        "leave copy out."
      )
    return np.asarray(self[:], dtype)

  def __iter__(self) -> Iterator[np.ndarray]:
    """Each image [H W C] in turn."""
    for block in self.blocks():
      yield from block

  def blocks(self) -> Iterator[UInt8[np.ndarray, "M H W C"]]:
    """All images in order, a few megabytes at a time."""
    size = max(1, _BLOCK // max(1, math.prod(self.shape[1:])))
    for start in range(0, len(self), size):
      yield self.read(np.arange(start, min(start + size, len(self))))
