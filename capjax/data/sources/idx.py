"""The IDX files in which MNIST and similar data sets are distributed.

A file holds a four-byte magic (0, 0, element type, rank), one big-endian uint32
for each dimension, and the elements in C order; here always unsigned bytes.
"""

import gzip
import io
import math
import pathlib
import re
import struct
import zlib

import numpy as np
from jaxtyping import UInt8

from capjax.data import conversion as converting
from capjax.data.conversion import Conversion
from capjax.data.sources.source import (
  Part,
  Source,
  notes_of_columns,
  number_classes,
)

_PREFIXES = {"train": ("train",), "test": ("t10k", "test")}
_RANKS = {"images": (3, 4), "labels": (1,)}
_UNSIGNED_BYTES = b"\0\0\x08"
_GZIP_MAGIC = b"\x1f\x8b"
_MOST_INFLATED = 1032  # bytes that one byte of gzip data can become
_FETCH_AGAIN = "fetch or copy it again"
# With a prefix, as in emnist-letters-train-images-idx3-ubyte.gz.
_NAME = re.compile(
  r"(?P<prefix>.*?)(?P<part>train|t10k|test)-(?P<kind>images|labels)"
  r"[-.]idx[134]-ubyte(\.gz)?"
)


def pattern(split: str) -> str:
  """Returns the usual names of a split's files, for error messages.

  Args:
    split: "train" or "test".
  """
  start = _PREFIXES[split][0]
  return f"{start}-images-idx3-ubyte and {start}-labels-idx1-ubyte (or .gz)"


def find(
  folder: pathlib.Path, split: str
) -> tuple[pathlib.Path, pathlib.Path] | None:
  """Finds the image file and the label file of a split.

  If several files exist, `t10k-` is preferred to `test-`, `-idx` to `.idx`,
  `idx3` to `idx4`, and an uncompressed file to its own `.gz`.

  Args:
    folder: The folder to search; need not exist.
    split: "train" or "test".

  Returns:
    The paths of the images and of the labels; None where the folder holds no
    IDX file, of this split or of the other.

  Raises:
    FileNotFoundError: Part of the data set is missing.
  """
  files = [f for f, match in _matches(folder).items() if not match["prefix"]]
  if not files:
    return None
  found = find_set(folder / files[0].name) or {}
  for kind in _RANKS:
    # Do not continue with another source: the files may hold other data than
    # the standard data set of that name.
    if (split, kind) not in found:
      raise FileNotFoundError(
        f"{folder}: no {split} {kind} beside "
        f"{', '.join(file.name for file in files)}; "
        f"add one of {', '.join(_names(split, kind))}"
      )
  return found[split, "images"], found[split, "labels"]


def find_set(path: pathlib.Path) -> dict[tuple[str, str], pathlib.Path] | None:
  """Finds the files of one data set, with any prefix.

  Args:
    path: The folder of one data set; or one of its files; or the folder and the
      prefix of the files' names, such as `FOLDER/emnist-letters`.

  Returns:
    Files by part ("train" or "test") and kind ("images" or "labels"). If
    several files match, the one that `find` prefers. None if there are none.

  Raises:
    ValueError: The folder holds several data sets.
  """
  matches = _matches(path if path.is_dir() else path.parent)
  if not path.is_dir():
    one = matches.get(path)
    prefix = one["prefix"] if one else path.name + "-"
    matches = {
      f: match for f, match in matches.items() if match["prefix"] == prefix
    }
  prefixes = sorted({match["prefix"] for match in matches.values()})
  if len(prefixes) > 1:
    raise ValueError(
      f"{path}: holds several data sets; name one of "
      f"{', '.join(str(path / x.rstrip('-')) for x in prefixes)}"
    )
  found: dict[tuple[str, str], pathlib.Path] = {}
  for file, match in matches.items():
    part = "train" if match["part"] == "train" else "test"
    found.setdefault((part, match["kind"]), file)
  return found or None


def _matches(folder: pathlib.Path) -> dict[pathlib.Path, re.Match[str]]:
  """Files named as IDX: t10k before test, each before its own .gz."""
  if not folder.is_dir():
    return {}
  return {
    file: match
    for file in sorted(folder.iterdir())
    if (match := _NAME.fullmatch(file.name)) and file.is_file()
  }


