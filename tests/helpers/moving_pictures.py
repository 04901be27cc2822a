"""Saves the images that `gallery.moving` plots, for digits of one dot each.

It runs in a process of its own, by `processes.Running("moving_pictures", PATH,
package="")`. PATH becomes an .npz archive of the rows of images, by label. The
model is a substitute: for a shift by (x, y) it adds x + 10 y to all pixels.
"""

import pathlib
import sys
from types import SimpleNamespace

import numpy as np
from absl import flags

from capjax import data
from experiments import gallery


def main(path):
  flags.FLAGS([sys.argv[0]])
  images = np.zeros((3, 15, 15, 1), np.uint8)
  images[2, 5, 7] = images[1, 9, 6] = 255
  test = data.Dataset(images, np.arange(3), 3, {})
  gallery.data = SimpleNamespace(
    load=lambda *arguments: test, as_intensities=data.as_intensities
  )

  def model(images, shifts):
    return images + (shifts @ np.float32([1, 10]))[:, None, None, None]

  gallery.pretrained = SimpleNamespace(
    load=lambda name: SimpleNamespace(model=model)
  )
  gallery.concepts = SimpleNamespace(
    strips=lambda rows, path, **options: np.savez(path, **rows)
  )
  gallery.moving(pathlib.Path(path))


if __name__ == "__main__":
  main(sys.argv[1])
