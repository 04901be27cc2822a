"""Figures of robustness and of routing; each function writes one file.

As in `grids`: images are floats in [0, 1], every function makes the folder of
its `path` and returns the path.
"""

import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epy
from numpy.typing import ArrayLike

from .grids import (
  GREY,
  as_rgb,
  bare,
  caption,
  new_sheet,
  save,
)

with epy.lazy_imports():  # these take seconds, and --help needs none
  from matplotlib import axes, patches, ticker

_MARKERS = "os^Dvp*X"
_MOST_MARKERS = 25  # With more points the markers would overlap.
_ROUNDING = 1e-4  # of the limits of an axis
_HISTOGRAM_COLUMNS = 5
_BINS = np.linspace(0, 1, 26)
_TILE = 0.62  # inches of an image's shorter side on a contact sheet


class Panel(NamedTuple):
  """One diagram of a figure.

  Attributes:
    title: the title; may be empty.
    xlabel: the label of x, with its unit.
    ylabel: the label of y, with its unit.
    lines: by label, {x: y}, y of -1 to about 1; points that are not finite are
      left out. A label has the same colour in all panels of a figure.
    counts: by label, the number of images of each point, if y is a share of
      images. Points then get 95% intervals (Wilson, 1927), and the legend shows
      the number.
  """

  title: str
  xlabel: str
  ylabel: str
  lines: Mapping[str, Mapping[float, float]]
  counts: Mapping[str, int] = {}


def accuracy_curves(
  panels: Sequence[Panel],
  path: str | os.PathLike,
  *,
  chance: float | None = None,
) -> pathlib.Path:
  """Plots rates in percent against the size of a change of the images.

  For example the accuracy of several models against the eps of an attack and
  the angle of a rotation, in panels side by side.

  Args:
    panels: their y are rates, mostly in [0, 1]; labels of y should say "(%)".
      The axis ends at 100%, or at the next quarter above the highest value.
    path: file to write.
    chance: the accuracy of random guessing, a dotted line in every panel.

  Raises:
    ValueError: if there is nothing to plot.
  """
  return _plot(panels, path, unit=100, chance=chance)


def diagnostic_curves(
  panels: Sequence[Panel], path: str | os.PathLike
) -> pathlib.Path:
  """Plots shares, such as the entropy of routing against the training step.

  Args:
    panels: the y axis ends at 1, or at the next quarter above the highest
      value, and begins at 0 unless a line is below it; if
      the lines of a panel span less than a quarter, it shows their range only.
    path: file to write.

  Raises:
    ValueError: if there is nothing to plot.
  """
  return _plot(panels, path, unit=1, closer=True)


def activation_histograms(
  activations: ArrayLike,
  labels: ArrayLike,
  names: Sequence[str],
  path: str | os.PathLike,
) -> pathlib.Path:
  """Plots histograms of class activations, with the class present and absent.

  Shares are on a logarithmic scale, which makes the few errors visible.

  Args:
    activations: [N J] in [0, 1].
    labels: [N].
    names: [J], of the classes.
    path: file to write.
  """
  activations, labels = np.asarray(activations), np.asarray(labels)
  num_classes = activations.shape[1]
  columns = min(_HISTOGRAM_COLUMNS, num_classes)
  rows = math.ceil(num_classes / columns)
  sheet = new_sheet((1.55 * columns + 0.5, 1.25 * rows + 0.7))
  grid = sheet.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
  for place in grid.flat[num_classes:]:
    place.set_axis_off()
  for j, place in enumerate(grid.flat[:num_classes]):
    present = labels == j
    for name, color, members in (
      ("class absent", GREY, ~present),
      ("class present", "C0", present),
    ):
      counts, _ = np.histogram(activations[members, j], _BINS)
      shares = 100 * counts / max(1, members.sum())
      style = dict(color=color, alpha=0.6, fill=True, baseline=1e-3)
      place.stairs(shares, _BINS, label=name, **style)
    place.set_title(names[j], fontsize=8, pad=2, parse_math=False)
    place.set_yscale("log")
    place.set(xlim=(0, 1), ylim=(0.1, 100))
    place.yaxis.set_major_formatter("{x:g}")
    place.yaxis.set_minor_locator(ticker.NullLocator())
    place.tick_params(labelsize=7)
    bare(place)
  sheet.legend(
    *grid.flat[0].get_legend_handles_labels(),
    loc="outside upper center",
    ncols=2,
    fontsize=8,
    frameon=False,
  )
  sheet.supxlabel("activation of the class capsule", fontsize=8)
  sheet.supylabel("examples (%)", fontsize=8)
  return save(sheet, path)


