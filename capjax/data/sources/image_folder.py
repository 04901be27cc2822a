"""Folders of image files, one folder for each class.

Either `train/CLASS/*` and `test/CLASS/*`, or `CLASS/*`. Images without labels
lie in one folder, or in `train/*` and `test/*`. Files are read by Pillow.
Transparent pixels become white. Palettes become grey or colour. Grey of 16 bits
is rounded to 8; for colours Pillow reads the upper 8 bits. Photographs (JPEG,
TIFF) are turned as their orientation tag says. If any image is coloured, all
have three channels, otherwise one. Only the first picture of an animation is
read. Hidden files and folders are skipped.
"""

import collections
import concurrent.futures
import functools
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from capjax.data import conversion as converting
from capjax.data.conversion import Conversion
from capjax.data.sources.source import Part, Source, no_labels

LAYOUT = "train/CLASS/* and test/CLASS/*, or CLASS/*"
_UNLABELLED = "images without labels in train and test, or in the folder itself"
_PARTS = {
  "train": ("train", "training"),
  "test": ("test", "testing"),
  "validation": ("val", "valid", "validation"),
}
_NO_IMAGES = {"thumbs.db", "desktop.ini"}  # written by file managers
_GREY = {"1", "L", "LA", "La", "I"}  # and all that start with "I;16"
_FLOATS = "its pixels are floating-point numbers, not integers"
_TRANSPARENT = {"LA", "La", "PA", "RGBA", "RGBa"}
_ORIENTATION, _TURNED = 0x0112, 5  # EXIF: from 5 on width and height change
_NUM_THREADS = 8
_VISIBLE = 256  # least intensity of 16 bits that is not black in 8
_SHOWN = 3  # files that an error message names


class _Header(NamedTuple):
  """The properties of an image file that are checked before all are read."""

  size: tuple[int, int]  # height, width
  coloured: bool
  transparent: bool
  deep: bool  # more than 8 bits
  largest: int  # intensity of a deep image


class _Layout(NamedTuple):
  """The folders of the parts of a data set, and notes for the user."""

  parts: dict[str, pathlib.Path]
  is_labelled: bool  # whether parts hold folders of classes
  notes: list[str]


def open_folder(root: pathlib.Path, conversion: Conversion) -> Source:
  """Lists the images of a folder and reads the header of each file.

  Images with a palette or with 16 bits are decoded, for their colours and their
  largest intensity.

  Args:
    root: The folder that holds `train` (or `training`) and `test` (`testing`,
      or else `val`, `valid`, `validation`), each with a folder for each class;
      or the folder that holds the folders of the classes. Without folders of
      classes the images have no labels.
    conversion: How every image is converted.

  Returns:
    The data set; without test images where the folder has none. Its classes are
    the names of the folders of training, sorted by code points.

  Raises:
    FileNotFoundError: The folder has no images, or only some of the parts.
    ValueError: A file is no image, images differ in size, or a test class is
      not in training; the message names files and the remedy.
  """
  parts, is_labelled, notes = _layout(root)
  contents = _classes if is_labelled else _without_classes
  train = contents(parts["train"])
  test = contents(parts["test"]) if "test" in parts else None
  if test is None and "validation" in parts:
    test = contents(parts["validation"])
    notes.append(
      f"{parts['validation'].name} is the test set, since there is no test"
    )
  elif "validation" in parts:
    notes.append(
      f"{parts['validation'].name} is not used; --num_validation keeps "
      "training images for validation"
    )
  unknown = sorted((test or {}).keys() - train.keys())
  if unknown:
    raise ValueError(
      f"{root}: the test images have a class {unknown[0]!r}, which the "
      "training images do not have; add training images of it, or leave it out"
    )
  listed = [_listed(tuple(train), some) for some in (train, test or {})]
  headers = _each(_header, [path for paths, _ in listed for path in paths])
  coloured = any(x.coloured for x in headers.values())
  if conversion.image_size is None:
    _check_sizes(root, headers)
  for count, what in (
    (sum(x.transparent for x in headers.values()), "of a kind with "
     "transparency: transparent pixels become white"),
    (sum(x.deep for x in headers.values()), "of 16 bits, rounded to 8"
     + _check_depth(root, headers)),
    (coloured and not conversion.grayscale
     and sum(not x.coloured for x in headers.values()),
     "grey, and read as colour like the others"),
  ):  # fmt: skip
    if count:
      notes.append(f"{count} of {len(headers)} images are {what}")
  read = functools.partial(
    read_file,
    coloured=coloured and not conversion.grayscale,
    conversion=conversion,
  )
  first, second = (
    Part(
      labels if is_labelled else no_labels(len(paths)),
      functools.partial(_read_all, paths, read),
    )
    for paths, labels in listed
  )
  names = tuple(train) if is_labelled else ()
  return Source(first, second if test else None, names, tuple(notes))


