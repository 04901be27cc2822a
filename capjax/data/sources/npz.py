"""NumPy archives of images, with or without labels."""

import collections
import pathlib
import zipfile
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import UInt8

from capjax.data import conversion as converting
from capjax.data.conversion import Conversion
from capjax.data.sources.source import (
  Part,
  Source,
  no_labels,
  number_classes,
  one_label_each,
)

_KEYS = ("images", "labels", "test_images", "test_labels", "class_names")
_ALONE = {"images", "test_images"}  # the arrays of images without labels
_LARGEST = 255
_DARK = 64  # images below this intensity are dark, or have another range
_BEYOND = 2.0**63  # signed integers of 64 bits are below this number


def open_archive(path: pathlib.Path, conversion: Conversion) -> Source:
  """Reads an archive of NumPy.

  It holds `images`, [N H W] or [N H W C], as integers in 0..255, floats in
  [0, 1] or booleans; `labels`, one integer or word for each image, or multi-hot
  [N J] of 0 and 1 (rows with a single 1 each become one label); optionally
  `test_images` and `test_labels`; and optionally `class_names`, J words, for
  labels that are 0..J-1 or multi-hot. An archive of images without labels holds
  only `images` and optionally `test_images`.

  Args:
    path: The file.
    conversion: How every image is converted.

  Raises:
    ValueError: The archive is damaged, or its arrays are not as above; the
      message says what it holds.
  """
  arrays, present = _arrays(path)
  return open_arrays(path, arrays, conversion, present=present)


def open_arrays(
  path: pathlib.Path | str,
  arrays: Mapping[str, np.ndarray],
  conversion: Conversion,
  *,
  present: Sequence[str] | None = None,
) -> Source:
  """Opens arrays as `open_archive` opens those of an archive.

  Args:
    path: Where they come from, for error messages.
    arrays: By name, as in an archive.
    conversion: How every image is converted.
    present: The names of all arrays that are there, for the error message; by
      default those of `arrays`.

  Raises:
    ValueError: As `open_archive`.
  """
  found = present or list(arrays)
  is_labelled = "images" not in arrays or not _ALONE.issuperset(found)
  missing = [key for key in _KEYS[:2] if key not in arrays]
  has_test = "test_images" in arrays or "test_labels" in arrays
  missing += [key for key in _KEYS[2:4] if has_test and key not in arrays]
  if missing and is_labelled:
    raise ValueError(
      f"{path}: has no {' and no '.join(missing)}, only "
      f"{', '.join(sorted(found)) or 'nothing'}; give images, labels and, if "
      "there is a test set, test_images and test_labels; or images without "
      "labels alone, as images and test_images"
    )
  parts = ["", "test_"] if has_test else [""]
  images = [_images(path, f"{x}images", arrays) for x in parts]
  labels = [
    _labels(path, f"{x}labels", arrays) if is_labelled else no_labels(len(some))
    for x, some in zip(parts, images, strict=True)
  ]
  for prefix, some, marks in zip(parts, images, labels, strict=True):
    if len(some) != len(marks) or not len(some):
      raise ValueError(
        f"{path}: {prefix}images holds {len(some)} images and {prefix}labels "
        f"{len(marks)} labels; give at least one image, and a label for each"
      )
  if has_test and images[0].shape[1:] != images[1].shape[1:]:
    one, two = ("x".join(map(str, x.shape[1:])) for x in images)
    raise ValueError(
      f"{path}: images are {one}, but test_images are {two}; give one shape"
    )
  names: tuple[str, ...] = ()
  if is_labelled:
    labels, names = _classes(path, labels, arrays.get("class_names"))

  def labelled(some, marks):
    return Part(
      marks, lambda rows: converting.convert_all(some[rows], conversion)
    )

  sources = [*map(labelled, images, labels)]
  return Source(
    sources[0], sources[1] if has_test else None, names, _notes(images[0])
  )


def _notes(images: UInt8[np.ndarray, "N H W C"]) -> tuple[str, ...]:
  """Returns a note for the user if the largest intensity is 2 to 63: dark."""
  largest = images.max()
  if not 1 < largest < _DARK:
    return ()
  return (
    f"the largest intensity of the training images is {largest} of 255, so "
    f"they are dark; scale them to 0..255 if {largest} means white",
  )


def _arrays(
  path: pathlib.Path,
) -> tuple[dict[str, np.ndarray], list[str]]:
  """Reads the arrays with known names, and the names of all arrays."""
  try:
    # Opened here: np.load does not close a file that is damaged.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
      known = {key: archive[key] for key in archive.files if key in _KEYS}
      return known, archive.files
  except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as e:
    if isinstance(e, PermissionError):
      raise
    fault = " ".join(str(e).split())
    raise ValueError(
      f"{path}: not a whole .npz archive of plain arrays ({fault}); write it "
      "again with np.savez, without objects"
    ) from None


