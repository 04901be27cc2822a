"""The official files of smallNORB, and its tests on novel viewpoints.

smallNORB (LeCun, Huang and Bottou, 2004) shows 50 toys of five categories, half
of them for training, in 9 elevations, 18 azimuths and 6 lightings to two eyes.
A file holds a little-endian int32 magic number that tells the element type, the
rank, at least three dimensions, and the elements in C order.
"""

import gzip
import math
import pathlib
import zlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32, UInt8

_STEMS = {
  "train": "smallnorb-5x46789x9x18x6x2x96x96-training",
  "test": "smallnorb-5x01235x9x18x6x2x96x96-testing",
}
_KINDS = ("dat", "cat", "info")
_DTYPES: dict[int, np.dtype] = {
  0x1E3D4C55: np.dtype("u1"),
  0x1E3D4C54: np.dtype("<i4"),
}
# Columns of an info file, and the values they have.
_FACTORS = {
  "label_instance": range(10),
  "label_elevation": range(9),
  "label_azimuth": range(0, 36, 2),
  "label_lighting": range(6),
}
_FETCH_AGAIN = "fetch it again"
# Steps of 20 degrees: 300, 320, 340, 0, 20, 40.
_FAMILIAR_AZIMUTHS = (15, 16, 17, 0, 1, 2)
_FAMILIAR_ELEVATIONS = (0, 1, 2)


class Files(NamedTuple):
  """Files of one split: images, categories, and instances with viewpoints."""

  dat: pathlib.Path
  cat: pathlib.Path
  info: pathlib.Path


def pattern(split: str) -> str:
  """Returns a pattern of the names of a split's files, for messages.

  Args:
    split: "train" or "test".
  """
  return f"{_STEMS[split]}-({'|'.join(_KINDS)}).mat[.gz]"


def find(folder: pathlib.Path, split: str) -> Files | None:
  """Finds the files of a split; prefers an uncompressed file to its `.gz`.

  Args:
    folder: the folder to search; need not exist.
    split: "train" or "test".

  Returns:
    The paths of the files; None where the folder holds no file of smallNORB, of
    this split or of the other.

  Raises:
    FileNotFoundError: some of the files of the split are missing.
  """
  present = {
    (part, kind): path
    for part, stem in _STEMS.items()
    for kind in _KINDS
    for path in (
      folder / f"{stem}-{kind}.mat.gz",
      folder / f"{stem}-{kind}.mat",
    )
    if path.is_file()
  }
  if not present:
    return None
  for kind in _KINDS:
    if (split, kind) not in present:
      beside = ", ".join(sorted(path.name for path in present.values()))
      raise FileNotFoundError(
        f"{folder}: no {_STEMS[split]}-{kind}.mat[.gz] beside {beside}; add it"
      )
  return Files(*(present[split, kind] for kind in _KINDS))


def read(
  files: Files,
) -> tuple[
  UInt8[np.ndarray, "N H W 2"],
  Int32[np.ndarray, " N"],
  dict[str, np.ndarray],
]:
  """Reads a split.

  Args:
    files: the result of `find`.

  Returns:
    Images with the two eyes along the last axis, labels, and the factors of
    variation, int32 [N] each, named and counted as TensorFlow Datasets does:
    `label_azimuth` is in steps of 20 degrees, half of what the file holds, and
    `label_elevation` in steps of 5 degrees from 30 on.

  Raises:
    ValueError: a file is incomplete or not what its name says.
  """
  pairs = _matrix(files.dat, np.uint8, 4)
  labels = _matrix(files.cat, np.int32, 1)
  info = _matrix(files.info, np.int32, 2)
  if pairs.shape[1] != 2:
    raise ValueError(
      f"{files.dat}: {pairs.shape[1]} images of each toy, not a pair; "
      f"{_FETCH_AGAIN}"
    )
  for path, array, shape in (
    (files.cat, labels, (len(pairs),)),
    (files.info, info, (len(pairs), len(_FACTORS))),
  ):
    if array.shape != shape:
      raise ValueError(
        f"{path}: is {list(array.shape)}, not {list(shape)}, which the "
        f"{len(pairs)} pairs of {files.dat} need; {_FETCH_AGAIN}"
      )
  for column, (name, values) in enumerate(_FACTORS.items()):
    wrong = np.flatnonzero(~np.isin(info[:, column], values))
    if wrong.size:
      raise ValueError(
        f"{files.info}: {name} of {wrong[0]} is {info[wrong[0], column]}, none "
        f"of {values[0]}, {values[1]}..{values[-1]}; {_FETCH_AGAIN}"
      )
  factors = dict(zip(_FACTORS, np.array(info.T, np.int32), strict=True))
  factors["label_azimuth"] //= 2
  images = np.ascontiguousarray(np.moveaxis(pairs, 1, -1))
  return images, labels.astype(np.int32), factors