def _named(root: pathlib.Path) -> dict[str, pathlib.Path]:
  """Finds the folders whose names are those of parts, such as `train`."""
  folders = {path.name.lower(): path for path in _visible(root, folders=True)}
  found = {
    part: next((folders[name] for name in names if name in folders), None)
    for part, names in _PARTS.items()
  }
  return {part: path for part, path in found.items() if path}


def _layout(root: pathlib.Path) -> _Layout:
  """Finds the parts of a data set.

  The root itself is the training part if it holds the classes, or only files.
  """
  folders, named = _visible(root, folders=True), _named(root)
  # A class may have such a name, but then it holds files.
  deep = {x: path for x, path in named.items() if _visible(path, folders=True)}
  if "train" in deep:
    notes = [
      f"{path.name} is not used, since it has no folders of classes"
      for part, path in named.items()
      if part not in deep
    ]
    return _Layout(deep, True, notes + _notes_beside(root, named))
  if deep:
    beside = ", ".join(sorted(path.name for path in deep.values()))
    raise FileNotFoundError(
      f"{root}: no folder train with classes beside {beside}; add it, as "
      f"{LAYOUT}"
    )
  of_parts = {name for names in _PARTS.values() for name in names}
  others = [x for x in folders if x.name.lower() not in of_parts]
  if "train" in named and not others:
    return _Layout(named, False, _notes_beside(root, named))
  if named and not others:
    beside = ", ".join(sorted(path.name for path in named.values()))
    raise FileNotFoundError(f"{root}: no folder train beside {beside}; add it")
  if "train" in named and len(named) > 1:
    names = " and ".join(sorted(path.name for path in named.values()))
    note = f"{names} are read as classes, since {others[0].name} is beside them"
    return _Layout({"train": root}, True, [note, *_notes_on_files(root)])
  if not folders and not _visible(root, folders=False):
    raise FileNotFoundError(
      f"{root}: holds no images; give a folder of {LAYOUT}, or of {_UNLABELLED}"
    )
  notes = _notes_on_files(root) if folders else []
  return _Layout({"train": root}, bool(folders), notes)


def _notes_beside(
  root: pathlib.Path, named: dict[str, pathlib.Path]
) -> list[str]:
  """Notes on folders and files next to the parts, which are not used."""
  notes = []
  of_parts = {name for names in _PARTS.values() for name in names}
  for path in sorted({*_visible(root, folders=True)} - {*named.values()}):
    reason = (
      "another folder is the same part"
      if path.name.lower() in of_parts
      else f"its name is none of {', '.join(sorted(of_parts))}"
    )
    notes.append(f"{path.name} is not used, since {reason}")
  return notes + _notes_on_files(root)


def _notes_on_files(root: pathlib.Path) -> list[str]:
  """A note on how many files next to folders are not used."""
  files = _visible(root, folders=False)
  note = f"files beside the folders are not used: {len(files)}"
  return [note] if files else []


def _without_classes(folder: pathlib.Path) -> dict[str, list[pathlib.Path]]:
  """The images of a folder, in the form of `_classes`."""
  paths = _visible(folder, folders=False)
  if not paths:
    raise FileNotFoundError(
      f"{folder}: holds no images; add some, or remove the folder"
    )
  return {"": paths}


