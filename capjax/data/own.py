"""The user's own data sets: finds them by name, reads them and splits them.

A name is a path to a folder of images, an `.npz` archive, IDX files or
ArrayRecord files; or `tfds:NAME[/CONFIG]`, a data set of TensorFlow Datasets.
"""

import glob
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from capjax import memory
from capjax.data import splitting
from capjax.data.conversion import Conversion
from capjax.data.dataset import Dataset, require_sequence
from capjax.data.sources import idx, image_folder, npz, records, tfds
from capjax.data.sources.source import MOST_CHANNELS, Source
from capjax.data.stored import StoredImages

TFDS = "tfds:"
_TFDS_NAME = re.compile(r"\w+(/[\w.-]+)?")
_KINDS = (
  f"a folder of {image_folder.LAYOUT} (or, without labels, of images alone), "
  "an .npz archive, IDX files or ArrayRecord files of "
  "capjax.data.write_records or TensorFlow Datasets"
)


def find(
  name: str, data_dir: str | os.PathLike[str] | None
) -> pathlib.Path | None:
  """Returns the absolute path of a named data set; None if there is none.

  A relative path is looked for in `data_dir`, if one is given, and then in the
  working folder.

  Args:
    name: A path of files or of a folder, or the beginning of the names of IDX
      files; "~" is expanded.
    data_dir: The folder of data sets, or None.
  """
  path = pathlib.Path(name).expanduser()
  given = [] if data_dir is None else [pathlib.Path(data_dir).expanduser()]
  for folder in [*given, pathlib.Path()]:
    # Links are not resolved: the last part is the name that the user knows.
    found = pathlib.Path(os.path.abspath(folder / path))
    if found.exists() or _is_prefix(found):
      return found
  return None


def load(
  name: str,
  split: str,
  data_dir: str | os.PathLike[str] | None,
  conversion: Conversion,
  stream: bool | None = False,
) -> Dataset:
  """Loads a split of data at a path.

  Without test examples, a seeded fifth of each class is held out for testing;
  the others train. The order is seeded, and mixes the classes evenly.

  Args:
    name: See `find`.
    split: "train" or "test".
    data_dir: See `find`.
    conversion: How every image is converted.
    stream: See `loading.load`.

  Raises:
    FileNotFoundError: Nothing is at the path, or a part is missing.
    ValueError: The data cannot be read or used; the message says why.
  """
  path = find(name, data_dir)
  if path is None:
    inside = f" in {data_dir} or in the working folder" if data_dir else ""
    raise FileNotFoundError(
      f"nothing is at {name}{inside}; give {_KINDS}, or the folder that holds "
      "it as data_dir (--data_dir)"
    )
  return choose(_open(path, conversion), split, str(path), stream)


def from_arrays(
  train: tuple[ArrayLike, ArrayLike | None] | Dataset,
  test: tuple[ArrayLike, ArrayLike | None] | Dataset | None = None,
  *,
  class_names: Sequence[str] | None = None,
) -> tuple[Dataset, Dataset]:
  """Makes data sets from arrays, as `load` does from an `.npz` archive.

  Args:
    train: Images and labels. Images are [N H W] or [N H W C], integers in
      0..255, floats in [0, 1] or booleans. Labels are one integer or word for
      each image, [N J] of 0 and 1, or None. Or a data set, whose factors are
      kept.
    test: The same for testing; None holds out a fifth of each class. Words in
      its labels, and the class names of a data set, stand for the training
      classes of the same names.
    class_names: The names of classes 0, 1, ... of the labels.

  Returns:
    The training set and the test set; both in a seeded order.

  Raises:
    ValueError: The arrays cannot be used; the message says why.
  """
  for name, pair in (("train", train), ("test", test)):
    if isinstance(pair, Dataset) or (pair is None and name == "test"):
      continue
    if not isinstance(pair, tuple | list) or len(pair) != 2:
      raise ValueError(
        f"{name} is a {type(pair).__name__} and no pair; give (images, "
        "labels), or (images, None) without labels"
      )
    if pair[0] is None:
      raise ValueError(
        f"the images of {name} are None; give (images, labels), or (images, "
        "None) without labels"
      )
  named = {"images": train[0], "labels": _given_labels(train)}
  if test is not None:
    named |= {"test_images": test[0], "test_labels": _given_labels(test)}
    if (named["labels"] is None) != (named["test_labels"] is None):
      without = "train" if named["labels"] is None else "test"
      raise ValueError(
        f"{without} has no labels, and the other set has some; give both "
        "labels, or None for both"
      )
  if class_names is not None and named["labels"] is None:
    raise ValueError(
      "class_names are given, and train has no labels; leave class_names out, "
      "or give labels"
    )
  if class_names is not None:
    require_sequence(class_names)
    class_names = tuple(class_names)
  # `class_names` may rename the classes of the data sets. The names that test
  # has must be those of train or, if train has none, `class_names`.
  known = train.class_names if isinstance(train, Dataset) else ()
  names = known or tuple(map(str, class_names or ()))
  if class_names is None and isinstance(train, Dataset) and train.is_labelled:
    class_names = tuple(train.named(range(train.num_classes)).tolist())
  if isinstance(test, Dataset):
    theirs = test.class_names
    if names and theirs and names != theirs:
      raise ValueError(
        f"the classes of train are {', '.join(names)}, and those of test "
        f"{', '.join(theirs)}; number the labels of both alike"
      )
  if class_names is not None:
    named["class_names"] = class_names
  arrays = {n: _array(n, x) for n, x in named.items() if x is not None}
  if "test_labels" in arrays:
    arrays = _numbered_alike(arrays, test)
  source = npz.open_arrays("the arrays", arrays, Conversion())
  if isinstance(train, Dataset):
    source = source._replace(train=source.train._replace(factors=train.factors))
  if isinstance(test, Dataset) and source.test is not None:
    source = source._replace(test=source.test._replace(factors=test.factors))
  return (
    choose(source, "train", "the arrays"),
    choose(source, "test", "the arrays"),
  )


