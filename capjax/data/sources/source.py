"""A data set that a reader has opened: its labels, and a reader of images."""

import types
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Int32, UInt8

MOST_CHANNELS = 3  # that images of the user may have


class Part(NamedTuple):
  """The examples of one split.

  Attributes:
    labels: int32 [N], in 0..J-1; or multi-hot, int32 [N J]; or int32 [N 0]
      without labels.
    read: `rows [M] -> images`, uint8 [M H W C].
    factors: Further labels [N] by name, as those of `Dataset`.
  """

  labels: Int32[np.ndarray, " N"] | Int32[np.ndarray, "N J"]
  read: Callable[[Int[np.ndarray, " M"]], UInt8[np.ndarray, "M H W C"]]
  factors: Mapping[str, np.ndarray] = types.MappingProxyType({})


class Source(NamedTuple):
  """An opened data set: labels and classes are known, images not yet read.

  Attributes:
    train: The training examples.
    test: The test examples; None to hold out some of the training examples.
    class_names: J names; none without labels.
    notes: Sentences for the user about changes made when images are read.
  """

  train: Part
  test: Part | None
  class_names: tuple[str, ...]
  notes: tuple[str, ...] = ()

  @property
  def is_labelled(self) -> bool:
    """Whether the classes of the images are known."""
    return self.train.labels.shape[1:] != (0,)


def no_labels(count: int) -> Int32[np.ndarray, "N 0"]:
  """The labels of images without labels.

  Args:
    count: N.
  """
  return np.zeros((count, 0), np.int32)


def one_label_each(
  labels: Sequence[Int[np.ndarray, "N J"]],
) -> list[np.ndarray]:
  """Converts multi-hot labels to class numbers if each row marks one class.

  Args:
    labels: the labels of each split, of 0 and 1.

  Returns:
    For each split int32 [N], the marked classes; the labels as they were if a
    row of any split marks another number of classes.
  """
  if all((x.sum(axis=1) == 1).all() for x in labels):
    return [np.argmax(x, axis=1).astype(np.int32) for x in labels]
  return list(labels)


def notes_of_columns(name: str) -> tuple[str, ...]:
  """Notes on a data set that stores images by columns; none for others.

  Args:
    name: Of the data set or of its files. Those of EMNIST, as published and in
      TensorFlow Datasets, hold the columns of an image one after the other.
  """
  if not name.startswith("emnist"):
    return ()
  return ("images are turned upright, since EMNIST stores them by columns",)


def number_classes(
  train: np.ndarray, test: np.ndarray | None, where: str
) -> tuple[np.ndarray, np.ndarray | None, tuple[str, ...]]:
  """Numbers the classes of labels that are any integers or any words.

  Args:
    train: [N], the labels of training.
    test: [N], those of testing, if there are any.
    where: Where they come from, for the error message.

  Returns:
    Both as int32, in 0..J-1 by the order of the distinct training labels, and
    the names of the J classes: the labels as they were.

  Raises:
    ValueError: A test label does not occur in training.
  """
  known, numbers = np.unique(train, return_inverse=True)
  names = tuple(map(str, known.tolist()))
  if test is not None:
    unknown = np.setdiff1d(test, known)
    if unknown.size:
      raise ValueError(
        f"{where}: test label {unknown[0]!s} does not occur among the training "
        "labels; add training images of it, or leave out its test images"
      )
    test = np.searchsorted(known, test).astype(np.int32)
  return numbers.astype(np.int32), test, names
