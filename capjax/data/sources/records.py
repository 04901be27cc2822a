"""Images in ArrayRecord files; each image can be read on its own.

A folder holds `records.json` (shape, classes, sizes) and, for each split,
`SPLIT.array_record`, a record being the bytes of an image [H W C] in C order,
and `SPLIT_labels.npy`, the labels. Labels are apart from the images because all
of them are needed before training begins.
"""

import importlib
import json
import math
import os
import pathlib
import types
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from capjax.data import conversion as converting
from capjax.data.conversion import Conversion
from capjax.data.dataset import require_sequence
from capjax.data.sources.source import (
  MOST_CHANNELS,
  Part,
  Source,
  no_labels,
  one_label_each,
)

_ABOUT = "records.json"
_READ = 2**20  # bytes that are read at a time, or one image if it is larger
_KEYS = {"image_shape", "class_names", "sizes"}
# Each image on its own, so that one is read without its neighbours.
_OPTIONS = "group_size:1,zstd:1"
_AGAIN = "write it again with capjax.data.write_records"

Blocks = Iterable[tuple[ArrayLike, ArrayLike | None]]


def is_folder(path: pathlib.Path) -> bool:
  """Whether a folder was written by `write`.

  Args:
    path: The folder; need not exist.
  """
  return (path / _ABOUT).is_file()


def require_none_unfinished(path: pathlib.Path) -> None:
  """Checks that `write` did not begin a folder without finishing it.

  Args:
    path: A folder for which `is_folder` is false; need not exist.

  Raises:
    ValueError: `write` began this folder and did not finish.
  """
  if any(_images(path, split).exists() for split in ("train", "test")):
    raise ValueError(f"{path} was not written completely; {_AGAIN}")


def write(
  folder: str | os.PathLike[str],
  train: Blocks,
  test: Blocks | None = None,
  *,
  class_names: Sequence[str] = (),
) -> None:
  """Writes images and labels as ArrayRecord files, block by block.

  Training reads them with `--dataset=FOLDER`, a batch at a time if all of them
  do not fit into memory. A block is written before the next one is read, so a
  generator can yield more images than memory holds.

  Args:
    folder: The folder, which is created; it must not hold records yet.
    train: Images and labels of each block: uint8 [M H W C] or [M H W], and
      integers [M] in 0..J-1, or [M J] of 0 and 1; None in place of the labels
      for images without. If every row of [M J] marks one class, the data have
      one label for each image.
    test: The same for testing; None holds out a fifth of each class when the
      data are read.
    class_names: The names of the J classes; none without labels.

  Raises:
    FileExistsError: The folder holds records already.
    ValueError: A block or the names cannot be used, or array_record is not
      installed; the files written so far are then not a data set.
  """
  folder = pathlib.Path(folder).expanduser()
  if is_folder(folder):
    raise FileExistsError(
      f"{folder} holds records already; give another folder, or remove it"
    )
  require_sequence(class_names)
  class_names = tuple(class_names)
  names = {x for x in class_names if isinstance(x, str)}
  if len(names) < len(class_names):
    raise ValueError(
      f"class_names is {class_names!r}; give a sequence of different names"
    )
  if len(class_names) == 1:
    raise ValueError(
      f"class_names holds {class_names[0]!r} alone; give at least two classes, "
      "or None in place of the labels and no class_names"
    )
  module = _package("array_record.python.array_record_module")
  folder.mkdir(parents=True, exist_ok=True)
  shape, sizes, kinds = None, {}, {}
  for split, blocks in (("train", train), ("test", test)):
    if blocks is None:
      continue
    labels = []
    writer = module.ArrayRecordWriter(str(_images(folder, split)), _OPTIONS)
    for block in blocks:
      if len(block) != 2:
        raise ValueError(
          f"a block of {split} has {len(block)} parts; give blocks of images "
          "and their labels, such as [(images, labels)]"
        )
      images, marks = _checked(*block, split, len(class_names))
      if shape not in (None, images.shape[1:]):
        raise ValueError(
          f"an image of {split} is {_by(images.shape[1:])}, but the first one "
          f"is {_by(shape)}; give images of one shape"
        )
      shape = images.shape[1:]
      labels.append(marks)
      for image in images:
        writer.write(image.tobytes())
    writer.close()
    if not sum(map(len, labels)):
      raise ValueError(f"{split} has no images; give at least one")
    kinds[split] = {x.shape[1:] for x in labels}
    if len(set.union(*kinds.values())) > 1:
      raise ValueError(
        f"the labels of {' and '.join(kinds)} are [M] and [M J]; give one kind"
      )
    together = np.concatenate(labels)
    np.save(_labels(folder, split), together)
    sizes[split] = len(together)
  about = {
    "image_shape": shape, "class_names": list(class_names), "sizes": sizes,
  }  # fmt: skip
  # Written last: it shows that the other files are complete.
  temporary = folder / f"{_ABOUT}.partial"
  temporary.write_text(json.dumps(about, indent=2) + "\n")
  temporary.replace(folder / _ABOUT)