def _classes(folder: pathlib.Path) -> dict[str, list[pathlib.Path]]:
  """The images of each class."""
  classes = {}
  for path in _visible(folder, folders=True):
    inner = _visible(path, folders=True)
    if inner:
      raise ValueError(
        f"{path}: is a class, but holds the folder {inner[0].name}; give the "
        f"folder of {LAYOUT}, and classes without folders"
      )
    classes[path.name] = _visible(path, folders=False)
    if not classes[path.name]:
      raise FileNotFoundError(
        f"{path}: holds no images; add some, or remove this class"
      )
  if not classes:
    raise FileNotFoundError(
      f"{folder}: holds no folders of classes; give a folder of {LAYOUT}"
    )
  return classes


def _visible(folder: pathlib.Path, *, folders: bool) -> list[pathlib.Path]:
  """The visible folders in a folder, or the visible files, by name."""
  return sorted(
    path
    for path in folder.iterdir()
    if path.is_dir() == folders
    and not path.name.startswith((".", "__MACOSX"))
    and path.name.lower() not in _NO_IMAGES
  )


def _listed(
  names: Sequence[str], classes: dict[str, list[pathlib.Path]]
) -> tuple[list[pathlib.Path], np.ndarray]:
  """All files, class by class, and the number of the class of each."""
  pairs = [
    (path, number)
    for number, name in enumerate(names)
    for path in classes.get(name, ())
  ]
  return [path for path, _ in pairs], np.array([n for _, n in pairs], np.int32)


def fault_of(error: Exception, path: pathlib.Path) -> str:
  """Says in one line why a file was not read, without its path.

  Args:
    error: What was raised while the file was read.
    path: The file.
  """
  if isinstance(error, converting.pillow().UnidentifiedImageError):
    return "is no image that Pillow reads"
  return " ".join(str(error).replace(repr(str(path)), "").split())


def _each(
  function: Callable[[pathlib.Path], Any], paths: Iterable[pathlib.Path]
) -> dict[pathlib.Path, Any]:
  """Applies a function to each file; returns the results by file.

  Raises:
    ValueError: The function raised an error; the message names the files.
  """

  def attempt(path):
    try:
      return function(path), None
    # Pillow's readers raise errors of many kinds.
    except Exception as error:
      return None, fault_of(error, path)

  paths = list(paths)
  with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
    results = list(pool.map(attempt, paths))
  faults = [
    f"{path} ({fault})"
    for path, (_, fault) in zip(paths, results, strict=True)
    if fault is not None
  ]
  if faults:
    more = f" and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
    raise ValueError(
      f"no image can be read from {', '.join(faults[:_SHOWN])}{more}; replace "
      "or remove such files"
    )
  return {p: result for p, (result, _) in zip(paths, results, strict=True)}


def _header(path: pathlib.Path) -> _Header:
  # Opened as a file: by path, Pillow maps TIFF into memory in the turned size.
  with path.open("rb") as file, converting.pillow().open(file) as image:
    width, height = image.size
    if _may_be_turned(image):
      if image.getexif().get(_ORIENTATION, 1) >= _TURNED:
        width, height = height, width
    deep = image.mode.startswith("I")
    largest = int(np.max(np.asarray(image))) if deep else 0
    if image.mode == "F":
      raise ValueError(_FLOATS)
    transparent = image.mode in _TRANSPARENT or "transparency" in image.info
    coloured = image.mode not in _GREY and not deep
    if image.mode in ("P", "PA"):
      red, green, blue = np.moveaxis(np.asarray(image.convert("RGB")), -1, 0)
      coloured = not ((red == green).all() and (green == blue).all())
  return _Header((height, width), coloured, transparent, deep, largest)


def _may_be_turned(image) -> bool:
  """Whether an open image can have a tag of its orientation.

  Other formats, and PNG with the tag after the pixels, would have to be decoded
  to find it. Pillow itself turns TIFF.
  """
  if image.format == "PNG":
    return "exif" in image.info
  return image.format in ("JPEG", "MPO", "WEBP")


