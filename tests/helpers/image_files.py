"""Folders of small image files."""

import numpy as np
from PIL import Image


def picture(seed, height=6, width=5, mode="L"):
  """A random image."""
  rng = np.random.default_rng(seed)
  shape = (height, width) if mode == "L" else (height, width, len(mode))
  return Image.fromarray(rng.integers(0, 256, shape, np.uint8))


def write(folder, counts, *, suffix="png", first=0, **options):
  """Writes pictures 0, 1, ... of each class, counted by the class's name."""
  seed = first
  for name, count in counts.items():
    (folder / name).mkdir(parents=True)
    for n in range(count):
      picture(seed, **options).save(folder / name / f"{n}.{suffix}")
      seed += 1
  return folder
