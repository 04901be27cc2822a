r"""Writes a data set as ArrayRecord files, which training can read in batches.

  capjax write_records --dataset=mnist --data_dir=DIR --out=FOLDER

Afterwards --dataset=FOLDER trains on it. --image_size and --grayscale convert
the images once, here. Data that do not fit into memory are read and written in
parts. To write data from your own program, call `capjax.data.write_records`.
Factors of variation, such as viewpoints, are not written.
"""

from collections.abc import Iterator

import numpy as np
from absl import flags

from capjax import data

from .flags import datasets, errors, limits

_OUT = flags.DEFINE_string("out", None, "Folder to write the files to.")


def blocks(dataset: data.Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """The images and labels of a data set, some at a time, in its order."""
  start = 0
  for images in dataset.images.blocks():
    yield images, dataset.labels[start : start + len(images)]
    start += len(images)


def main() -> None:
  with errors.clear_errors():
    if not _OUT.value:
      raise ValueError("give the folder to write to as --out=FOLDER")
    train, test = (
      datasets.load(split, stream=True) for split in ("train", "test")
    )
    if train.factors:
      print(
        f"warning: {', '.join(train.factors)} are not written; without them "
        "there is no --viewpoints, and stereo pairs are trained on as other "
        "images, neither reduced nor cropped"
      )
    data.write_records(
      _OUT.value, blocks(train), blocks(test), class_names=train.class_names
    )
    print(
      f"wrote {len(train.labels):,} images to train on and "
      f"{len(test.labels):,} to test to {_OUT.value}"
    )


if __name__ == "__main__":
  # Not --stream: no data are held in memory.
  limits.run(main, shared=["dataset", "data_dir", "image_size", "grayscale"])
