"""Figures of a run: pure functions of arrays that each write one PNG.

Images are floats in [0, 1], the last axes H W C: grey (C = 1), colour (C = 3),
or a stereo pair (C = 2), which is drawn side by side.
"""

import math
import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import axes, figure, ticker
from numpy.typing import ArrayLike

_DPI = 150
_TILE = 0.32  # Inches along the shorter side of a perturbed image.
_PAIR = 0.62  # Inches along the longer side of a reconstructed one.
_MISTAKE = "#c8102e"
_QUIET = "#555555"
_COLOURS = ("#1f5fa8", "#d9730d", "#2e8b57", "#7a4fa3", "#8c564b", "#444444")


def learning_curves(
  metrics: Sequence[Mapping[str, object]], path: str | os.PathLike
) -> pathlib.Path:
  """Draws error and losses against the step, for training and validation.

  Args:
    metrics: the lines of metrics.jsonl: each has `step` and `split`, and any of
      `accuracy`, `loss` and names that end in `_loss`. Anything else, and what
      is not finite, is left out.
    path: file to write.

  Returns:
    The path written.

  Raises:
    ValueError: if there is nothing to draw.
  """
  lines = [dict(line) for line in metrics]
  for line in lines:
    if "accuracy" in line:
      # Rounded, or 1 - 0.99999994 would stretch the axis over six decades.
      line["error"] = round(100 * (1 - line["accuracy"]), 4)
  names = {name: None for line in lines for name in line}
  losses = [name for name in names if name.endswith("loss")]
  panels = {"error (%)": ["error"], "loss": losses}
  panels = {
    title: kept
    for title, names in panels.items()
    if (kept := [n for n in names if _has(lines, n)])
  }
  if not panels:
    raise ValueError("no line of the metrics has a finite accuracy or loss.")
  best = _best(lines, next(iter(panels.values()))[0])
  sheet = _sheet(4.6 * len(panels), 3.4)
  for panel, (title, names) in zip(
    sheet.subplots(1, len(panels), squeeze=False)[0],
    panels.items(),
    strict=True,
  ):
    for name, colour in zip(names, _COLOURS, strict=False):
      _curves(panel, lines, name, colour)
    _scale(panel, lines, names)
    panel.set(xlabel="step", ylabel=title)
    panel.margins(x=0.02)
    panel.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.grid(color="#dddddd", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    if best:
      step, what = best
      label = f"best validation: {what}, step {step:,}"
      panel.axvline(step, color=_QUIET, linestyle=":", label=label, zorder=1)
    panel.legend(fontsize=7, frameon=False, loc="upper right")
  return _save(sheet, path)


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
    images: [N H W C], up to some fifty examples (see `choose_examples`).
    reconstructions: [N H W C].
    labels: [N].
    predictions: [N].
    path: file to write.
    class_names: what to call the classes instead of their numbers.

  Returns:
    The path written.

  Raises:
    ValueError: if images have another number of channels or are integers.
  """
  labels, predictions = np.asarray(labels), np.asarray(predictions)
  pairs = np.stack([_rgb(images), _rgb(reconstructions)], axis=1)
  height, width = pairs.shape[2:4]
  inches = _PAIR / max(height, width)
  columns = max(1, min(8, len(labels), int(11 / (2 * width * inches))))
  # Mistakes begin on a row of their own.
  right = np.flatnonzero(labels == predictions)
  wrong = np.flatnonzero(labels != predictions)
  rows = [
    group[start : start + columns]
    for group in (right, wrong)
    for start in range(0, len(group), columns)
  ]
  sheet = _sheet(
    max(3.2, columns * (2 * width * inches + 0.14)),
    max(1, len(rows)) * (height * inches + 0.26) + 0.3,
  )
  grid = sheet.subplots(max(1, len(rows)), columns, squeeze=False)
  for panel in grid.flat:
    panel.set_axis_off()
  for row, members in zip(grid, rows, strict=False):
    for panel, n in zip(row, members, strict=False):
      mistake = labels[n] != predictions[n]
      names = [labels[n], predictions[n]] if mistake else [labels[n]]
      if class_names is not None:
        names = [class_names[name] for name in names]
      panel.imshow(_mosaic(pairs[None, n]))
      panel.set_title(
        " \N{RIGHTWARDS ARROW} ".join(map(str, names)),
        color=_MISTAKE if mistake else _QUIET,
        fontsize=7 if class_names is None else 6,
        pad=2.5,
      )
      if mistake:
        panel.set_axis_on()
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set(color=_MISTAKE, linewidth=1.5)
  sheet.suptitle(
    "input | reconstruction (label \N{RIGHTWARDS ARROW} prediction in red)",
    fontsize=8,
  )
  return _save(sheet, path)


def choose_examples(
  labels: ArrayLike,
  predictions: ArrayLike,
  num_correct: int,
  num_mistakes: int,
) -> np.ndarray:
  """Chooses examples for `reconstructions`, spread over the classes.

  Takes the first example of every class, then the second of every class, and
  so on; the right ones come first.

  Args:
    labels: [N].
    predictions: [N].
    num_correct: how many rightly classified examples, where so many exist.
    num_mistakes: how many wrongly classified ones.

  Returns:
    Up to num_correct + num_mistakes indices.
  """
  labels, predictions = np.asarray(labels), np.asarray(predictions)
  chosen = []
  for keep, count in (
    (labels == predictions, num_correct),
    (labels != predictions, num_mistakes),
  ):
    members = np.flatnonzero(keep)
    members = members[np.argsort(labels[members], kind="stable")]
    classes = labels[members]
    ranks = np.arange(len(members)) - np.searchsorted(classes, classes)
    chosen.append(members[np.lexsort((classes, ranks))][:count])
  return np.concatenate(chosen)


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
    ValueError: if images have another number of channels or are integers.
  """
  tiles, offsets = _rgb(grid), np.asarray(offsets)
  num_panels, num_dims, num_offsets, height, width = tiles.shape[:5]
  columns = min(5, num_panels)
  rows = math.ceil(num_panels / columns)
  inches = _TILE / min(height, width)
  sheet = _sheet(
    columns * (num_offsets * width * inches + 0.45),
    rows * (num_dims * height * inches + 0.65),
  )
  panels = sheet.subplots(rows, columns, squeeze=False)
  for panel in panels.flat[num_panels:]:
    panel.set_axis_off()
  for panel, rows_of_tiles, label in zip(
    panels.flat, tiles, labels, strict=False
  ):
    panel.imshow(_mosaic(rows_of_tiles))
    panel.set_title(str(label), fontsize=9, pad=4)
    panel.set_xticks(
      np.arange(num_offsets) * (width + 1) + (width - 1) / 2,
      [f"{offset:.2f}" if offset else "0" for offset in offsets],
    )
    panel.set_yticks(
      np.arange(num_dims) * (height + 1) + (height - 1) / 2, range(num_dims)
    )
    panel.tick_params(length=0, labelsize=6, pad=2)
    panel.spines[:].set_visible(False)
  sheet.supxlabel("offset", fontsize=8)
  sheet.supylabel("dimension", fontsize=8)
  return _save(sheet, path)


def _sheet(width: float, height: float) -> figure.Figure:
  return figure.Figure(
    (width, height), dpi=_DPI, facecolor="white", layout="constrained"
  )


def _save(sheet: figure.Figure, path: str | os.PathLike) -> pathlib.Path:
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  # Without the library's version equal figures are equal files.
  sheet.savefig(path, format="png", metadata={"Software": None})
  return path


def _rgb(images: ArrayLike) -> np.ndarray:
  """[... H W C] with 1, 2 or 3 channels to [... H W' 3]."""
  images = np.asarray(images)
  if np.issubdtype(images.dtype, np.integer):
    raise ValueError(
      f"images must be floats in [0, 1], got {images.dtype}; divide by 255."
    )
  images = np.clip(images.astype(np.float32), 0, 1)
  channels = images.shape[-1]
  if channels == 2:
    images = np.concatenate([images[..., :1], images[..., 1:]], axis=-2)
  elif channels not in (1, 3):
    raise ValueError(f"images must have 1, 2 or 3 channels, got {channels}.")
  return np.broadcast_to(images, (*images.shape[:-1], 3))


def _mosaic(tiles: np.ndarray) -> np.ndarray:
  """[R S H W 3] to one image, with a white pixel between its tiles."""
  tiles = np.pad(
    tiles, [(0, 0), (0, 0), (0, 1), (0, 1), (0, 0)], constant_values=1
  )
  rows, columns, height, width, _ = tiles.shape
  image = tiles.swapaxes(1, 2).reshape(rows * height, columns * width, 3)
  return image[:-1, :-1]


def _series(
  lines: Sequence[Mapping[str, object]], split: str, name: str
) -> list[tuple[int, float]]:
  return [
    (line["step"], line[name])
    for line in lines
    if line.get("split") == split
    and isinstance(line.get(name), (int, float))
    and math.isfinite(line[name])
  ]


def _has(lines: Sequence[Mapping[str, object]], name: str) -> bool:
  return any(_series(lines, split, name) for split in ("train", "validation"))


def _best(
  lines: Sequence[Mapping[str, object]], name: str
) -> tuple[int, str] | None:
  """The first validation with the least of `name`: its step and its words."""
  series = _series(lines, "validation", name)
  if not series:
    return None
  step, value = min(series, key=lambda pair: pair[1])
  return step, f"{value:.2f}%" if name == "error" else f"{name} {value:.4g}"


def _curves(
  panel: axes.Axes,
  lines: Sequence[Mapping[str, object]],
  name: str,
  colour: str,
) -> None:
  what = "" if name == "error" else f"{name.replace('_', ' ')}, "
  for split, style in (
    ("train", dict(linewidth=0.9, alpha=0.55)),
    ("validation", dict(linewidth=1.6, markersize=3.5)),
  ):
    series = _series(lines, split, name)
    if series:
      marker = "o" if split == "validation" or len(series) == 1 else None
      label = f"{what}{split}"
      panel.plot(
        *zip(*series, strict=True),
        color=colour,
        marker=marker,
        label=label,
        **style,
      )


def _scale(
  panel: axes.Axes, lines: Sequence[Mapping[str, object]], names: Sequence[str]
) -> None:
  """Makes the y axis logarithmic, with room for zero where it occurs."""
  values = [
    value
    for name in names
    for split in ("train", "validation")
    for _, value in _series(lines, split, name)
  ]
  positive = [value for value in values if value > 0]
  if min(values) < 0 or not positive:
    return
  if min(values) > 0:
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
  else:
    panel.set_yscale("symlog", linthresh=min(positive), linscale=0.3)
    panel.set_ylim(bottom=0)
  panel.yaxis.set_major_formatter("{x:g}")
  panel.yaxis.set_minor_formatter(ticker.NullFormatter())
