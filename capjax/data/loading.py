"""Image data sets by name, whole and in memory."""

import os
import pathlib
from typing import NamedTuple

import numpy as np

from capjax.data.dataset import Dataset
from capjax.data.sources import digits, idx, smallnorb, tfds

_SPLITS = ("train", "test")


class _Spec(NamedTuple):
  shape: tuple[int, int, int]
  num_classes: int
  idx_url: str | None = None


_SPECS = {
  "digits": _Spec((8, 8, 1), 10),
  "mnist": _Spec(
    (28, 28, 1), 10, "https://storage.googleapis.com/cvdf-datasets/mnist"
  ),
  "fashion_mnist": _Spec(
    (28, 28, 1),
    10,
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
  ),
  "cifar10": _Spec((32, 32, 3), 10),
  "svhn_cropped": _Spec((32, 32, 3), 10),
  "smallnorb": _Spec((96, 96, 2), 5),
  "viewpoint_solids": _Spec((48, 48, 2), 5),
  "constellations": _Spec((1, 1, 1), 2),
}
NAMES = tuple(_SPECS)


def load(
  name: str, split: str, data_dir: str | os.PathLike[str] | None = None
) -> Dataset:
  """Loads one split of a data set.

  `digits` comes with scikit-learn: 1797 images of 8x8, its 0..16 rescaled to
  0..255. Sorted by class (stably), every fifth image is a test image: 360, the
  other 1437 train; both keep the original order.

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
    name: One of `NAMES`.
    split: "train" or "test".
    data_dir: The folder of all data sets, which must exist. By default that of
      TensorFlow Datasets: $TFDS_DATA_DIR, else `~/tensorflow_datasets`.

  Returns:
    The split, in the order of its source.

  Raises:
    FileNotFoundError: Data is missing, in whole or in part; the message says
      where it was searched for and what to do.
    ValueError: The arguments or the files are wrong; the message says which.
  """
  if name not in _SPECS:
    raise ValueError(f"unknown data set {name!r}; known are {', '.join(NAMES)}")
  if split not in _SPLITS:
    raise ValueError(f"unknown split {split!r}; use {' or '.join(_SPLITS)}")
  if name == "digits":
    return digits.load(split)
  if name == "constellations":
    # Imported here, as the next, because it needs what is defined above.
    from capjax.data.sources import constellations

    return constellations.load(split)
  if name == "viewpoint_solids":
    # Imported here because it needs what is defined above, and JAX.
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
    factors = {}
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
    "Do one of these, in the folder of this repository and with a network:",
    "  pip install '.[data]' tensorflow-cpu   # then run this again",
  ]
  url = _SPECS[name].idx_url
  if url:
    lines.append(
      f"  curl -fLO --create-dirs --output-dir '{folder}' "
      f"'{url}/{{train,t10k}}-{{images-idx3,labels-idx1}}-ubyte.gz'"
    )
  else:
    lines.append(f"  write IDX files of the names above into {folder}")
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