def _given_labels(pair: tuple[ArrayLike, ArrayLike | None] | Dataset):
  """Returns the labels of a pair; None if the pair has no labels."""
  if isinstance(pair, Dataset) and not pair.is_labelled:
    return None
  return pair[1]


def _array(name: str, values: Any) -> np.ndarray:
  """Turns one of the arguments of `from_arrays` into an array."""
  try:
    return np.asarray(values)
  except ValueError as error:  # lists of lists of different lengths
    raise ValueError(
      f"the {name.replace('_', ' ')} differ in shape; give an array, of images "
      "[N H W] or [N H W C]"
    ) from error


def _numbered_alike(
  arrays: dict[str, np.ndarray], test: object
) -> dict[str, np.ndarray]:
  """Numbers the test labels like the training labels, by the names of classes.

  Labels are changed in two cases: if the test set is a data set and no names
  of training classes are given, and if the test labels are words and such names
  are given. Multi-hot labels are never changed.
  """
  both = arrays["labels"], arrays["test_labels"]
  if any(x.ndim != 1 and x.shape[1:] != (1,) for x in both):  # multi-hot
    return arrays
  test_labels = both[1].reshape(-1)
  if "class_names" in arrays:
    if test_labels.dtype.kind not in "UO":
      return arrays
    words, names = test_labels, tuple(map(str, arrays["class_names"]))
  elif isinstance(test, Dataset):
    source = npz.open_arrays(
      "the arrays",
      {name: arrays[name] for name in ("images", "labels")},
      Conversion(),
    )
    words, names = test.named(test_labels), source.class_names
    arrays = {
      **arrays, "labels": source.train.labels, "class_names": np.array(names)
    }  # fmt: skip
  else:
    return arrays
  numbers = {name: number for number, name in enumerate(names)}
  unknown = sorted(set(map(str, words)) - numbers.keys())
  if unknown:
    raise ValueError(
      f"the classes of train are {', '.join(names)}, and test has "
      f"{unknown[0]!r}; name the classes of both alike, or leave out its images"
    )
  marks = np.array([numbers[str(word)] for word in words], np.int32)
  return {**arrays, "test_labels": marks}


def load_prepared(
  name: str,
  folder: pathlib.Path,
  split: str,
  conversion: Conversion,
  stream: bool | None = False,
) -> Dataset:
  """Loads a split of any image classification set of TensorFlow Datasets.

  Args:
    name: `NAME` or `NAME/CONFIG`.
    folder: The folder of prepared data sets; a data set that is not there yet
      is downloaded into it, which needs TensorFlow.
    split: "train" or "test".
    conversion: How every image is converted.
    stream: See `loading.load`.

  Raises:
    FileNotFoundError: The data set is not prepared, and cannot be downloaded.
    ValueError: The name or the records are wrong.
  """
  if not _TFDS_NAME.fullmatch(name):
    raise ValueError(
      f"{TFDS}{name}: give {TFDS}NAME or {TFDS}NAME/CONFIG, as TensorFlow "
      "Datasets calls it"
    )
  version = tfds.find_any(folder / name)
  if version is None:
    try:
      tfds.prepare(name, folder)
      version = tfds.find_any(folder / name)
      reason = "nothing was written"
    except RuntimeError as error:  # its traceback would not help
      reason = str(error)
  if version is None:
    raise FileNotFoundError(
      f"found no prepared data set in {folder / name}, and it was not "
      f"downloaded: {reason}. Prepare it there, as ArrayRecord files, where "
      "there are a network and `pip install '.[data]' tensorflow-cpu`"
    )
  source = tfds.open_prepared(version, conversion)
  return choose(source, split, str(version), stream)