def _images(
  path: pathlib.Path | str, key: str, arrays: Mapping[str, np.ndarray]
) -> UInt8[np.ndarray, "N H W C"]:
  images = arrays[key]

  def refuse(fault, remedy):
    raise ValueError(f"{path}: {key} {fault}; {remedy}")

  if images.ndim not in (3, 4) or 0 in images.shape[1:]:
    shape = " ".join(map(str, images.shape))
    refuse(f"is an array [{shape}]", "give [N H W] or [N H W C]")
  if images.ndim == 3:
    images = images[..., np.newaxis]
  if images.shape[3] > 3:
    first = images.shape[1] <= 3
    refuse(
      f"has {images.shape[3]} channels",
      "give [N H W C], the channels last" if first else "give 1 to 3",
    )
  if images.dtype == bool:
    return images * np.uint8(_LARGEST)
  if not len(images):
    return images.astype(np.uint8)
  kind = images.dtype.kind
  if images.dtype.name == "bfloat16":  # whose kind in NumPy is not "f"
    refuse(f"is of {images.dtype}", "convert by images.astype(numpy.float32)")
  if kind not in "iuf":
    refuse(f"is of {images.dtype}", "give integers in 0..255, floats in [0, 1]")
  if kind == "f" and not np.all(np.isfinite(images)):
    wrong = np.argwhere(~np.isfinite(images))
    place = ", ".join(map(str, wrong[0]))
    refuse(
      f"holds {images[tuple(wrong[0])]} at [{place}] ({len(wrong):,} of "
      f"{images.size:,} numbers are not finite)",
      "leave out such images",
    )
  low, high = images.min(), images.max()
  if kind == "f":
    if not (low >= 0 and high <= 1):
      refuse(f"holds floats from {low:g} to {high:g}", "scale them to [0, 1]")
    return np.round(images * _LARGEST).astype(np.uint8)
  if low < 0 or high > _LARGEST:
    refuse(f"holds integers from {low} to {high}", "scale them to 0..255")
  if high == 1:
    refuse(
      "holds no integer above 1", "give booleans or floats if 1 means white"
    )
  return images.astype(np.uint8, copy=False)


def _labels(
  path: pathlib.Path | str, key: str, arrays: Mapping[str, np.ndarray]
) -> np.ndarray:
  """Integers or words [N], or int32 [N J] of 0 and 1."""
  labels = arrays[key]
  if labels.ndim == 2 and labels.shape[1] == 1:
    labels = labels[:, 0]
  if labels.dtype == object and all(isinstance(x, str) for x in labels.flat):
    labels = labels.astype(str)  # a column of words, as pandas has it
  if labels.dtype.kind in "fu":
    beyond = labels[~np.isnan(labels) & ~(np.abs(labels) < _BEYOND)]
    if len(beyond):
      raise ValueError(
        f"{path}: {key} holds {beyond[0]:g}, which no 64-bit integer can hold; "
        "number the classes from 0 on, or name them by words"
      )
  if labels.dtype.kind == "f" and np.array_equal(labels, np.floor(labels)):
    labels = labels.astype(np.int64)
  if labels.ndim == 1 and labels.dtype.kind in "iuUb":
    return labels.astype(np.int64) if labels.dtype.kind != "U" else labels
  if (
    labels.ndim == 2
    and labels.dtype.kind in "iub"
    and np.isin(labels, (0, 1)).all()
  ):
    return labels.astype(np.int32)
  raise ValueError(
    f"{path}: {key} is an array {list(labels.shape)} of {labels.dtype}; give "
    "one integer or word for each image, or [N J] of 0 and 1"
  )


def _classes(
  path: pathlib.Path | str, labels: list[np.ndarray], names: np.ndarray | None
) -> tuple[list[np.ndarray], tuple[str, ...]]:
  """Returns the labels as numbers, or multi-hot, and the names of classes."""
  if len({(x.ndim, *x.shape[1:]) for x in labels}) > 1:
    raise ValueError(
      f"{path}: labels is {list(labels[0].shape)}, but test_labels is "
      f"{list(labels[1].shape)}; give labels of one kind"
    )
  if labels[0].ndim == 2:
    count = labels[0].shape[1]
    labels = one_label_each(labels)
    given = tuple(map(str, range(count)))
  elif names is not None:
    count = names.size
    wrong = [x for x in labels if x.dtype.kind == "U" or not _within(x, count)]
    if wrong:
      raise ValueError(
        f"{path}: class_names holds {count} names, but not all labels are "
        f"integers in 0..{count - 1}; leave class_names out, or number the "
        "labels in this range"
      )
    labels = [x.astype(np.int32) for x in labels]
  else:
    test = labels[1] if len(labels) > 1 else None
    first, second, given = number_classes(labels[0], test, str(path))
    labels = [first] if second is None else [first, second]
    count = len(given)
  if names is None:
    return labels, given
  if names.shape != (count,) or names.dtype.kind != "U":
    raise ValueError(
      f"{path}: class_names is an array {list(names.shape)} of {names.dtype}; "
      f"give {count} words"
    )
  name, times = collections.Counter(names.tolist()).most_common(1)[0]
  if times > 1:
    raise ValueError(
      f"{path}: class_names holds {name!r} {times} times; give each class a "
      "name of its own"
    )
  return labels, tuple(names.tolist())


def _within(labels: np.ndarray, count: int) -> bool:
  return bool(np.all((labels >= 0) & (labels < count)))