def contact_sheet(
  images: ArrayLike,
  row_labels: Sequence,
  column_labels: Sequence,
  path: str | os.PathLike,
  *,
  labels: ArrayLike | None = None,
  predictions: ArrayLike | None = None,
  title: str = "",
) -> pathlib.Path:
  """Plots a table of images with the classes that a model predicts.

  For example adversarial examples (a row for each eps), views or samples.

  Args:
    images: [R S H W C].
    row_labels: [R], to the left of the rows.
    column_labels: [S], above the columns.
    path: file to write.
    labels: [S] or [R S], the classes; without them images have no captions.
    predictions: [R S]; where they differ from `labels` the caption is label →
      prediction, in red.
    title: what the images are, above them; may be empty.

  Raises:
    ValueError: if there are not as many row or column labels as images, or
      predictions without labels.
  """
  tiles = as_rgb(images)
  rows, columns, height, width, _ = tiles.shape
  if (len(row_labels), len(column_labels)) != (rows, columns):
    raise ValueError(
      f"{len(row_labels)} row and {len(column_labels)} column labels for "
      f"{rows} x {columns} images; give one for each row and column."
    )
  if labels is None and predictions is not None:
    raise ValueError("predictions without labels; give both.")
  unit = _TILE / min(height, width)  # inches of a pixel
  gap = max(1, round(0.04 / unit))
  pitch_x = width + gap
  pitch_y = height + gap + (round(0.13 / unit) if labels is not None else 0)
  paper = np.ones((rows * pitch_y - gap, columns * pitch_x - gap, 3))
  for r, s in np.ndindex(rows, columns):
    y, x = r * pitch_y, s * pitch_x
    paper[y : y + height, x : x + width] = tiles[r, s]
  longest = max(len(str(label)) for label in row_labels)
  size = (
    unit * paper.shape[1] + 0.08 * longest + 0.4,
    unit * paper.shape[0] + (0.7 if title else 0.5),
  )
  sheet = new_sheet(size)
  if title:
    sheet.suptitle(title, fontsize=7)
  place = sheet.subplots()
  place.imshow(paper)
  place.spines[:].set_visible(False)
  place.set_xticks(
    np.arange(columns) * pitch_x + (width - 1) / 2,
    map(str, column_labels),
    parse_math=False,
  )
  place.set_yticks(
    np.arange(rows) * pitch_y + (height - 1) / 2,
    map(str, row_labels),
    parse_math=False,
  )
  place.tick_params(
    length=0, labelsize=7, labeltop=True, labelbottom=False, pad=3
  )
  if labels is not None:
    labels = np.broadcast_to(labels, (rows, columns))
    predictions = labels if predictions is None else np.asarray(predictions)
    for r, s in np.ndindex(rows, columns):
      label, prediction = labels[r, s], predictions[r, s]
      text, color = caption(label, prediction, label == prediction)
      y, x = r * pitch_y - 0.5, s * pitch_x - 0.5
      place.text(
        x + width / 2,
        y + height + 0.02 / unit,
        text,
        color=color,
        size=6,
        ha="center",
        va="top",
        parse_math=False,
      )
      if label != prediction:
        frame = dict(fill=False, color=color, linewidth=1.3, clip_on=False)
        place.add_patch(patches.Rectangle((x, y), width, height, **frame))
  return save(sheet, path)


