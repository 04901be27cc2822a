"""Image data sets by name or path."""

import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

from capjax.data import conversion as converting
from capjax.data import fetching, own
from capjax.data.conversion import Conversion
from capjax.data.dataset import Dataset
from capjax.data.sources import digits, font_letters, idx, smallnorb, tfds
from capjax.kernels import checks

_SPLITS = ("train", "test")
_MAX_SIDE = 10_000  # pixels, the largest side to which images are resized


_DIGITS = tuple("0123456789")
_CLOTHES = (
  "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt",
  "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_OBJECTS = (
  "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse",
  "ship", "truck",
)  # fmt: skip
_TOYS = ("animal", "human", "airplane", "truck", "car")


class _Spec(NamedTuple):
  shape: tuple[int, int, int]
  class_names: tuple[str, ...]

  @property
  def num_classes(self) -> int:
    return len(self.class_names)


_SPECS = {
  "digits": _Spec((8, 8, 1), _DIGITS),
  "mnist": _Spec((28, 28, 1), _DIGITS),
  "fashion_mnist": _Spec((28, 28, 1), _CLOTHES),
  "font_letters": _Spec(font_letters.SHAPE, tuple(font_letters.LETTERS)),
  "cifar10": _Spec((32, 32, 3), _OBJECTS),
  "svhn_cropped": _Spec((32, 32, 3), _DIGITS),
  "smallnorb": _Spec((96, 96, 2), _TOYS),
  "viewpoint_solids": _Spec((48, 48, 2), _TOYS),
  "constellations": _Spec((1, 1, 1), ("square", "triangle")),
}
NAMES = tuple(_SPECS)


def load(
  name: str | os.PathLike[str],
  split: str,
  data_dir: str | os.PathLike[str] | None = None,
  *,
  image_size: int | tuple[int, int] | None = None,
  grayscale: bool = False,
  stream: bool | None = False,
) -> Dataset:
  """Loads one split of a data set.

  A name that is none of `NAMES` is a path, or `tfds:NAME[/CONFIG]` for an image
  classification set of TensorFlow Datasets: see `own.load`. The examples of
  both are in a seeded order. A path names one of these: a folder of images
  (`train/CLASS/*` and `test/CLASS/*`, or `CLASS/*`, or images without labels;
  see `image_folder`), an `.npz` archive (see `npz`), IDX files of any shape, a
  folder that `write_records` wrote, or a prepared folder of TensorFlow
  Datasets.

  `digits` comes with scikit-learn: 1797 images of 8x8, with intensities 0..16
  rescaled to 0..255. After a stable sort by class, every fifth image is a test
  image (360); the other 1437 are for training. Both splits keep the original
  order.

  `font_letters` are rendered in seconds from the fonts that Matplotlib ships
  (see `font_letters.load`).

  `constellations` are points, not images, and sampled where they are needed:
  only their numbers are loaded (see `constellations.load`).

  `viewpoint_solids` are rendered (see `solids.generate`), and kept in
  `data_dir/viewpoint_solids` where a `data_dir` is given.

  The others are looked for in turn as
  1. IDX files in `data_dir/name`, uncompressed or `.gz` (uncompressed first):
     `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, and `t10k-` or
     `test-` likewise; `idx4` for [N H W C], which colour and stereo need.
  2. for smallNORB, its official files there, uncompressed or `.gz`.
  3. TensorFlow Datasets prepared in `data_dir` as ArrayRecord files.
  4. TensorFlow Datasets, downloaded and prepared there; needs TensorFlow.

  Args:
    name: One of `NAMES`, a path, or `tfds:NAME[/CONFIG]`.
    split: "train" or "test".
    data_dir: The folder of all data sets, which must exist. By default that of
      TensorFlow Datasets: $TFDS_DATA_DIR, else `~/tensorflow_datasets`. If
      `data_dir` is given, a relative path is looked for in it first, then in
      the working folder.
    image_size: Height and width to which images are resized (see
      `conversion.convert`), or one number for both; by default they keep their
      size.
    grayscale: Whether colours become intensities of grey.
    stream: Whether images stay in their files, as `StoredImages`. Images of
      `NAMES`, of an archive or of IDX files are in the host's memory in any
      case, but then not on the device. None leaves images in files where they
      do not fit: see `memory.shortage`.

  Returns:
    The split; data sets of `NAMES` keep the order of their source.

  Raises:
    FileNotFoundError: Data is missing, in whole or in part; the message says
      where it was searched for and what to do.
    ValueError: The arguments or the files are wrong; the message says which.
  """
  if split not in _SPLITS:
    raise ValueError(f"unknown split {split!r}; use {' or '.join(_SPLITS)}")
  name = os.fspath(name)
  if not name:
    raise ValueError(f"the data set has no name; known are {', '.join(NAMES)}")
  conversion = Conversion(_sides(image_size), grayscale)
  if name.startswith(own.TFDS):
    name, folder = name.removeprefix(own.TFDS), _resolve(data_dir)
    return own.load_prepared(name, folder, split, conversion, stream)
  if name in _SPECS:
    dataset = _load_known(name, split, data_dir)
    images = dataset.images
    if name != "constellations":
      images = converting.convert_all(np.asarray(images), conversion)
    elif conversion != Conversion():
      raise ValueError(
        "constellations are points: leave out image_size and grayscale (the "
        "flags of these names)"
      )
    names = _SPECS[name].class_names
    dataset = dataset._replace(images=images, class_names=names)
    return own.streamed(dataset, split, stream)
  if name.isidentifier() and own.find(name, data_dir) is None:
    inside = "" if data_dir is None else f"in {data_dir} or "
    raise ValueError(
      f"unknown data set {name!r}: none of {', '.join(NAMES)}, and nothing of "
      f"that name is {inside}in the working folder; "
      f"{checks.did_you_mean(name, NAMES)}give a path, "
      f"{own.TFDS}NAME, or the folder that holds {name} as data_dir "
      "(--data_dir)"
    )
  if data_dir is not None:
    data_dir = _resolve(data_dir)  # else a misspelt folder would not be noticed
  return own.load(name, split, data_dir, conversion, stream)


