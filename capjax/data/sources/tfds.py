"""Image data sets prepared by TensorFlow Datasets, read without TensorFlow."""

import importlib.util
import pathlib
import re
import types
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32, UInt8

from capjax.data import conversion as converting
from capjax.data.conversion import Conversion
from capjax.data.sources.source import (
  Part,
  Source,
  notes_of_columns,
  number_classes,
)

_IMAGES = ("image", "image2")
_LABELS = ("label", "label_category")
# smallNORB's own spelling of the instance lacks the prefix.
_FACTORS = {
  "instance": "label_instance",
  "label_azimuth": "label_azimuth",
  "label_elevation": "label_elevation",
  "label_instance": "label_instance",
  "label_lighting": "label_lighting",
}
_BATCH_SIZE = 1024
_TIMEOUT_SECONDS = 10


def find(folder: pathlib.Path) -> pathlib.Path | None:
  """Returns the newest prepared version under `DATA_DIR/NAME`, if any.

  Args:
    folder: `DATA_DIR/NAME`; need not exist.
  """
  versions = [
    path.parent
    for path in folder.glob("*/dataset_info.json")
    if re.fullmatch(r"\d+\.\d+\.\d+", path.parent.name)
  ]
  return max(
    versions,
    key=lambda path: tuple(map(int, path.name.split("."))),
    default=None,
  )


def find_any(path: pathlib.Path) -> pathlib.Path | None:
  """Finds a prepared version in the folder of a version, a name or a config.

  Args:
    path: `NAME`, `NAME/CONFIG`, or either with `/VERSION`; need not exist.

  Returns:
    The folder of the version, the newest if none is named; None without one.

  Raises:
    ValueError: The path names no config, and there are several.
  """
  if (path / "dataset_info.json").is_file():
    return path
  version = find(path)
  if version or not path.is_dir():
    return version
  configs = {
    inner.name: version
    for inner in sorted(path.iterdir())
    if inner.is_dir() and (version := find(inner))
  }
  if len(configs) > 1:
    raise ValueError(
      f"{path}: holds several configs ({', '.join(configs)}); add one of them "
      "to the name"
    )
  return next(iter(configs.values()), None)


def open_prepared(folder: pathlib.Path, conversion: Conversion) -> Source:
  """Opens any image classification set that was prepared as ArrayRecord files.

  Args:
    folder: The folder of one version, which holds `dataset_info.json`.
    conversion: How every image is converted.

  Returns:
    The splits `train` and `test`; `validation` where there is no `test`. Images
    of EMNIST are turned upright.

  Raises:
    PermissionError: The user may not read the records.
    ValueError: The records cannot be read, or are not images with one label.
  """
  return _attempt(folder, lambda tfds: _open(tfds, folder, conversion))


def read(
  folder: pathlib.Path, split: str
) -> tuple[
  UInt8[np.ndarray, "N H W C"],
  Int32[np.ndarray, " N"],
  dict[str, np.ndarray],
]:
  """Reads a split of a data set that was prepared as ArrayRecord files.

  Args:
    folder: The folder of one version, which holds `dataset_info.json`.
    split: "train" or "test".

  Returns:
    The images (those of a stereo pair stacked along C), the labels and the
    factors of variation (int32 [N] each), in the order of the records.

  Raises:
    PermissionError: The user may not read the records.
    ValueError: The records cannot be read.
  """

  def read_columns(tfds):
    builder = tfds.builder_from_directory(folder)
    if split not in builder.info.splits:
      raise ValueError(f"it has no split {split!r}")
    return _columns(builder, split)

  return _attempt(folder, read_columns)


def prepare(name: str, data_dir: pathlib.Path) -> None:
  """Downloads a data set and prepares it under `data_dir` as ArrayRecord files.

  Args:
    name: The name that TensorFlow Datasets uses.
    data_dir: The folder of its data sets; created if it does not exist.

  Raises:
    PermissionError: The user may not write to `data_dir`.
    RuntimeError: Preparation failed; the message says what was missing.
  """
  for module, role in (
    ("tensorflow_datasets", "TensorFlow Datasets"),
    ("tensorflow", "TensorFlow, which unpacks what is downloaded,"),
  ):
    if importlib.util.find_spec(module) is None:
      raise RuntimeError(f"{role} is not installed")
  try:
    import tensorflow_datasets as tfds

    builder = tfds.builder(name, data_dir=data_dir, file_format="array_record")
    if not any((data_dir / "downloads" / name).glob("*.INFO")):
      _check_network(builder.url_infos)
    builder.download_and_prepare(
      download_config=tfds.download.DownloadConfig(try_download_gcs=False)
    )
  except PermissionError:
    raise
  except Exception as error:
    raise RuntimeError(_describe(error)) from error


def _attempt(
  folder: pathlib.Path, function: Callable[[types.ModuleType], Any]
) -> Any:
  """Calls a function with the module TFDS; errors name the folder."""
  try:
    import tensorflow_datasets as tfds

    return function(tfds)
  except ImportError as error:
    raise ValueError(
      f"{folder}: {error}; reading TensorFlow Datasets needs "
      "`pip install '.[data]'`, in the folder of this repository"
    ) from error
  except PermissionError:  # another source would not help
    raise
  except _UnfitError as error:
    raise ValueError(f"{folder}: {error}") from None
  # TFDS and its readers raise errors of many kinds.
  except Exception as error:
    raise ValueError(
      f"{folder}: cannot be read ({_describe(error)}); move this folder away "
      "and load the data set again, which prepares it again"
    ) from error


class _UnfitError(Exception):
  """The records are whole, but not what this project can use."""


