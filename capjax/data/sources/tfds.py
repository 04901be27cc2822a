"""Image data sets prepared by TensorFlow Datasets, read without TensorFlow."""

import importlib.util
import pathlib
import re
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Int32, UInt8

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
  """Returns the newest prepared version under `DATA_DIR/NAME`, if any."""
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
  try:
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(folder)
    if split not in builder.info.splits:
      raise ValueError(f"it has no split {split!r}")
    return _columns(builder, split)
  except ImportError as error:
    raise ValueError(
      f"{folder}: {error}; reading TensorFlow Datasets needs "
      "`pip install '.[data]'`, in the folder of this repository"
    ) from error
  except PermissionError:  # another source would not help
    raise
  # TFDS and the readers under it raise whatever their formats raise.
  except Exception as error:
    raise ValueError(
      f"{folder}: cannot be read ({_describe(error)}); move this folder away "
      "and load the data set again, to prepare it anew"
    ) from error


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

  try:
    source = builder.as_data_source(split=split)
  except NotImplementedError:
    stored = builder.info.file_format.value
    raise ValueError(f"its records are {stored}, not array_record") from None
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
      pass  # The server is there; what it refuses is for TFDS to report.
    except OSError as error:
      raise ConnectionError(f"no connection to {url} ({error})") from None
    return


def _describe(error: Exception) -> str:
  text = " ".join(str(error).split())
  return (
    text if type(error) is ValueError else f"{type(error).__name__}: {text}"
  )