def open_folder(root: pathlib.Path, conversion: Conversion) -> Source:
  """Opens a folder that `write` wrote.

  Args:
    root: The folder.
    conversion: How every image is converted.

  Raises:
    FileNotFoundError: A file is missing.
    ValueError: A file is damaged, or a package is missing.
  """
  about = _about(root)
  shape, names = tuple(about["image_shape"]), tuple(about["class_names"])
  parts = {
    split: _open(root, split, size, shape, len(names), conversion)
    for split, size in about["sizes"].items()
  }
  labels = [part.labels for part in parts.values()]
  if names and all(x.ndim == 2 for x in labels):
    labels = one_label_each(labels)
  parts = {
    split: part._replace(labels=x)
    for (split, part), x in zip(parts.items(), labels, strict=True)
  }
  return Source(parts["train"], parts.get("test"), names)


def _open(root, split, size, shape, num_classes, conversion) -> Part:
  path = _images(root, split)
  labels = _read_labels(_labels(root, split))
  if not path.is_file():
    raise FileNotFoundError(f"{path} is missing; restore it, or {_AGAIN}")
  sources = _package("grain.sources")
  try:
    source = sources.ArrayRecordDataSource(str(path))
    found = len(source)
  # ArrayRecord's reader raises errors of several kinds.
  except Exception as error:
    raise _damaged(path, error) from None
  if not size == found == len(labels):
    raise ValueError(
      f"{root}: {_ABOUT} counts {size} images of {split}, but {path.name} "
      f"holds {found} and there are {len(labels)} labels; {_AGAIN}"
    )
  if labels.ndim == 1 and not 0 <= labels.min() <= labels.max() < num_classes:
    raise ValueError(
      f"{root}: labels of {split} are not all in 0..{num_classes - 1}; {_AGAIN}"
    )

  def read(rows):
    images = np.empty((len(rows), *shape), np.uint8)
    count = max(1, _READ // math.prod(shape))
    for start in range(0, len(rows), count):
      some = slice(start, start + count)
      try:
        records = source.__getitems__(rows[some].tolist())
      except Exception as error:  # of several kinds, as above
        raise _damaged(path, error) from None
      sizes = {len(x) for x in records} - {math.prod(shape)}
      if sizes:
        raise ValueError(
          f"{path}: a record holds {min(sizes)} bytes, not an image of "
          f"{_by(shape)}; {_AGAIN}"
        )
      joined = np.frombuffer(b"".join(records), np.uint8)
      images[some] = joined.reshape(-1, *shape)
    return converting.convert_all(images, conversion)

  return Part(labels, read)


def _about(root: pathlib.Path) -> dict:
  path = root / _ABOUT
  try:
    about = json.loads(path.read_text())
  except ValueError as error:
    raise _damaged(path, error) from None
  if not isinstance(about, dict) or not _KEYS <= about.keys():
    raise ValueError(f"{path}: lacks {', '.join(sorted(_KEYS))}; {_AGAIN}")
  return about


def _read_labels(path: pathlib.Path) -> np.ndarray:
  try:
    return np.load(path, allow_pickle=False)
  except FileNotFoundError:
    raise FileNotFoundError(
      f"{path} is missing; restore it, or {_AGAIN}"
    ) from None
  except (ValueError, EOFError) as error:
    raise _damaged(path, error) from None


def _checked(
  images: ArrayLike, labels: ArrayLike | None, split: str, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
  """A block as uint8 [M H W C] and int32 [M], [M J] or [M 0]."""
  images = np.asarray(images)
  if (
    images.dtype != np.uint8
    or images.ndim not in (3, 4)
    or 0 in images.shape[1:]
  ):
    raise ValueError(
      f"images of {split} are {list(images.shape)} of {images.dtype}; give "
      "uint8 [M H W C] or [M H W]"
    )
  if images.ndim == 3:
    images = images[..., np.newaxis]
  if images.shape[3] > MOST_CHANNELS:
    raise ValueError(
      f"images of {split} have {images.shape[3]} channels; give 1 to "
      f"{MOST_CHANNELS}, as the last axis"
    )
  if labels is None and num_classes:
    raise ValueError(
      f"{split} has no labels (None), and class_names names {num_classes} "
      "classes; give labels, or leave class_names out"
    )
  labels = no_labels(len(images)) if labels is None else np.asarray(labels)
  count = num_classes if labels.ndim == 1 else 2
  shapes = {(len(images),), (len(images), num_classes)}
  if (
    labels.shape not in shapes
    or labels.dtype.kind not in "iub"
    or (labels.size and not 0 <= labels.min() <= labels.max() < count)
  ):
    raise ValueError(
      f"labels of {split} are {list(labels.shape)} of {labels.dtype}; for "
      f"{len(images)} images give as many integers in 0..{num_classes - 1}, or "
      f"[{len(images)} {num_classes}] of 0 and 1"
      if num_classes
      else f"{split} has labels, and class_names is empty; give the names of "
      "the classes, or None in place of the labels"
    )
  return images, labels.astype(np.int32)


def _images(folder: pathlib.Path, split: str) -> pathlib.Path:
  return folder / f"{split}.array_record"


def _labels(folder: pathlib.Path, split: str) -> pathlib.Path:
  return folder / f"{split}_labels.npy"


def _damaged(path: pathlib.Path, error: Exception) -> ValueError:
  fault = " ".join(str(error).split())
  return ValueError(f"{path}: cannot be read ({fault}); {_AGAIN}")


def _by(shape: Sequence[int]) -> str:
  return "x".join(map(str, shape))


def _package(name: str) -> types.ModuleType:
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise ValueError(
      f"{error}; ArrayRecord files need `pip install '.[data]'`, in the folder "
      "of this repository"
    ) from error