def _open(
  tfds: types.ModuleType, folder: pathlib.Path, conversion: Conversion
) -> Source:
  builder = tfds.builder_from_directory(folder)
  features, splits = builder.info.features, builder.info.splits
  image_key, label_key = _keys(builder)
  if "train" not in splits:
    raise _UnfitError(f"it has no split 'train', only {', '.join(splits)}")
  if None in features[image_key].shape[:2] and conversion.image_size is None:
    raise _UnfitError(
      "its images differ in size; give image_size (--image_size=H,W) to resize "
      "all"
    )
  labels = {}
  for split in filter(splits.__contains__, ("train", "test", "validation")):
    options = {"decoders": {image_key: tfds.decode.SkipDecoding()}}
    undecoded = _source(builder, split, **options)
    numbers = [record[label_key] for record in _records(undecoded)]
    # Some test sets are published without labels, that is with -1.
    if split == "train" or min(numbers) >= 0:
      labels[split] = np.array(numbers, np.int64)
    if len(labels) == 2:
      break
  test = next((split for split in labels if split != "train"), None)
  of_columns = notes_of_columns(builder.name)
  notes = [*of_columns]
  if test == "validation":
    notes.append("validation is the test set, since no test has labels")
  names = tuple(getattr(features[label_key], "names", None) or ())
  if names:
    labels = {split: x.astype(np.int32) for split, x in labels.items()}
  else:
    others = labels[test] if test else None
    train, others, names = number_classes(labels["train"], others, str(folder))
    labels = {"train": train}
    if test and others is not None:
      labels[test] = others
  sources = {split: _source(builder, split) for split in labels}

  def read(split, rows):
    records = _records(sources[split], rows.tolist())
    found = (x[image_key] for x in records)
    if of_columns:
      found = (np.swapaxes(x, 0, 1) for x in found)
    converted = (converting.convert(x, conversion) for x in found)
    first = next(converted)
    images = np.empty((len(rows), *first.shape), np.uint8)
    images[0] = first
    for n, image in enumerate(converted, start=1):
      images[n] = image
    return images

  def part(split):
    return Part(
      labels[split],
      lambda rows: _attempt(folder, lambda tfds: read(split, rows)),
    )

  return Source(
    part("train"), part(test) if test else None, names, tuple(notes)
  )


def _keys(builder: Any) -> tuple[str, str]:
  """The names of the image and of the label, as the data set declares them."""
  features = dict(builder.info.features.items())
  declared = builder.info.supervised_keys
  if declared and len(declared) == 2 and all(x in features for x in declared):
    image_key, label_key = declared
  else:
    image_key = next((key for key in _IMAGES if key in features), None)
    label_key = next((key for key in _LABELS if key in features), None)
  image, label = features.get(image_key), features.get(label_key)
  if (
    image is None
    or label is None
    or len(getattr(image, "shape", ())) != 3
    or getattr(label, "shape", None) != ()
    or not np.issubdtype(label.np_dtype, np.integer)
  ):
    raise _UnfitError(
      f"it has {', '.join(sorted(features))}, not images with one label each"
    )
  if image.np_dtype != np.uint8:
    raise _UnfitError(f"{image_key!r} is of {image.np_dtype}, not uint8")
  return image_key, label_key


def _source(builder: Any, split: str, **options: Any) -> Any:
  try:
    return builder.as_data_source(split=split, **options)
  except NotImplementedError:
    stored = builder.info.file_format.value
    raise ValueError(f"its records are {stored}, not array_record") from None


def _records(source: Any, rows: Sequence[int] | None = None) -> Iterator[Any]:
  """Yields the records at the given rows, or all records, in order."""
  rows = range(len(source)) if rows is None else rows
  for start in range(0, len(rows), _BATCH_SIZE):
    batch = rows[start : start + _BATCH_SIZE]
    yield from source.__getitems__(batch)


def _columns(
  builder: Any, split: str
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
  features = builder.info.features
  image_keys = [key for key in _IMAGES if key in features]
  label_key = next((key for key in _LABELS if key in features), None)
  if not image_keys or label_key is None:
    raise ValueError(f"it has {sorted(features)}, not images and labels")
  for key in image_keys:
    if features[key].np_dtype != np.uint8:
      raise ValueError(f"{key!r} is {features[key].np_dtype}, not uint8")
  keys = [label_key, *(key for key in _FACTORS if key in features)]

  source = _source(builder, split)
  size = len(source)
  *shape, channels = features[image_keys[0]].shape
  images = np.empty((size, *shape, channels * len(image_keys)), np.uint8)
  values = {key: np.empty(size, np.int32) for key in keys}
  for start in range(0, size, _BATCH_SIZE):
    rows = slice(start, min(start + _BATCH_SIZE, size))
    records = source.__getitems__(range(rows.start, rows.stop))
    for i, key in enumerate(image_keys):
      images[rows, ..., i * channels : (i + 1) * channels] = [
        record[key] for record in records
      ]
    for key in keys:
      values[key][rows] = [record[key] for record in records]
  labels = values.pop(label_key)
  return images, labels, {_FACTORS[key]: values[key] for key in values}


def _check_network(urls: Iterable[str]) -> None:
  # Without this, TFDS retries in vain for minutes.
  for url in urls:
    request = urllib.request.Request(url, method="HEAD")
    try:
      urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS).close()
    except urllib.error.HTTPError:
      pass  # The server answers; TFDS will report what it refuses.
    except OSError as error:
      raise ConnectionError(f"no connection to {url} ({error})") from None
    return


def _describe(error: Exception) -> str:
  text = " ".join(str(error).split())
  return (
    text if type(error) is ValueError else f"{type(error).__name__}: {text}"
  )
