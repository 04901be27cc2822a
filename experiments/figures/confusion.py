"""The figure of a confusion matrix."""

import os
import pathlib
from collections.abc import Sequence

import numpy as np

from .grids import new_sheet, save

_MOST_NUMBERS = 20  # classes; with more, cells are too small for a number
_MOST_NAMES = 60  # classes; with more, names would overlap
_LONGEST = 16  # letters of a name


def confusion(
  counts: np.ndarray, names: Sequence[str], path: str | os.PathLike
) -> pathlib.Path:
  """Plots the share of each class's images by the predicted class.

  Rows are the classes of images, columns those predicted. Cells hold numbers of
  images where there are at most 20 classes.

  Args:
    counts: [J J] images by their class and by the predicted one.
    names: of the classes, J.
    path: file to write.

  Returns:
    The path.
  """
  num_classes = len(counts)
  totals = np.sum(counts, axis=1, keepdims=True)
  shares = counts / np.maximum(totals, 1)
  side = min(max(3.5, 0.42 * num_classes), 14)
  sheet = new_sheet(figsize=(side + 1, side))
  panel = sheet.subplots()
  shown = panel.imshow(100 * shares, cmap="Blues", vmin=0, vmax=100)
  sheet.colorbar(shown, ax=panel, shrink=0.8, label="images of the class (%)")
  panel.set_xlabel("predicted class")
  panel.set_ylabel("class")
  if num_classes <= _MOST_NAMES:
    short = [x if len(x) <= _LONGEST else f"{x[:_LONGEST]}…" for x in names]
    is_wide = max(map(len, short)) > 2
    plain = {"parse_math": False}  # names may hold dollar signs
    turned = 90 if is_wide else 0
    panel.set_xticks(range(num_classes), short, rotation=turned, **plain)
    panel.set_yticks(range(num_classes), short, **plain)
    panel.tick_params(length=0, labelsize=7)
  if num_classes <= _MOST_NUMBERS:
    for (row, column), count in np.ndenumerate(counts):
      if count:
        color = "white" if shares[row, column] > 0.5 else "black"
        panel.text(
          column, row, f"{count:,}",
          ha="center", va="center", size=6, color=color,
        )  # fmt: skip
  return save(sheet, path)
