"""Figures of a run: pure functions of arrays that each write one PNG.

Images are floats in [0, 1], the last axes H W C: grey (C = 1), colour (C = 3),
or a stereo pair (C = 2), which is drawn side by side.
"""

import math
import numbers
import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import axes, figure, ticker
from numpy.typing import ArrayLike

_ARROW = "\N{RIGHTWARDS ARROW}"
_RED, _GREY = "#c8102e", "#555555"
_COLORS = ("#1f5fa8", "#d9730d", "#2e8b57", "#7a4fa3", "#8c564b", "#444444")
_STYLES = {
  "train": dict(linewidth=0.9, alpha=0.55),
  "validation": dict(linewidth=1.6, marker="o", markersize=3.5),
}

# Steps and values by split.
_Curves = dict[str, list[tuple[int, float]]]


def learning_curves(
  metrics: Sequence[Mapping[str, object]], path: str | os.PathLike
) -> pathlib.Path:
  """Draws error and losses against the step, for training and validation.

  Args:
    metrics: the lines of metrics.jsonl: each has `step` and `split`, and any of
      `accuracy`, `loss` and names that end in `_loss`. Other entries, other
      splits and what is not finite are left out.
    path: file to write.

  Returns:
    The path written.

  Raises:
    ValueError: if there is nothing to draw.
  """
  losses = _curves(metrics)
  error = losses.pop("error", None)
  panels = {"error (%)": {"": error} if error else {}, "loss": losses}
  panels = {title: curves for title, curves in panels.items() if curves}
  if not panels:
    raise ValueError("no line of the metrics has a finite accuracy or loss.")
  judge = error or next(iter(losses.values()))
  sheet = _sheet(4.6 * len(panels), 3.4)
  grid = sheet.subplots(1, len(panels), squeeze=False)[0]
  for panel, (title, curves) in zip(grid, panels.items(), strict=True):
    for n, (name, splits) in enumerate(curves.items()):
      for split, points in splits.items():
        style = dict(color=_COLORS[n % len(_COLORS)], **_STYLES[split])
        if len(points) == 1:
          style["marker"] = "o"
        label = f"{name.replace('_', ' ')} {split}".strip()
        panel.plot(*zip(*points, strict=True), label=label, **style)
    if "validation" in judge:
      step, value = min(judge["validation"], key=lambda point: point[1])
      what = f"{value:.3g}{'%' if error else ''} at step {step:,}"
      panel.axvline(
        step, color=_GREY, linestyle=":", label=f"best validation: {what}"
      )
    _scale(panel, curves)
    panel.set(xlabel="step", ylabel=title)
    panel.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.grid(color="#dddddd", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(fontsize=7, framealpha=0.9, edgecolor="none")
  return _save(sheet, path)


def choose_examples(
  labels: ArrayLike,
  predictions: ArrayLike,
  num_correct: int,
  num_mistakes: int,
) -> np.ndarray:
  """Chooses examples for `reconstructions`, spread over the classes.

  Takes the first example of every class, then the second of every class, and
  so on; right ones come first.

  Args:
    labels: [N].
    predictions: [N].
    num_correct: how many right ones, where so many exist.
    num_mistakes: how many mistakes, where so many exist.

  Returns:
    Up to num_correct + num_mistakes indices.
  """
  labels = np.asarray(labels)
  right = labels == np.asarray(predictions)
  chosen = []
  for kind, count in ((right, num_correct), (~right, num_mistakes)):
    members = np.flatnonzero(kind)
    members = members[np.argsort(labels[members], kind="stable")]
    classes = labels[members]
    ranks = np.arange(len(members)) - np.searchsorted(classes, classes)
    chosen.append(members[np.lexsort((classes, ranks))][:count])
  return np.concatenate(chosen)


def reconstructions(
  images: ArrayLike,
  reconstructions: ArrayLike,
  labels: ArrayLike,
  predictions: ArrayLike,
  path: str | os.PathLike,
  *,
  class_names: Sequence[str] | None = None,
) -> pathlib.Path:
  """Draws inputs beside their reconstructions, mistakes last and in red.

  Args:
    images: [N H W C], some fifty examples at most.
    reconstructions: [N H W C].
    labels: [N].
    predictions: [N].
    path: file to write.
    class_names: what to call the classes instead of their numbers.

  Returns:
    The path written.

  Raises:
    ValueError: if images are integers or have another number of channels.
  """
  labels, predictions = np.asarray(labels), np.asarray(predictions)
  pairs = np.stack([_rgb(images), _rgb(reconstructions)], axis=1)
  height, width = pairs.shape[2:4]
  columns = max(1, min(8 * height // width, len(labels)))
  right = labels == predictions
  # Mistakes begin on a row of their own.
  rows = [
    members[start : start + columns]
    for members in (np.flatnonzero(right), np.flatnonzero(~right))
    for start in range(0, len(members), columns)
  ]
  num_rows = max(1, len(rows))
  sheet = _sheet(
    max(3.6, columns * (1.24 * width / height + 0.14)), 0.88 * num_rows + 0.3
  )
  grid = sheet.subplots(num_rows, columns, squeeze=False)
  for panel in grid.flat:
    panel.set_axis_off()
  for panels, members in zip(grid, rows, strict=False):
    for panel, n in zip(panels, members, strict=False):
      names = [labels[n]] if right[n] else [labels[n], predictions[n]]
      if class_names is not None:
        names = [class_names[name] for name in names]
      panel.imshow(_mosaic(pairs[None, n]))
      panel.set_title(
        f" {_ARROW} ".join(map(str, names)),
        color=_GREY if right[n] else _RED,
        fontsize=7 if class_names is None else 6,
        pad=2.5,
      )
      if not right[n]:
        panel.set_axis_on()
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set(color=_RED, linewidth=1.5)
  sheet.suptitle(
    f"input | reconstruction; mistakes in red: label {_ARROW} prediction",
    fontsize=8,
  )
  return _save(sheet, path)


def perturbations(
  grid: ArrayLike,
  offsets: ArrayLike,
  labels: Sequence[object],
  path: str | os.PathLike,
) -> pathlib.Path:
  """Draws what each dimension of a class capsule means (Sabour et al., fig. 4).

  Args:
    grid: [K D S H W C], reconstructions of K examples with one of D dimensions
      shifted by one of S offsets.
    offsets: [S].
    labels: [K], titles of the panels.
    path: file to write.

  Returns:
    The path written.

  Raises:
    ValueError: if images are integers or have another number of channels.
  """
  examples = _rgb(grid)
  num_panels, num_dims, num_offsets, height, width, _ = examples.shape
  columns = min(5, num_panels)
  rows = math.ceil(num_panels / columns)
  inches = 0.32 / min(height, width)
  sheet = _sheet(
    columns * (num_offsets * (width + 1) * inches + 0.3) + 0.2,
    rows * (num_dims * (height + 1) * inches + 0.45) + 0.2,
  )
  panels = sheet.subplots(rows, columns, squeeze=False).flat
  for panel in panels[num_panels:]:
    panel.set_axis_off()
  for panel, tiles, label in zip(panels, examples, labels, strict=False):
    panel.imshow(_mosaic(tiles))
    panel.set_title(str(label), fontsize=9)
    panel.set_xticks(
      np.arange(num_offsets) * (width + 1) + width / 2,
      [f"{offset:z.2f}" for offset in np.asarray(offsets)],
    )
    panel.set_yticks(
      np.arange(num_dims) * (height + 1) + height / 2, range(num_dims)
    )
    panel.tick_params(length=0, labelsize=6, pad=2)
    panel.spines[:].set_visible(False)
  sheet.supxlabel("offset", fontsize=8)
  sheet.supylabel("dimension", fontsize=8)
  return _save(sheet, path)


def _curves(metrics: Sequence[Mapping[str, object]]) -> dict[str, _Curves]:
  """Error in percent and losses, by name."""
  curves = {}
  for line in metrics:
    for name, value in line.items():
      if not isinstance(value, numbers.Real) or not math.isfinite(value):
        continue
      if name == "accuracy":
        # 1 - 0.99999994 is no error: it would stretch the axis by decades.
        name, value = "error", round(100 * (1 - value), 4)
      if line["split"] in _STYLES and name.endswith(("error", "loss")):
        points = curves.setdefault(name, {}).setdefault(line["split"], [])
        points.append((line["step"], value))
  return curves


def _scale(panel: axes.Axes, curves: dict[str, _Curves]) -> None:
  """Sets the limits; y is logarithmic, with a place for 0, but for values < 0."""
  points = [
    point
    for splits in curves.values()
    for points in splits.values()
    for point in points
  ]
  steps, values = zip(*points, strict=True)
  panel.set_xlim(0, max(1, 1.02 * max(steps)))
  if min(values) < 0:
    return
  if min(values) > 0:
    panel.set_yscale("log", subs=range(2, 10))
  else:
    threshold = min((value for value in values if value), default=1)
    panel.set_yscale("symlog", linthresh=threshold, linscale=0.3)
    panel.set_ylim(0, 2 * max(threshold, *values))
  panel.yaxis.set_major_formatter("{x:g}")


def _sheet(width: float, height: float) -> figure.Figure:
  return figure.Figure(
    (width, height), dpi=150, facecolor="white", layout="constrained"
  )


def _save(sheet: figure.Figure, path: str | os.PathLike) -> pathlib.Path:
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  # Without the library's version equal figures are equal files.
  sheet.savefig(path, format="png", metadata={"Software": None})
  return path


def _rgb(images: ArrayLike) -> np.ndarray:
  """Turns [... H W C] into [... H W' 3] with values clipped to [0, 1]."""
  images = np.asarray(images)
  if np.issubdtype(images.dtype, np.integer):
    raise ValueError(f"images are {images.dtype}; divide them by 255.")
  if images.shape[-1] not in (1, 2, 3):
    raise ValueError(f"images have {images.shape[-1]} channels, not 1, 2 or 3.")
  images = np.clip(images.astype(np.float32), 0, 1)
  if images.shape[-1] == 2:
    images = np.concatenate(np.split(images, 2, axis=-1), axis=-2)
  return np.broadcast_to(images, (*images.shape[:-1], 3))


def _mosaic(tiles: np.ndarray) -> np.ndarray:
  """Turns [R S H W 3] into one image with white lines between its tiles."""
  gaps = [(0, 0), (0, 0), (0, 1), (0, 1), (0, 0)]
  tiles = np.pad(tiles, gaps, constant_values=1)
  rows, columns, height, width, _ = tiles.shape
  image = tiles.swapaxes(1, 2).reshape(rows * height, columns * width, 3)
  return image[:-1, :-1]