def _sides(image_size: Any) -> tuple[int, int] | None:
  """Converts an image size to height and width; None stays None."""
  if image_size is None:
    return None
  try:
    height, width = np.broadcast_to(image_size, 2).tolist()
  except ValueError:
    height = width = 0
  sides = height, width
  if not all(isinstance(x, int) and 0 < x <= _MAX_SIDE for x in sides):
    raise ValueError(
      f"image_size is {image_size!r}; give one number of pixels, or height and "
      f"width such as (20, 30), each at most {_MAX_SIDE}."
    )
  return height, width


def split_path(
  name: str, data_dir: str | os.PathLike[str] | None = None
) -> tuple[str, pathlib.Path | None]:
  """Splits the name or path of a data set into a name and a folder.

  Args:
    name: As for `load`.
    data_dir: As for `load`.

  Returns:
    A name and a `data_dir` for `load` that lead to the same data from any
    working folder. For data at a path, the name is the last part of the path,
    with `./` before it if it is one of `NAMES`. The folder is None if there is
    no `data_dir` and nothing is found at a path.
  """
  folder = None
  if data_dir is not None:
    folder = pathlib.Path(os.path.abspath(pathlib.Path(data_dir).expanduser()))
  if name in _SPECS or name.startswith(own.TFDS):
    return name, folder
  path = own.find(name, data_dir)
  if path is not None:
    folder = path.parent
  else:  # moved, or never there
    path = pathlib.Path(os.path.abspath(pathlib.Path(name).expanduser()))
  return f"./{path.name}" if path.name in _SPECS else path.name, folder


