"""Figures of constellations; the conventions are those of `grids`."""

import os
import pathlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from . import grids

_COLOURS = np.array(["C0", "C1", "C2", "C4", "C5", "C6", "C8", "C9"])
_OTHER = "black"


def segments(
  points: ArrayLike,
  presence: ArrayLike,
  objects: Mapping[str, ArrayLike],
  path: str | os.PathLike,
) -> pathlib.Path:
  """Plots the points of images, coloured by object, in a row for each method.

  Args:
    points: [N M 2], (x, y) with y down.
    presence: [N M]; points with 0 are not plotted.
    objects: by the name of the method, [N M], the object of each point; those
      below 0 are black.
    path: file to write.
  """
  points, there = np.asarray(points), np.asarray(presence) > 0
  sheet = grids.new_sheet((1.2 * len(points), 1.35 * len(objects)))
  grid = sheet.subplots(len(objects), len(points), squeeze=False)
  reach = 1.05 * max(1.0, np.abs(points[there]).max(initial=0))
  for row, (name, assigned) in zip(grid, objects.items(), strict=True):
    assigned = np.asarray(assigned)
    for n, place in enumerate(row):
      x, y = points[n][there[n]].T
      own = assigned[n][there[n]]
      colours = np.where(own < 0, _OTHER, _COLOURS[own % len(_COLOURS)])
      place.scatter(x, y, s=14, c=colours)
      place.set(
        xticks=[], yticks=[], xlim=(-reach, reach), ylim=(reach, -reach)
      )
      place.set_aspect("equal")
    row[0].set_ylabel(name, fontsize=8)
  return grids.save(sheet, path)