def choose(
  source: Source, split: str, where: str, stream: bool | None = False
) -> Dataset:
  """Reads a split of an opened data set.

  Args:
    source: The data set.
    split: "train" or "test".
    where: Its path or name, for error messages.
    stream: See `loading.load`.

  Raises:
    ValueError: The data set has labels of fewer than two classes, no examples
      to hold out, or images of more than 3 channels.
  """
  count = len(source.class_names)
  if source.is_labelled and count < 2:
    names = ", ".join(source.class_names) or "none"
    raise ValueError(
      f"{where}: the images have {count} class ({names}), and at least two are "
      "needed; add images of another class (of a folder, give the one that "
      "contains the folders of all classes; for images without labels, one "
      "that contains their files alone)"
    )
  part, notes = source.train, source.notes
  rows = np.arange(len(part.labels))
  if source.test is None:
    test = splitting.held_out(part.labels)
    if not test.any():
      fault = "no class has two images" if source.is_labelled else "one image"
      raise ValueError(
        f"{where}: {fault}, so that none can be held out for testing; give "
        "more images, or a test set"
      )
    rows = np.flatnonzero(test if split == "test" else ~test)
    notes += _notes_on_split(source, test)
  elif split == "test":
    part = source.test
    rows = np.arange(len(part.labels))
  rows = rows[splitting.mixed_order(part.labels[rows])]
  images = StoredImages(part.read, rows)
  if images.shape[3] > MOST_CHANNELS:
    raise ValueError(
      f"{where}: images have {images.shape[3]} channels; give 1 (grey), 2 (a "
      "stereo pair) or 3 (red, green, blue), as the last axis"
    )
  factors = {name: x[rows] for name, x in part.factors.items()}
  dataset = Dataset(
    images, part.labels[rows], count, factors, source.class_names, notes
  )
  return streamed(dataset, split, stream)


def streamed(dataset: Dataset, split: str, stream: bool | None) -> Dataset:
  """Makes images `StoredImages`, or reads them all; see `loading.load`.

  Args:
    dataset: The images in memory or in files.
    split: "train" or "test", for the note.
    stream: Whether images stay in their files; None to decide by memory.
  """
  images, reason = dataset.images, ""
  if stream is None:
    reason = memory.shortage(images.nbytes)
  if stream or reason:
    if not isinstance(images, StoredImages):
      images = StoredImages(images.__getitem__, np.arange(len(images)))
    why = f", since they take {reason}" if reason else ""
    note = f"{split} images are read while they are used{why}"
    return dataset._replace(images=images, notes=(*dataset.notes, note))
  if isinstance(images, StoredImages):
    images = images.whole()
  return dataset._replace(images=images)


def _notes_on_split(source: Source, test: np.ndarray) -> tuple[str, ...]:
  """Returns sentences for the user on the examples that are held out."""
  labels = source.train.labels
  notes = [
    f"there is no test set: {np.sum(test)} of {len(test)} examples, a seeded "
    "fifth, are held out as one"
  ]
  if labels.ndim == 1:
    counts = np.bincount(labels[test], minlength=len(source.class_names))
    untested = [source.class_names[n] for n in np.flatnonzero(counts == 0)]
    if untested:
      notes.append(
        f"too few images to test: class {', '.join(untested[:10])}, "
        f"{len(untested)} in all"
      )
  return tuple(notes)


def _open(path: pathlib.Path, conversion: Conversion) -> Source:
  files = idx.find_set(path)
  if files:
    return idx.open_set(files, conversion)
  if path.is_dir():
    version = tfds.find_any(path)
    if version:
      return tfds.open_prepared(version, conversion)
    if records.is_folder(path):
      return records.open_folder(path, conversion)
    records.require_none_unfinished(path)
    return image_folder.open_folder(path, conversion)
  if path.suffix == ".npz":
    return npz.open_archive(path, conversion)
  raise ValueError(f"{path}: a file of another kind; give {_KINDS}")


def _is_prefix(path: pathlib.Path) -> bool:
  """Whether IDX files have this path as the beginning of their names."""
  names = f"{glob.escape(path.name)}-*-ubyte*"
  return bool(path.name) and any(path.parent.glob(names))
