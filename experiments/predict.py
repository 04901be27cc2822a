r"""Predicts the classes of image files by a trained model, into a CSV file.

  capjax predict --model=runs/mnist --out=classes.csv *.png
  capjax predict --model=digits digit.png   # prints the table

A row has the file, the class with the highest score, and the score of each
class; for models that know no classes, their presences, poses or latents. Files
are converted to the channels and resized to the size that the model takes,
without keeping the ratio of their sides.
"""

import csv
import io
import pathlib
import sys
from collections.abc import Iterator, Sequence

import numpy as np
from absl import flags

from capjax import pretrained, saved
from capjax.data import conversion
from capjax.data.conversion import Conversion
from capjax.data.sources import image_folder

from .flags import errors, limits
from .run import atomic_files

_MODEL = flags.DEFINE_string(
  "model",
  None,
  "Folder of a finished run, a file of weights, or the name of a pretrained "
  "model.",
)
_OUT = flags.DEFINE_string(
  "out", None, "CSV file to write; without it the table is printed."
)
_INVERT = flags.DEFINE_bool(
  "invert",
  False,
  "Invert intensities: for dark objects on a light background, since MNIST "
  "and its like are light on dark.",
)
_CHANNELS = (1, 3)  # grey or RGB
_AT_A_TIME = 1024  # files in memory


class FileError(ValueError):
  """A file that holds no image that can be read."""


def read_image(
  path: str, image_shape: Sequence[int], *, invert: bool = False
) -> tuple[np.ndarray, tuple[int, int]]:
  """Reads an image file as training does, and resizes it for a model.

  Args:
    path: an image file of a format that Pillow reads.
    image_shape: height, width and channels, 1 for grey or 3 for RGB.
    invert: whether intensities are inverted.

  Returns:
    uint8 [H W C], and the (height, width) in the file.

  Raises:
    FileError: if it cannot be read.
  """
  *sides, channels = image_shape
  try:
    pixels = image_folder.read_file(
      pathlib.Path(path),
      coloured=channels == 3,
      conversion=Conversion(),
      may_be_black=False,
    )
  except IsADirectoryError as error:
    files = f"{path.rstrip('/')}/*"
    raise FileError(
      f"{path}: is a folder; give its files, as {files}"
    ) from error
  except FileNotFoundError as error:
    raise FileError(f"{path}: does not exist") from error
  except Exception as error:  # Pillow's readers raise errors of many kinds
    fault = image_folder.fault_of(error, pathlib.Path(path))
    raise FileError(f"{path}: {fault}") from error
  image = conversion.convert(pixels, Conversion(image_size=tuple(sides)))
  return (255 - image if invert else image), pixels.shape[:2]


def header(trained: saved.TrainedModel) -> list[str]:
  """The names of the columns."""
  height, width, channels = trained.card["image_shape"]
  blank = np.zeros((1, height, width, channels), np.uint8)
  found = trained.predict(blank)
  if found.classes is None:
    return ["file", *(name for name, _ in _numbers(found))]
  count = trained.card["num_labels"]
  classes = ["classes"] if count is None else ["class"]
  if count and count > 1:
    classes = [f"class_{n}" for n in range(1, count + 1)]
  scores = [f"{found.kind}_{name}" for name in trained.class_names]
  return ["file", *classes, *scores]


def rows(
  trained: saved.TrainedModel, paths: Sequence[str], images: np.ndarray
) -> Iterator[list[object]]:
  """The row of each image; see `header`."""
  found = trained.predict(images)
  names = np.array(trained.class_names)
  for number, path in enumerate(paths):
    if found.classes is None:
      yield [path, *(f"{x[number]:.6g}" for _, x in _numbers(found))]
      continue
    classes = np.atleast_1d(names[found.classes[number]])
    if trained.card["num_labels"] is None:  # all in one column
      classes = [";".join(classes)]
    yield [path, *classes, *(f"{x:.6g}" for x in found.scores[number])]


# Outputs whose numbers are those of pixels.
_PICTURES = ("masks", "reconstructions")


def _numbers(found) -> Iterator[tuple[str, np.ndarray]]:
  """Every number of each example by name, without images and masks.

  Numbers of capsules or slots, [N J D] or [N J P Q], are named by all indices.
  """
  for name, values in found.outputs.items():
    if name not in _PICTURES:
      for place in np.ndindex(values.shape[1:]):
        yield "_".join([name, *map(str, place)]), values[:, *place]


def main(paths: list[str]) -> None:
  with errors.clear_errors():
    if not paths:
      raise ValueError("no image is given; name files after the flags")
    if _OUT.value:
      limits.require_folder("out", _OUT.value)
    trained = pretrained.load_any(_MODEL.value)
    shape = trained.card["image_shape"]
    if shape[2] not in _CHANNELS:
      raise ValueError(
        f"{_MODEL.value} takes images of {shape[2]} channels, which image "
        "files do not have; call its predict on arrays"
      )
    conversion.pillow()  # raises if it is not installed
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(header(trained))
    faults = []
    for start in range(0, len(paths), _AT_A_TIME):
      read, images = [], []
      for path in paths[start : start + _AT_A_TIME]:
        try:
          image, size = read_image(path, shape, invert=_INVERT.value)
        except FileError as error:
          faults.append(str(error))
          continue
        if size != tuple(shape[:2]):
          print(
            f"{path}: {size[0]}x{size[1]} was resized to {shape[0]}x{shape[1]}",
            file=sys.stderr,
          )
        read.append(path)
        images.append(image)
      if images:
        writer.writerows(rows(trained, read, np.stack(images)))
    if len(faults) == len(paths):
      print("no image was read; nothing is written", file=sys.stderr)
    elif _OUT.value:
      path = pathlib.Path(_OUT.value).expanduser()
      atomic_files.write_whole(path, table.getvalue())
      count = len(paths) - len(faults)
      print(f"wrote {path}, rows of images: {count}", file=sys.stderr)
    else:
      print(table.getvalue(), end="")
    for fault in faults:
      print(f"not read: {fault}", file=sys.stderr)
  if faults:
    sys.exit(1)


if __name__ == "__main__":
  flags.register_validator(
    "model", bool, "give a run, a file of weights or a name, as --model=NAME"
  )
  limits.run_on_words(main)
