"""Figures of two overlapping objects; the conventions are those of `grids`."""

import math
import os
import pathlib

import numpy as np
from numpy.typing import ArrayLike

from . import grids

# Two colours that add up to white and that colour-blind readers distinguish.
# Red marks mistakes. The paper uses red and green.
_COLOURS = np.array([[1.0, 0.55, 0.0], [0.0, 0.45, 1.0]])
_ROWS = ("input", "both", "first", "second", "absent")
_COLUMNS = 8
# Characters of a line, and of a name in a smaller font on lines of their own,
# that do not reach the next caption.
_LINE, _LONGEST = 14, 6


def overlaps(
  images: ArrayLike,
  reconstructions: ArrayLike,
  absent: ArrayLike,
  labels: ArrayLike,
  predictions: ArrayLike,
  absent_labels: ArrayLike,
  path: str | os.PathLike,
) -> pathlib.Path:
  """Plots the separation of overlapping digits (Sabour et al., 2017, fig. 5).

  Each example is a column: the input, the sum of its two reconstructions, each
  reconstruction in its own colour, and the reconstruction of a class that is
  not in the image (nor predicted, where there is one), which is nearly empty
  for a good model.
  The reconstructed classes are in the corners. Examples whose predicted classes
  are not both correct come last and in red.

  Args:
    images: [N H W 1] in [0, 1], some forty examples at most.
    reconstructions: [N 2 H W 1], of the predicted classes one by one.
    absent: [N H W 1], reconstruction of the absent class.
    labels: names of classes [N 2], in any order.
    predictions: names [N 2], in the order of `reconstructions`.
    absent_labels: names [N].
    path: file to write; its folder is made.

  Returns:
    The path.

  Raises:
    ValueError: if there are no images, or they are not grey or not floats.
  """
  if not len(images) or np.shape(images)[-1] != 1:
    raise ValueError(
      f"images are {np.shape(images)}; give one or more of one channel, since "
      "colours tell the two objects apart."
    )
  labels, predictions = np.asarray(labels), np.asarray(predictions)
  right = np.all(np.sort(labels) == np.sort(predictions), axis=-1)
  order = np.argsort(~right, kind="stable")
  tiles = _tiles(images, reconstructions, absent)
  shown = [*predictions.T, np.asarray(absent_labels)]
  height, width = tiles.shape[2:4]
  columns = min(_COLUMNS, len(order))
  rows = math.ceil(len(order) / columns)
  inches = columns * (0.88 * width / height + 0.06) + 0.55
  sheet = grids.new_sheet((max(2.0, inches), 4.68 * rows + 0.3))
  grid = sheet.subplots(
    rows, columns, squeeze=False, subplot_kw=grids.WITHOUT_AXES
  )
  for panel, n in zip(grid.flat, order, strict=False):
    text = _caption(labels[n], predictions[n], right[n])
    size = 6 if len(text) > _LINE else 7
    picture = grids.mosaic(tiles[n, :, None])
    grids.show(panel, picture, text, right[n], size=size)
    for row, classes, color in zip(
      (2, 3, 4), shown, (*_COLOURS, "white"), strict=True
    ):
      place = (1, row * (height + 1) + 1)
      panel.text(
        *place,
        grids.short(classes[n]),
        color=color,
        size=6,
        va="top",
        parse_math=False,  # names may hold dollar signs
      )
  middles = np.arange(len(_ROWS)) * (height + 1) + (height - 1) / 2
  for panel in grid[:, 0]:
    panel.set_yticks(middles, _ROWS, size=7)
    panel.tick_params(length=0)
  sheet.suptitle("red: labels → predictions", fontsize=8)
  return grids.save(sheet, path)


def _caption(labels, predictions, right):
  """The names of the two objects; of a mistake also of those predicted."""
  wanted, found = (
    " + ".join(grids.short(name, _LONGEST) for name in pair)
    for pair in (labels, predictions)
  )
  if right:
    return wanted
  line = f"{wanted} → {found}"
  return line if len(line) <= _LINE else f"{wanted}\n→ {found}"


def _tiles(images, reconstructions, absent):
  """Turns the three kinds of images into [N 5 H W 3], in the order of _ROWS."""
  images, absent = grids.as_rgb(images), grids.as_rgb(absent)
  parts = grids.as_rgb(reconstructions) * _COLOURS[:, None, None]
  both = np.minimum(np.sum(parts, axis=1), 1)
  return np.stack([images, both, parts[:, 0], parts[:, 1], absent], axis=1)
