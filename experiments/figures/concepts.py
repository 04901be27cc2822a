"""Figures of the documentation; the conventions are those of `grids`."""

import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import patches
from numpy.typing import ArrayLike

from . import grids


def strips(
  rows: Mapping[str, ArrayLike],
  path: str | os.PathLike,
  *,
  inches: float = 0.55,
) -> pathlib.Path:
  """Plots labelled rows of images.

  Args:
    rows: by label, images [S H W C].
    path: file to write.
    inches: width of an image.
  """
  pictures = [grids.as_rgb(images) for images in rows.values()]
  columns = max(len(images) for images in pictures)
  ratios = [images.shape[1] / images.shape[2] for images in pictures]
  room = 0.3 + 0.08 * max(map(len, rows))
  sheet = grids.new_sheet(
    (inches * columns + room, inches * sum(ratios) + 0.06 * len(rows))
  )
  places = sheet.subplots(
    len(rows), 1, squeeze=False, height_ratios=ratios
  ).flat
  for place, label, images in zip(places, rows, pictures, strict=True):
    place.imshow(grids.mosaic(images[None]), interpolation="nearest")
    place.set(xticks=[], yticks=[], frame_on=False)
    place.set_ylabel(
      label, fontsize=8, rotation=0, horizontalalignment="right",
      verticalalignment="center",
    )  # fmt: skip
  return grids.save(sheet, path)


def overview(
  panels: Mapping[str, ArrayLike], path: str | os.PathLike
) -> pathlib.Path:
  """Plots mosaics of images side by side.

  Args:
    panels: by title, images [R S H W C], rows and columns of a mosaic.
    path: file to write.
  """
  pictures = [grids.mosaic(grids.as_rgb(x)) for x in panels.values()]
  widths = [x.shape[1] / x.shape[0] for x in pictures]
  sheet = grids.new_sheet((2.1 * sum(widths) + 0.3, 2.4))
  places = sheet.subplots(1, len(pictures), squeeze=False, width_ratios=widths)[
    0
  ]
  for place, title, picture in zip(places, panels, pictures, strict=True):
    place.imshow(picture, interpolation="nearest")
    place.set_axis_off()
    place.set_title(title, fontsize=8)
  return grids.save(sheet, path)


def agreement(
  votes: ArrayLike,
  poses: ArrayLike,
  coefficients: ArrayLike,
  counts: Sequence[int],
  path: str | os.PathLike,
) -> pathlib.Path:
  """Plots votes in the plane, and how the parts are shared among parents.

  Args:
    votes: [I J 2].
    poses: [T J 2], those of the parents after each number of iterations.
    coefficients: [T I J], the shares of the parts; the area of a vote.
    counts: [T], of iterations.
    path: file to write.
  """
  votes, poses = np.asarray(votes), np.asarray(poses)
  shares = np.asarray(coefficients)
  sheet = grids.new_sheet((2.5 * len(poses), 2.7))
  places = sheet.subplots(1, len(poses), sharex=True, sharey=True)
  for number, (count, place) in enumerate(zip(counts, places, strict=True)):
    for parent in range(votes.shape[1]):
      color = f"C{parent}"
      place.scatter(
        *votes[:, parent].T, s=90 * shares[number, :, parent], color=color,
        alpha=0.55, linewidth=0,
      )  # fmt: skip
      place.annotate(
        "", poses[number, parent], (0, 0),
        arrowprops=dict(arrowstyle="->", color=color, linewidth=2),
      )  # fmt: skip
    place.add_patch(
      patches.Circle((0, 0), 1, fill=False, linestyle=":", color=grids.GREY)
    )
    place.set_title(f"{count} iteration{'s' if count > 1 else ''}", fontsize=9)
    place.set_aspect("equal")
    place.tick_params(labelsize=7)
  return grids.save(sheet, path)


def clusters(
  votes: ArrayLike,
  means: ArrayLike,
  variances: ArrayLike,
  activations: ArrayLike,
  path: str | os.PathLike,
) -> pathlib.Path:
  """Plots votes for parents, and the Gaussians of EM routing.

  Args:
    votes: [I J 2]; each parent has a colour.
    means: [T J 2], after each number of iterations.
    variances: [T J 2].
    activations: [T J], written at each Gaussian.
    path: file to write.
  """
  votes, means = np.asarray(votes), np.asarray(means)
  scales = np.sqrt(np.asarray(variances))
  sheet = grids.new_sheet((2.7 * len(means), 2.8))
  places = sheet.subplots(1, len(means), sharex=True, sharey=True)
  for number, place in enumerate(places):
    for parent in range(votes.shape[1]):
      color = f"C{parent}"
      place.scatter(*votes[:, parent].T, s=14, color=color, alpha=0.6)
      centre = means[number, parent]
      width, height = 4 * scales[number, parent]
      place.add_patch(
        patches.Ellipse(
          centre, width, height, fill=False, color=color, linewidth=1.6
        )
      )
      place.annotate(
        f"a = {np.asarray(activations)[number, parent]:.2f}",
        (centre[0], centre[1] + height / 2), fontsize=7, color=color,
        horizontalalignment="center", verticalalignment="bottom",
      )  # fmt: skip
    place.set_title(
      f"{number + 1} iteration{'s' if number else ''}", fontsize=9
    )
    place.set_aspect("equal")
    place.tick_params(labelsize=7)
  return grids.save(sheet, path)


def bars(
  values: Mapping[str, Sequence[float]],
  path: str | os.PathLike,
  *,
  label: str,
) -> pathlib.Path:
  """Plots a dot for each seed of several models, the best at the top.

  Args:
    values: by the name of a model, a value for each seed; more is better.
    path: file to write.
    label: of the axis, with its unit.
  """
  names = sorted(values, key=lambda name: np.mean(values[name]))
  sheet = grids.new_sheet((6.4, 0.34 * len(names) + 0.7))
  place = sheet.subplots()
  for row, name in enumerate(names):
    place.plot(
      values[name], [row] * len(values[name]), "o", color="C0", alpha=0.8
    )
  place.set_yticks(range(len(names)), names, fontsize=8)
  place.set_xlabel(label, fontsize=8)
  place.tick_params(labelsize=8)
  grids.bare(place)
  return grids.save(sheet, path)