def open_set(
  files: dict[tuple[str, str], pathlib.Path], conversion: Conversion
) -> Source:
  """Reads a data set of any shape and any classes.

  Images of EMNIST, known by the prefix of their files, are turned upright.

  Args:
    files: See `find_set`.
    conversion: How every image is converted.

  Raises:
    FileNotFoundError: A file is missing.
    ValueError: A file is incomplete, or files do not fit each other.
  """
  parts = {part for part, _ in files} | {"train"}
  anchor = next(iter(files.values()))
  notes = notes_of_columns(anchor.name)
  for part in sorted(parts):
    for kind in _RANKS:
      if (part, kind) not in files:
        raise FileNotFoundError(
          f"{anchor.parent}: no {part} {kind} beside {anchor.name}; add "
          f"{part}-{kind}-idx{_RANKS[kind][0]}-ubyte, with the same prefix"
        )
  images, labels = {}, {}
  for part in sorted(parts):
    path = files[part, "images"]
    images[part] = read(path, "images")
    labels[part] = read(files[part, "labels"], "labels")
    if images[part].ndim == 3:
      images[part] = images[part][..., np.newaxis]
    if notes:
      images[part] = np.swapaxes(images[part], 1, 2)
    if len(images[part]) != len(labels[part]) or not len(labels[part]):
      raise ValueError(
        f"{path} holds {len(images[part])} images, and its labels are "
        f"{len(labels[part])}; {_FETCH_AGAIN}"
      )
  shapes = {x.shape[1:] for x in images.values()}
  if len(shapes) > 1:
    raise ValueError(
      f"{anchor.parent}: training and test images differ in shape "
      f"({' and '.join(str(list(x)) for x in sorted(shapes))}); give one shape"
    )
  *both, names = number_classes(
    labels["train"], labels.get("test"), str(anchor.parent)
  )

  def labelled(name, numbers):
    return Part(
      numbers,
      lambda rows: converting.convert_all(images[name][rows], conversion),
    )

  test = labelled("test", both[1]) if "test" in parts else None
  return Source(labelled("train", both[0]), test, names, notes)


def read(path: pathlib.Path, kind: str) -> UInt8[np.ndarray, "..."]:
  """Reads a file of unsigned bytes.

  Args:
    path: The file; gunzipped where its name ends in `.gz`.
    kind: "images" (rank 3 or 4) or "labels" (rank 1).

  Returns:
    A read-only array over the file's bytes, with the shape in its header.

  Raises:
    ValueError: The file is incomplete, or not what its name says.
  """
  try:
    with _open(path) as file:
      return _read(path, file, kind)
  except EOFError:
    raise ValueError(
      f"{path}: truncated gzip file ({path.stat().st_size} bytes); "
      f"{_FETCH_AGAIN}"
    ) from None
  except (gzip.BadGzipFile, zlib.error) as error:
    raise ValueError(
      f"{path}: corrupt gzip file ({error}); {_FETCH_AGAIN}"
    ) from None


def _read(
  path: pathlib.Path, file: io.BufferedIOBase, kind: str
) -> UInt8[np.ndarray, "..."]:
  """Reads the header, and at most one byte more than it announces."""
  magic = file.read(4)
  if len(magic) < 4 or not magic.startswith(_UNSIGNED_BYTES):
    raise ValueError(
      f"{path}: starts with 0x{magic.hex()}, not with the magic number of an "
      f"IDX file of unsigned bytes, 0x000008 and the rank; {_FETCH_AGAIN}"
    )
  rank = magic[3]
  if rank not in _RANKS[kind]:
    expected = " or ".join(map(str, _RANKS[kind]))
    raise ValueError(
      f"{path}: magic number 0x{magic.hex()} announces rank {rank}, but {kind}"
      f" have rank {expected}; check that image and label files are not "
      "exchanged"
    )
  sizes = file.read(4 * rank)
  if len(sizes) < 4 * rank:
    raise ValueError(
      f"{path}: ends within its header, after {4 + len(sizes)} of "
      f"{4 + 4 * rank} bytes; {_FETCH_AGAIN}"
    )
  shape = struct.unpack(f">{rank}I", sizes)
  promised = math.prod(shape)
  counts = f"{'x'.join(map(str, shape))} = {promised} bytes"
  stored = path.stat().st_size
  if promised > stored * (_MOST_INFLATED if path.suffix == ".gz" else 1):
    raise ValueError(
      f"{path}: the header counts {counts}, more than its {stored} bytes can "
      f"hold; {_FETCH_AGAIN}"
    )
  content = file.read(promised + 1)
  if len(content) > promised:
    raise ValueError(
      f"{path}: the header counts {counts}, but more follow; {_FETCH_AGAIN}"
    )
  if len(content) < promised:
    raise ValueError(
      f"{path}: the header counts {counts}, but {len(content)} follow (short "
      f"by {promised - len(content)}); {_FETCH_AGAIN}"
    )
  return np.frombuffer(content, np.uint8).reshape(shape)


def _names(split: str, kind: str) -> list[str]:
  return [
    f"{prefix}-{kind}-idx{rank}-ubyte{suffix}"
    for prefix in _PREFIXES[split]
    for rank in _RANKS[kind]
    for suffix in ("", ".gz")
  ]


def _open(path: pathlib.Path) -> io.BufferedIOBase:
  with path.open("rb") as file:
    zipped = file.read(2) == _GZIP_MAGIC
  if path.suffix == ".gz" and not zipped:
    raise ValueError(
      f"{path}: not a gzip file; {_FETCH_AGAIN}, or rename it to {path.stem} "
      "if it is already uncompressed"
    )
  if path.suffix != ".gz" and zipped:
    raise ValueError(
      f"{path}: holds gzip data under an uncompressed name; rename it to "
      f"{path.name}.gz"
    )
  return gzip.open(path) if zipped else path.open("rb")