def _check_depth(
  root: pathlib.Path, headers: dict[pathlib.Path, _Header]
) -> str:
  """Returns a note if images of 16 bits are dark or black; empty if not.

  Raises:
    ValueError: if all would be black.
  """
  largest = max((x.largest for x in headers.values()), default=0)
  if 0 < largest < _VISIBLE:
    raise ValueError(
      f"{root}: images of 16 bits hold at most {largest}, and would be black; "
      "save them with 8 bits"
    )
  if 0 < largest < 2**12:
    return f" (the largest intensity is {largest} of 65535, so they are dark)"
  black = sum(0 < x.largest < _VISIBLE for x in headers.values())
  if black:
    return f" ({black} hold at most 255 of 65535, and become black)"
  return ""


def _check_sizes(
  root: pathlib.Path, headers: dict[pathlib.Path, _Header]
) -> None:
  counts = collections.Counter(x.size for x in headers.values())
  if len(counts) < 2:
    return
  (common, _), *_ = counts.most_common()
  usual = next(path for path, x in headers.items() if x.size == common)
  other = next(path for path, x in headers.items() if x.size != common)
  one, two = (
    f"{path.relative_to(root)} is {'x'.join(map(str, headers[path].size))}"
    for path in (usual, other)
  )
  raise ValueError(
    f"{root}: images differ in size: {one}, {two} (height x width); give "
    f"image_size (--image_size={common[0]},{common[1]} or another) to resize "
    "all"
  )


def _read_all(
  paths: Sequence[pathlib.Path],
  read: Callable[[pathlib.Path], np.ndarray],
  rows: np.ndarray,
) -> np.ndarray:
  wanted = [paths[row] for row in rows]
  numbers = {path: n for n, path in enumerate(wanted)}
  first = _each(read, wanted[:1])
  shape = next(iter(first.values())).shape
  images = np.empty((len(wanted), *shape), np.uint8)

  def fill(path):
    images[numbers[path]] = read(path)

  _each(fill, wanted)
  return images


def read_file(
  path: pathlib.Path,
  *,
  coloured: bool,
  conversion: Conversion,
  may_be_black: bool = True,
) -> np.ndarray:
  """Reads one image file, as images of folders are read.

  Grey of 16 bits is divided by 257; transparent pixels become white.

  Args:
    path: A file of a format that Pillow reads.
    coloured: Whether the image gets 3 channels; otherwise 1.
    conversion: How it is converted.
    may_be_black: Whether an image of 16 bits whose intensities would all become
      0 is read; folders are checked as a whole.

  Returns:
    uint8 [H W C].

  Raises:
    Exception: Pillow cannot read the file; its readers raise errors of many
      kinds.
  """
  module = converting.pillow()
  from PIL import ImageOps

  # Opened as a file, as in `_header`.
  with path.open("rb") as file, module.open(file) as image:
    if _may_be_turned(image):
      image = ImageOps.exif_transpose(image)
    if image.mode == "F":
      raise ValueError(_FLOATS)
    if image.mode.startswith("I"):
      pixels = np.asarray(image).astype(np.int64)
      if pixels.min() < 0 or pixels.max() >= 2**16:
        raise ValueError("its pixels are not in 0..65535")
      if not may_be_black and 0 < pixels.max() < _VISIBLE:
        raise ValueError(
          f"its pixels of 16 bits are at most {pixels.max()} of 65535, and "
          "would be black; save it with 8 bits"
        )
      if "transparency" in image.info:  # of the pixels of one intensity
        pixels = np.where(pixels == image.info["transparency"], 65535, pixels)
      image = module.fromarray(((pixels + 128) // 257).astype(np.uint8))
    if image.mode in _TRANSPARENT or "transparency" in image.info:
      layers = image.convert("RGBA")
      white = module.new("RGBA", image.size, "white")
      image = module.alpha_composite(white, layers)
    pixels = np.asarray(image.convert("RGB" if coloured else "L"))
  return converting.convert(pixels.reshape(*pixels.shape[:2], -1), conversion)
