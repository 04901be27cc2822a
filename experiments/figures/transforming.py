"""Figures of transforming auto-encoders; conventions are those of `grids`."""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from . import grids

_MOST_POINTS = 2000


class Axis(NamedTuple):
  """Coordinates along one axis, x or y, for N images.

  Attributes:
    name: `x` or `y`.
    truth: the shift of each image in pixels.
    readout: the shift predicted by regression on all capsules.
    own: the coordinate of the best capsule.
    still: its coordinate for the centred images.
    shifted: its coordinate for the same images after a shift.
  """

  name: str
  truth: ArrayLike
  readout: ArrayLike
  own: ArrayLike
  still: ArrayLike
  shifted: ArrayLike


def coordinates(
  axes: Sequence[Axis], distance: int, path: str | os.PathLike
) -> pathlib.Path:
  """Plots coordinates against the true shift, and as in the paper's figure 2.

  Args:
    axes: the axes, one row each.
    distance: the shift in pixels of the shifted images; a capsule that stays
      on its entity lies on the line that is higher than the diagonal by this.
    path: file to write.
  """
  sheet = grids.new_sheet((9.3, 3.1 * len(axes) + 0.2))
  grid = sheet.subplots(len(axes), 3, squeeze=False)
  few = slice(None, _MOST_POINTS)
  # Jitter, since points at whole pixels would hide each other.
  spread = np.random.default_rng(0).uniform(-0.3, 0.3, _MOST_POINTS)
  dots = dict(s=3, alpha=0.35, linewidths=0, color="C0")
  line = dict(color=grids.RED, linewidth=1)
  for (readout, own, pair), axis in zip(grid, axes, strict=True):
    truth = np.asarray(axis.truth)[few]
    ends = np.array([truth.min(), truth.max()])
    readout.plot(ends, ends, **line, label="equal")
    for panel, values in ((readout, axis.readout), (own, axis.own)):
      values = np.asarray(values)[few]
      panel.scatter(truth + spread[: len(truth)], values, **dots)
      panel.set_xlabel(f"true shift in {axis.name} (pixels)")
    middle = np.median(np.asarray(axis.own)[few] - truth)
    own.plot(ends, ends + middle, **line, label="slope 1")
    still, shifted = (np.asarray(x)[few] for x in (axis.still, axis.shifted))
    pair.scatter(still, shifted, **dots)
    ends = np.array([still.min(), still.max()])
    pair.plot(ends, ends + distance, **line, label=f"{distance} more")
    pair.set_xlabel(f"{axis.name} of the capsule")
    readout.set_ylabel(f"{axis.name} predicted from all capsules")
    own.set_ylabel(f"{axis.name} of the best capsule")
    pair.set_ylabel(f"after a shift by {distance} pixels")
    for panel in (readout, own, pair):
      grids.bare(panel)
      panel.legend(fontsize=7, frameon=False)
  return grids.save(sheet, path)


def errors(
  distances: ArrayLike,
  lines: Mapping[str, ArrayLike],
  ends: Mapping[str, float],
  path: str | os.PathLike,
) -> pathlib.Path:
  """Plots errors of shifted images against the distance.

  Args:
    distances: [S] in pixels.
    lines: [S] each, squared errors divided by the target's sum of squares.
    ends: by label, distances that are marked by vertical lines.
    path: file to write.
  """
  sheet = grids.new_sheet((4.6, 3.6))
  panel = sheet.subplots()
  for name, values in lines.items():
    panel.plot(distances, values, label=name, marker="o", markersize=3.5)
  styles = ("--", ":", "-.")
  for (name, end), style in zip(ends.items(), styles, strict=False):
    panel.axvline(end, color=grids.GREY, linestyle=style, label=name)
  panel.set_xlabel("shift (pixels)")
  panel.set_ylabel("squared error / squares of the target")
  panel.set_ylim(0)
  grids.bare(panel)
  panel.legend(fontsize=8, frameon=False)
  return grids.save(sheet, path)