def familiar_azimuths(
  factors: Mapping[str, np.ndarray],
) -> Bool[np.ndarray, " N"]:
  """Tells which examples show a third of the azimuths (Hinton et al., 2018).

  These azimuths are 300, 320, 340, 0, 20 and 40 degrees. A network is trained
  on training examples with these azimuths. It is tested on test examples with
  the same azimuths (familiar viewpoints), and on test examples with the others,
  60 to 280 degrees (novel viewpoints).

  Args:
    factors: with `label_azimuth`, of any data set with smallNORB's factors.

  Returns:
    [N], true for familiar azimuths.

  Raises:
    ValueError: `label_azimuth` is missing.
  """
  return np.isin(_values(factors, "label_azimuth"), _FAMILIAR_AZIMUTHS)


def familiar_elevations(
  factors: Mapping[str, np.ndarray],
) -> Bool[np.ndarray, " N"]:
  """Tells which examples show the three lowest elevations of nine.

  As `familiar_azimuths`; the novel elevations are the six higher ones.

  Args:
    factors: with `label_elevation`.

  Returns:
    [N], true for familiar elevations.

  Raises:
    ValueError: `label_elevation` is missing.
  """
  return np.isin(_values(factors, "label_elevation"), _FAMILIAR_ELEVATIONS)


def _values(factors: Mapping[str, np.ndarray], name: str) -> np.ndarray:
  if name not in factors:
    raise ValueError(
      f"the data set has the factors {sorted(factors)}, not {name!r}; load it "
      "from files that tell the viewpoint"
    )
  return factors[name]


def _matrix(path: pathlib.Path, dtype: type, rank: int) -> np.ndarray:
  """Reads a file that must have this element type and rank."""
  content = _content(path)
  header = np.frombuffer(content[: 4 * (len(content) // 4)][:32], "<i4")
  magic = int(header[0]) if header.size else 0
  if magic not in _DTYPES:
    raise ValueError(
      f"{path}: starts with 0x{content[:4].hex()}, not with the magic number "
      f"of bytes, 0x554c3d1e, or of integers, 0x544c3d1e; {_FETCH_AGAIN}"
    )
  if _DTYPES[magic] != dtype or (header.size > 1 and header[1] != rank):
    found = header[1] if header.size > 1 else "no"
    raise ValueError(
      f"{path}: holds {_DTYPES[magic].name} of rank {found}, not "
      f"{np.dtype(dtype).name} of rank {rank}; check that the dat, cat and "
      "info files are not exchanged"
    )
  size = 4 * (2 + max(3, rank))
  if len(content) < size:
    raise ValueError(
      f"{path}: ends within its header, after {len(content)} of {size} bytes; "
      f"{_FETCH_AGAIN}"
    )
  shape = [int(length) for length in header[2 : 2 + rank]]
  promised = math.prod(shape) * _DTYPES[magic].itemsize
  found = len(content) - size
  if min(shape) < 0 or found != promised:
    raise ValueError(
      f"{path}: the header counts {'x'.join(map(str, shape))}, which take "
      f"{promised} bytes, but {found} follow; {_FETCH_AGAIN}"
    )
  return np.frombuffer(content, _DTYPES[magic], offset=size).reshape(shape)


def _content(path: pathlib.Path) -> bytes:
  if path.suffix != ".gz":
    return path.read_bytes()
  try:
    with gzip.open(path) as file:
      return file.read()
  except (EOFError, gzip.BadGzipFile, zlib.error) as error:
    raise ValueError(
      f"{path}: not a whole gzip file ({error}); {_FETCH_AGAIN}"
    ) from None
