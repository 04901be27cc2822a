"""A figure of properties of routings, seed by seed.

As in `grids`: the function makes the folder of its `path` and returns it.
"""

import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from .grids import RED, bare, new_sheet, save


def properties(
  columns: Mapping[str, Mapping[str, Sequence[float]]],
  path: str | os.PathLike,
) -> pathlib.Path:
  """Plots a dot for each seed, a panel for each property, a row for each name.

  A line marks the mean. The names are sorted by the first property, the lowest
  at the top.

  Args:
    columns: by property, with its unit, and by name, a value for each seed. A
      name without values has no dots in that panel.
    path: file to write.

  Raises:
    ValueError: if the first property has no values.
  """
  first = next(iter(columns.values()), {})
  names = sorted(
    (name for name in first if len(first[name])),
    key=lambda name: -np.mean(first[name]),
  )
  if not names:
    raise ValueError("there are no values to plot; give some for each name.")
  sheet = new_sheet((1.55 * len(columns) + 1.2, 0.27 * len(names) + 0.9))
  grid = sheet.subplots(1, len(columns), squeeze=False, sharey=True)[0]
  for place, (heading, found) in zip(grid, columns.items(), strict=True):
    for row, name in enumerate(names):
      values = found.get(name, ())
      if len(values):
        place.plot(values, [row] * len(values), "o", color="C0", alpha=0.6,
                   markersize=4)  # fmt: skip
        place.vlines(np.mean(values), row - 0.3, row + 0.3, color=RED, zorder=3)
    place.set_title(heading, fontsize=7.5)
    place.tick_params(labelsize=7)
    bare(place)
  grid[0].set_yticks(range(len(names)), names, fontsize=7.5)
  return save(sheet, path)
