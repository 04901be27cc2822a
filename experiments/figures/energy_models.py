"""Figures of energy models; the conventions are those of `grids`."""

import os
import pathlib
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from etils import epy
from numpy.typing import ArrayLike

from . import grids

with epy.lazy_imports():  # these take seconds, and --help needs none
  import matplotlib


def tiles(
  images: ArrayLike,
  path: str | os.PathLike,
  *,
  columns: int,
  title: str,
  row_labels: Sequence[str] = (),
  column_labels: Sequence[str] = (),
) -> pathlib.Path:
  """Plots images side by side, row by row.

  Args:
    images: [N H W C].
    path: file to write.
    columns: images in a row; the last row is filled up with white.
    title: what the images are, above them.
    row_labels: to the left of the rows; by default the numbers of the images,
      from 1 on.
    column_labels: above the columns.

  Raises:
    ValueError: if there are labels, but not one for each row or column.
  """
  images = grids.as_rgb(images)
  rows = -(-len(images) // columns)
  missing = rows * columns - len(images)
  images = np.pad(
    images, [(0, missing), (0, 0), (0, 0), (0, 0)], constant_values=1
  )
  height, width = images.shape[1:3]
  count = len(images) - missing
  row_labels = row_labels or [
    f"{start + 1}–{min(start + columns, count)}"
    for start in range(0, count, columns)
  ]
  for name, labels, wanted in (
    ("row", row_labels, rows), ("column", column_labels, columns)
  ):  # fmt: skip
    if labels and len(labels) != wanted:
      raise ValueError(
        f"{len(labels)} {name} labels for {wanted} {name}s; give one for each."
      )
  picture = grids.mosaic(images.reshape(rows, columns, *images.shape[1:]))
  margin = 0.2 + 0.06 * max(map(len, row_labels))
  lines = textwrap.wrap(title, int((0.5 * columns + margin) / 0.065))
  top = 0.14 * len(lines) + 0.2 * bool(column_labels)
  sheet = grids.new_sheet(
    (0.5 * columns + margin, 0.5 * rows * height / width + top + 0.1)
  )
  place = sheet.subplots()
  place.imshow(picture, interpolation="nearest")
  place.set_yticks(
    np.arange(rows) * (height + 1) + (height - 1) / 2, row_labels
  )
  place.set_xticks(
    np.arange(len(column_labels)) * (width + 1) + (width - 1) / 2,
    column_labels,
  )
  place.tick_params(
    length=0, labelsize=6, labeltop=True, labelbottom=False, pad=2
  )
  place.spines[:].set_visible(False)
  sheet.suptitle("\n".join(lines), fontsize=7)
  return grids.save(sheet, path)


def spectra(
  activities: Sequence[ArrayLike],
  names: Sequence[str],
  path: str | os.PathLike,
) -> pathlib.Path:
  """Plots a strip of capsule activities for each image, by class.

  Args:
    activities: for each class [N K], an image in each row.
    names: of the classes.
    path: file to write.
  """
  columns = min(5, len(activities))
  rows = -(-len(activities) // columns)
  sheet = grids.new_sheet((2.4 * columns, 1.5 * rows + 0.5))
  places = sheet.subplots(rows, columns, squeeze=False).flat
  for place in places:
    place.set_axis_off()
  colours = _strips(sheet.axes, activities)
  for place, name in zip(sheet.axes, names, strict=False):
    place.set_title(name, fontsize=8, parse_math=False)
    place.set(xticks=[], yticks=[])
    place.set_axis_on()
  bar = sheet.colorbar(colours, ax=sheet.axes, shrink=0.6)
  bar.set_label("activity", fontsize=8)
  count, size = np.max([np.shape(x) for x in activities], axis=0)
  sheet.supxlabel(f"{size} capsules or latents, in the same order", fontsize=8)
  sheet.supylabel(f"{count} test images of each class", fontsize=8)
  return grids.save(sheet, path)


def compared_spectra(
  models: Mapping[str, Sequence[ArrayLike]],
  names: Sequence[str],
  path: str | os.PathLike,
) -> pathlib.Path:
  """Plots strips of capsule activities of several models, for the same images.

  Args:
    models: by the name of each model, its activities [N K] of each class;
      models with fewer classes leave the last columns white.
    names: of the classes.
    path: file to write.
  """
  columns = max(len(classes) for classes in models.values())
  sheet = grids.new_sheet((1.2 * columns + 1, 1.2 * len(models)))
  places = sheet.subplots(len(models), columns, squeeze=False)
  for row, (model, classes) in zip(places, models.items(), strict=True):
    for place in row:
      place.set(xticks=[], yticks=[], frame_on=False)
    colours = _strips(row, classes)
    row[0].set_ylabel(model, fontsize=8)
    bar = sheet.colorbar(colours, ax=list(row), fraction=0.02)
    bar.ax.tick_params(labelsize=6)
    bar.set_label("activity", fontsize=6)
  sheet.supxlabel("capsules or latents; a row for each test image", fontsize=8)
  for place, name in zip(places[0], names, strict=False):
    place.set_title(name, fontsize=8, parse_math=False)
  return grids.save(sheet, path)


def decompositions(
  images: ArrayLike,
  reconstructions: ArrayLike,
  parts: ArrayLike,
  probabilities: ArrayLike,
  path: str | os.PathLike,
) -> pathlib.Path:
  """Plots images, their reconstructions, and the images of single capsules.

  Args:
    images: [N H W C].
    reconstructions: [N H W C].
    parts: [N S H W C], the images of capsules, by falling activity.
    probabilities: [N S], that each capsule is active; capsules below 0.1 are
      left white.
    path: file to write.
  """
  parts = np.where(
    np.asarray(probabilities)[..., None, None, None] > 0.1,
    np.asarray(parts),
    1.0,
  )
  rows = np.concatenate(
    [np.asarray(images)[:, None], np.asarray(reconstructions)[:, None], parts],
    axis=1,
  )
  shape = rows.shape
  flat = grids.as_rgb(rows.reshape(-1, *shape[2:]))
  picture = grids.mosaic(flat.reshape(*shape[:2], *flat.shape[1:]))
  sheet = grids.new_sheet((0.55 * shape[1], 0.55 * shape[0] + 0.4))
  place = sheet.subplots()
  place.imshow(picture, interpolation="nearest")
  place.set_yticks([])
  width = flat.shape[2]
  names = ["image", "model", *map(str, range(1, shape[1] - 1))]
  place.set_xticks(
    np.arange(shape[1]) * (width + 1) + (width - 1) / 2, names, fontsize=6
  )
  place.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
  place.spines[:].set_visible(False)
  title = "images, reconstructions, and single capsules by falling activity"
  sheet.suptitle(title, fontsize=7)
  return grids.save(sheet, path)


def _strips(places, classes):
  """Plots [N K] of each class; returns their common colours, for a bar."""
  # A class may have no test image.
  low = min(0, *(np.min(values, initial=0) for values in classes))
  high = max(1, *(np.max(values, initial=1) for values in classes))
  colours = matplotlib.cm.ScalarMappable(
    matplotlib.colors.Normalize(low, high), "viridis"
  )
  for place, values in zip(places, classes, strict=False):
    if not len(values):
      continue
    place.imshow(
      values,
      cmap=colours.cmap,
      norm=colours.norm,
      aspect="auto",
      interpolation="none",
    )
  return colours
