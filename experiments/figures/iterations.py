"""Figures of the iterations of routing; each function writes one file.

As in `grids`: every function makes the folder of its `path` and returns it.
"""

import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from .grids import bare, new_sheet, save

_NUM_BINS = 40


def vote_distances(
  distances: ArrayLike,
  weights: Mapping[str, ArrayLike],
  path: str | os.PathLike,
) -> pathlib.Path:
  """Plots histograms of the distances of votes, one panel for each iteration.

  As in a figure of Hinton et al. (2018), where each distance counts by its
  coefficient. The areas of all histograms are equal.

  Args:
    distances: [R ...], after each of R iterations.
    weights: by label, [R ...] >= 0.
    path: file to write.
  """
  distances = np.asarray(distances)
  bins = np.linspace(0, max(np.quantile(distances, 0.999), 1e-6), _NUM_BINS + 1)
  sheet = new_sheet((1.9 * len(distances) + 0.4, 2.2))
  grid = sheet.subplots(1, len(distances), squeeze=False, sharey=True)[0]
  for r, place in enumerate(grid):
    for n, (label, kept) in enumerate(weights.items()):
      counts, _ = np.histogram(
        distances[r], bins, weights=np.asarray(kept[r]), density=False
      )
      shares = 100 * counts / max(np.sum(counts), 1e-12)
      place.stairs(
        shares, bins, label=label, color=f"C{n}", alpha=0.5, fill=True
      )
    place.set_title(f"iteration {r + 1}", fontsize=8)
    place.tick_params(labelsize=7)
    bare(place)
  grid[0].set_ylim(0, None)  # for all panels; automatic scaling ends here
  sheet.legend(
    *grid[0].get_legend_handles_labels(),
    loc="outside upper center",
    ncols=len(weights),
    fontsize=8,
    frameon=False,
  )
  sheet.supxlabel("distance of a vote from the mean of its class", fontsize=8)
  sheet.supylabel("weight (%)", fontsize=8)
  return save(sheet, path)


def logit_changes(
  changes: Sequence[float], path: str | os.PathLike
) -> pathlib.Path:
  """Plots the mean change of a routing logit against the iteration.

  Args:
    changes: above 0, in each iteration; on a logarithmic scale.
    path: file to write.
  """
  sheet = new_sheet((3.2, 2.6))
  place = sheet.subplots()
  steps = np.arange(1, len(changes) + 1)
  place.plot(steps, np.maximum(changes, 1e-12), marker="o", markersize=3.5)
  place.set_yscale("log")
  place.set_xticks(steps)
  place.set(xlabel="iteration", ylabel="mean change of a logit")
  bare(place)
  return save(sheet, path)