def _load_known(
  name: str, split: str, data_dir: str | os.PathLike[str] | None
) -> Dataset:
  """Loads a split of one of `NAMES`."""
  if name == "digits":
    return digits.load(split)
  if name == "font_letters":
    return font_letters.load(split)
  if name == "constellations":
    # Imported here, like the next: other data sets do not need these modules.
    from capjax.data.sources import constellations

    return constellations.load(split)
  if name == "viewpoint_solids":
    from capjax.data.viewpoint_solids import solids

    kept_in = None if data_dir is None else _resolve(data_dir) / name
    return solids.load(split, kept_in)
  folder = _resolve(data_dir) / name
  idx_paths = idx.find(folder, split)
  files = smallnorb.find(folder, split) if name == "smallnorb" else None
  if idx_paths:
    images_path, labels_path = idx_paths
    images = idx.read(images_path, "images")
    labels = idx.read(labels_path, "labels").astype(np.int32)
    if images.ndim == 3:
      images = images[..., np.newaxis]
    factors: dict[str, np.ndarray] = {}
  elif files:
    images_path, labels_path, _ = files
    images, labels, factors = smallnorb.read(files)
  else:
    images_path = labels_path = _prepared(name, split, folder)
    images, labels, factors = tfds.read(images_path, split)
  _check(name, images_path, images, labels_path, labels)
  return Dataset(images, labels, _SPECS[name].num_classes, factors)


def _resolve(data_dir: str | os.PathLike[str] | None) -> pathlib.Path:
  if data_dir is None:
    default = os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
    return pathlib.Path(default).expanduser()
  if not os.fspath(data_dir):
    raise ValueError("data_dir is empty; name the folder of all data sets")
  path = pathlib.Path(data_dir).expanduser()
  if not path.is_dir():
    raise FileNotFoundError(
      f"data_dir {path} is not an existing folder; make it, or name the "
      "folder that holds one folder for each data set"
    )
  return path


def _prepared(name: str, split: str, folder: pathlib.Path) -> pathlib.Path:
  """Returns the folder of the TFDS data set, which it prepares if necessary."""
  version = tfds.find(folder)
  if version:
    return version
  try:
    tfds.prepare(name, folder.parent)
  except RuntimeError as error:
    # The cause is in the message; its traceback would not help.
    raise FileNotFoundError(_not_found(name, split, folder, error)) from None
  version = tfds.find(folder)
  if version is None:
    raise FileNotFoundError(
      _not_found(name, split, folder, "nothing was written")
    )
  return version


def _not_found(
  name: str, split: str, folder: pathlib.Path, reason: object
) -> str:
  lines = [
    f"found no {split} split of {name}. Tried:",
    f"  IDX files {folder / idx.pattern(split)}: none there",
    *_official_files(name, split, folder),
    f"  TensorFlow Datasets in {folder / 'VERSION'}: none there",
    f"  download by TensorFlow Datasets: {reason}",
    "If the files are elsewhere, give the folder that holds the folder "
    f"{folder.name} as data_dir (--data_dir). Else do one of these, with a "
    "network:",
  ]
  if name in fetching.SETS:
    lines.append(f"  capjax fetch {name} --data_dir='{folder.parent}'")
  else:
    lines.append(f"  write IDX files of the names above into {folder}")
  lines.append(
    "  pip install '.[data]' tensorflow-cpu   # in the folder of this "
    "repository; then run this again"
  )
  return "\n".join(lines)


def _official_files(name: str, split: str, folder: pathlib.Path) -> list[str]:
  if name != "smallnorb":
    return []
  return [f"  its files {folder / smallnorb.pattern(split)}: none there"]


def _check(
  name: str,
  images_path: pathlib.Path,
  images: np.ndarray,
  labels_path: pathlib.Path,
  labels: np.ndarray,
) -> None:
  spec = _SPECS[name]
  if images.shape[1:] != spec.shape:
    found, expected = (
      "x".join(map(str, shape)) for shape in (images.shape[1:], spec.shape)
    )
    raise ValueError(
      f"{images_path}: images are {found}, but those of {name} are "
      f"{expected}; put the {name} images there"
    )
  if len(images) != len(labels):
    raise ValueError(
      f"{images_path} holds {len(images)} images, but {labels_path} holds "
      f"{len(labels)} labels; fetch both files again"
    )
  if not len(images):
    raise ValueError(f"{images_path}: holds no images; fetch it again")
  wrong = np.flatnonzero((labels < 0) | (labels >= spec.num_classes))
  if wrong.size:
    raise ValueError(
      f"{labels_path}: label {wrong[0]} is {labels[wrong[0]]}, outside the "
      f"0..{spec.num_classes - 1} of {name}; put the {name} labels there"
    )
