"""Figures of transforming auto-encoders; conventions are those of `figures`."""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from experiments.figures import grids

_MOST_POINTS = 2000


class Axis(NamedTuple):
  """What capsules know of one axis, x or y; all of N images.

  Attributes:
    name: of it.
    truth: pixels that the image was moved by.
    readout: what regression on all capsules makes of them.
    own: the coordinate of the best capsule.
    still: that of the images in the middle.
    shifted: that of the same images, shifted.
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
  """Plots coordinates against the truth, and as in the paper's figure 2.

  Args:
    axes: a row for each.
    distance: pixels, of what is shifted; a capsule that stays on its entity
      lies on the line above the diagonal by as much.
    path: file to write.
  """
  sheet = grids.new_sheet((9.3, 3.1 * len(axes) + 0.2))
  grid = sheet.subplots(len(axes), 3, squeeze=False)
  few = slice(None, _MOST_POINTS)
  # Whole pixels would hide how many points lie on each other.
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
    readout.set_ylabel(f"{axis.name} read off all capsules")
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
    lines: [S] each, shares of the target's squares.
    ends: distances to which something holds, drawn as vertical lines.
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
