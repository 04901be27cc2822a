"""Figures of generative capsules; the conventions are those of `grids`."""

import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from numpy.typing import ArrayLike

from . import energy_models, grids


def coded(
  shares: ArrayLike, columns: int, path: str | os.PathLike
) -> pathlib.Path:
  """Plots images in the colours of their parts, an image in each row.

  Args:
    shares: [columns N H W I], the contribution of each part to the pixels: for
      all rows of the first column, then for the second.
    columns: number of columns of the figure.
    path: file to write.
  """
  shares = np.asarray(shares)
  count = shares.shape[-1]
  hues = colormaps["hsv"](np.arange(count) / count)[:, :3]
  images = np.clip(shares @ hues, 0, 1)
  images = images.reshape(columns, -1, *images.shape[1:]).swapaxes(0, 1)
  images = images.reshape(-1, *images.shape[2:])
  return energy_models.tiles(images, path, columns=columns)


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
