"""Flags that name the data."""

import contextlib
import pathlib
import sys
from collections.abc import Iterator

from absl import flags

from capjax import data
from capjax.kernels import checks

from . import limits, presets

DATASET = flags.DEFINE_string(
  "dataset",
  "digits",
  f"Data set: one of {', '.join(data.NAMES)}; tfds:NAME[/CONFIG], an image "
  "classification set of TensorFlow Datasets; or the path of a folder of "
  "train/CLASS/* and test/CLASS/*, or of CLASS/*, of an .npz archive of images "
  "and labels, or of IDX or ArrayRecord files. For models that learn without "
  "labels also of a folder of images, or of an archive of images alone.",
)
DATA_DIR = flags.DEFINE_string(
  "data_dir",
  None,
  "Folder that holds one folder for each data set; a relative path as "
  "--dataset is looked for in it too.",
)
_IMAGE_SIZE = flags.DEFINE_list(
  "image_size",
  None,
  "Height and width to which all images are resized, as 32 or 37,23; by "
  "default they keep their size.",
)
_GRAYSCALE = flags.DEFINE_bool(
  "grayscale", False, "Turn colours into intensities of grey."
)
_STREAM = flags.DEFINE_bool(
  "stream",
  None,
  "Read images from their files while training, instead of holding all in "
  "memory; by default where they do not fit. The numbers are the same.",
)
limits.require_counts(_IMAGE_SIZE, example="32 or 37,23", at_most=2)


def load(
  split: str, name: str | None = None, stream: bool | None = None
) -> data.Dataset:
  """The `train` or `test` set that the flags name, or that of another name.

  Args:
    split: "train" or "test".
    name: of another data set.
    stream: whether images stay in their files; None as --stream says.
  """
  size = _IMAGE_SIZE.value and [int(side) for side in _IMAGE_SIZE.value]
  return data.load(
    name or DATASET.value,
    split,
    DATA_DIR.value,
    image_size=size and (size[0], size[-1]),
    grayscale=_GRAYSCALE.value,
    stream=_STREAM.value if stream is None else stream,
  )


def place() -> tuple[str, pathlib.Path | None]:
  """The name of the data set and, if it has one, the folder that holds it."""
  return data.split_path(DATASET.value, DATA_DIR.value)


@contextlib.contextmanager
def naming_the_default() -> Iterator[None]:
  """Adds to an error about images that --dataset has its default value."""
  try:
    yield
  except checks.ImageShapeError as error:
    if DATASET.present:
      raise
    name = presets.quick(pathlib.Path(sys.argv[0]).stem)
    raise checks.ImageShapeError(
      f"{error} (--dataset is {DATASET.value} by default, for which "
      f"--preset={name or 'NAME'} has settings; flags after it replace its own)"
    ) from error
