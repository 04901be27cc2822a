"""Figures of generative capsules; the conventions are those of `grids`."""

import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from etils import epy
from numpy.typing import ArrayLike

from . import energy_models, grids

with epy.lazy_imports():  # these take seconds, and --help needs none
  import matplotlib


def coded(
  shares: ArrayLike, angles: Sequence[float], path: str | os.PathLike
) -> pathlib.Path:
  """Plots images in the colours of their parts, an image in each row.

  Args:
    shares: [N H W I], the contribution of each part to the pixels: for all rows
      of the first column, then for the second.
    angles: [columns], in degrees, by which the images of a column are rotated.
    path: file to write.
  """
  shares = np.asarray(shares)
  count, columns = shares.shape[-1], len(angles)
  hues = matplotlib.colormaps["hsv"](np.arange(count) / count)[:, :3]
  images = np.clip(shares @ hues, 0, 1)
  images = images.reshape(columns, -1, *images.shape[1:]).swapaxes(0, 1)
  images = images.reshape(-1, *images.shape[2:])
  rows = len(images) // columns
  return energy_models.tiles(
    images,
    path,
    columns=columns,
    title=f"test images rotated further in each column; a hue for each of "
    f"{count} parts, by their share of a pixel",
    row_labels=[f"image {n + 1}" for n in range(rows)],
    column_labels=[f"{angle:g}°" for angle in angles],
  )


def climbs(
  objectives: Mapping[str, Sequence[float]],
  seconds: Mapping[str, float],
  path: str | os.PathLike,
) -> pathlib.Path:
  """Plots objectives against steps, and against the seconds that they took.

  Args:
    objectives: before each step, in nats, by the optimiser's name.
    seconds: the time of all steps, by the optimiser's name.
    path: file to write.
  """
  sheet = grids.new_sheet((7.5, 3.2))
  by_steps, by_seconds = sheet.subplots(1, 2, sharey=True)
  for name, values in objectives.items():
    steps = np.arange(len(values))
    by_steps.plot(steps, values, label=name)
    by_seconds.plot(steps * seconds[name] / len(values), values, label=name)
  by_steps.set(xlabel="steps", ylabel="objective (nats)")
  by_seconds.set(xlabel="seconds")
  by_steps.legend(frameon=False)
  return grids.save(sheet, path)
