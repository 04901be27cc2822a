"""The type of data sets: images with or without labels."""

import hashlib
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32, UInt8
from numpy.typing import ArrayLike

from capjax.data.stored import StoredImages


def require_sequence(class_names: object) -> None:
  """Checks that names of classes have an order, that of the labels.

  Args:
    class_names: names of classes, as a user gave them.

  Raises:
    ValueError: if they are one word, or a set.
  """
  if isinstance(class_names, (str, bytes, set, frozenset)):
    raise ValueError(
      f"class_names is {class_names!r}; give a sequence of words, one for each "
      "class in the order of the labels."
    )


class Dataset(NamedTuple):
  """Images with or without labels, in memory or in files.

  Arrays may be read-only.

  Attributes:
    images: uint8 [N H W C], intensities in 0..255; as `StoredImages` they stay
      in their files, and are read where they are needed.
    labels: int32 [N], in 0..num_classes-1; or, of images that belong to several
      classes at once, int32 [N num_classes] of 0 and 1; or, without labels,
      int32 [N 0].
    num_classes: The number of classes of the data set; 0 without labels.
    factors: Further int32 [N] labels by name: for smallNORB (but not from IDX
      files) and the viewpoint solids `label_instance`, `label_azimuth`,
      `label_elevation` and `label_lighting`; empty elsewhere.
    class_names: The name of each class; `load` always gives them.
    notes: Sentences for the user about changes made when the data were read:
      images converted, examples held out.
  """

  images: UInt8[np.ndarray, "N H W C"] | StoredImages
  labels: Int32[np.ndarray, " N"] | Int32[np.ndarray, "N J"]
  num_classes: int
  factors: dict[str, np.ndarray]
  class_names: tuple[str, ...] = ()
  notes: tuple[str, ...] = ()

  def __repr__(self) -> str:
    """Names the number of images, their shape, and the classes."""
    count, *shape = self.images.shape
    known = ", ".join(self.class_names[:10])
    more = ", ..." if len(self.class_names) > 10 else ""
    classes = f"{self.num_classes or 'no'} classes{': ' if known else ''}"
    return (
      f"<Dataset: {count:,} images of {'x'.join(map(str, shape))}, "
      f"{classes}{known}{more}>"
    )

  @property
  def is_multi_hot(self) -> bool:
    """Whether an image can belong to several classes at once."""
    return self.labels.ndim == 2 and self.is_labelled

  @property
  def is_labelled(self) -> bool:
    """Whether the classes of the images are known."""
    return self.num_classes > 0

  def named(self, classes: ArrayLike) -> np.ndarray:
    """The names of classes, as an array of strings of the same shape.

    Args:
      classes: whole numbers in 0..num_classes-1, of any shape.
    """
    names = self.class_names or tuple(map(str, range(self.num_classes)))
    return np.asarray(names)[np.asarray(classes)]


def as_intensities(
  images: UInt8[Array, " *shape"] | UInt8[np.ndarray, " *shape"],
) -> Float32[Array, " *shape"]:
  """Turns uint8 intensities 0..255 into float32 in [0, 1].

  >>> print(as_intensities(np.array([0, 255], np.uint8)))
  [0. 1.]

  Args:
    images: uint8 of any shape.

  Raises:
    TypeError: if the images hold other numbers, whose range is not known.
  """
  if not hasattr(images, "dtype"):
    raise TypeError(
      f"images is a {type(images).__name__}; give an array of uint8."
    )
  if images.dtype != jnp.uint8:
    raise TypeError(
      f"images hold {images.dtype}; give uint8 in 0..255. Floats in [0, 1] "
      "need no conversion; divide others by their largest possible value."
    )
  return jnp.asarray(images, jnp.float32) / 255


def fingerprint(dataset: Dataset) -> str:
  """The SHA-256 of a data set's images and labels, in hexadecimal.

  The hash is over the images and then the labels, for each a line of dtype and
  shape, such as `uint8 (60000, 28, 28, 1)`, and the bytes in C order. Factors
  are not included.

  Args:
    dataset: images in memory or in files.
  """
  digest = hashlib.sha256()
  for array in (dataset.images, dataset.labels):
    digest.update(f"{array.dtype} {array.shape}\n".encode())
    for block in array.blocks() if isinstance(array, StoredImages) else [array]:
      digest.update(np.ascontiguousarray(block).data)
  return digest.hexdigest()


def select(dataset: Dataset, part: slice | np.ndarray) -> Dataset:
  """Selects some of the examples; images in files are not read.

  Args:
    dataset: the N examples.
    part: a slice, indices, or a mask [N].
  """
  images = dataset.images
  return dataset._replace(
    images=images.select(part)
    if isinstance(images, StoredImages)
    else images[part],
    labels=dataset.labels[part],
    factors={name: x[part] for name, x in dataset.factors.items()},
  )