def _plot(
  panels: Sequence[Panel],
  path: str | os.PathLike,
  *,
  unit: float,
  chance: float | None = None,
  closer: bool = False,
) -> pathlib.Path:
  """Plots panels side by side under one legend; 1 is plotted as `unit`.

  With `closer` the axis of a panel whose lines are flat shows their range.
  """
  panels = [panel._replace(lines=_finite(panel.lines)) for panel in panels]
  if not any(points for panel in panels for points in panel.lines.values()):
    raise ValueError("no panel has a line with a finite point.")
  labels = list(dict.fromkeys(x for panel in panels for x in panel.lines))
  sheet = new_sheet((3.1 * len(panels) + 0.3, 3.1))
  grid = sheet.subplots(1, len(panels), squeeze=False)[0]
  handles, counts = {}, {}
  for place, panel in zip(grid, panels, strict=True):
    for label, points in panel.lines.items():
      count = panel.counts.get(label)
      number = labels.index(label)
      handles[label] = _draw_line(place, points, number, unit, count)
      if count:
        counts[label] = count
    if chance is not None:
      handles["chance"] = place.axhline(
        unit * chance, color=GREY, linestyle=":", linewidth=1
      )
    _set_axes(place, panel, unit, closer)
  names = labels if chance is None else [*labels, "chance"]
  texts = [
    f"{name}, {counts[name]:,} images" if name in counts else name
    for name in names
  ]
  # Inches of a column of the legend, roughly.
  column = 0.45 + 0.062 * max(map(len, texts))
  sheet.legend(
    [handles[name] for name in names],
    texts,
    title="bars: 95% intervals" if counts else None,
    title_fontsize=7,
    loc="outside upper center",
    ncols=max(1, min(len(names), int(3.4 * len(panels) / column))),
    fontsize=8,
    frameon=False,
  )
  return save(sheet, path)


def _draw_line(
  place: "axes.Axes",
  points: Mapping[float, float],
  number: int,
  unit: float,
  count: int | None,
) -> Any:
  """Plots a line, with 95% intervals if it is of shares of `count` images.

  Returns:
    The line, for the legend.
  """
  color, xs = f"C{number}", sorted(points)
  (line,) = place.plot(
    xs,
    [unit * points[x] for x in xs],
    color=color,
    marker=_MARKERS[number % len(_MARKERS)] if len(xs) <= _MOST_MARKERS else "",
    markersize=3.5,
    linewidth=1.4,
    clip_on=False,
    zorder=3,
  )
  if count:
    ends = [interval(points[x], count) for x in xs]
    low, high = zip(*ends, strict=True) if ends else ((), ())
    place.vlines(
      xs,
      unit * np.array(low),
      unit * np.array(high),
      color=color,
      linewidth=1,
      clip_on=False,
    )
  return line


def _set_axes(
  place: "axes.Axes", panel: Panel, unit: float, closer: bool
) -> None:
  """Sets the range, the ticks and the labels of both axes."""
  shown = [points for points in panel.lines.values() if points]
  lowest = min((min(points.values()) for points in shown), default=0)
  highest = max((max(points.values()) for points in shown), default=0)
  # From 0 to 1, and whole quarters beyond.
  bottom = min(0, math.floor(4 * lowest + _ROUNDING) / 4)
  top = max(1, math.ceil(4 * highest - _ROUNDING) / 4)
  if closer and 1e-6 < highest - lowest < 0.25:
    space = 0.1 * (highest - lowest)
    bottom, top = lowest - space, min(top, highest + space)
    place.ticklabel_format(axis="y", useOffset=False)
  place.set_ylim(unit * bottom, unit * top)
  values = [x for points in shown for x in points]
  long = max(values, default=0) >= 1000
  locator = ticker.MaxNLocator(
    4 if long else 7,
    steps=[1, 2, 3, 5, 10],
    integer=all(float(x).is_integer() for x in values),
  )
  place.xaxis.set_major_locator(locator)
  if long:
    place.xaxis.set_major_formatter("{x:,.0f}")
  place.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
  place.set_title(panel.title, fontsize=9)
  bare(place)


def interval(share: float, count: int) -> tuple[float, float]:
  """The 95% interval of a share of `count` images (Wilson, 1927)."""
  z = 1.959964 / math.sqrt(count)
  middle = (share + z * z / 2) / (1 + z * z)
  half = z * math.sqrt(share * (1 - share) + z * z / 4) / (1 + z * z)
  return max(0.0, middle - half), min(1.0, middle + half)


def _finite(lines: Mapping[str, Mapping]) -> dict[str, dict[float, float]]:
  return {
    label: {x: y for x, y in points.items() if math.isfinite(y)}
    for label, points in lines.items()
  }
