"""Figures of a run: pure functions of arrays that each write one file.

Images are floats in [0, 1], the last axes H W C: grey (C = 1), colour (C = 3),
or a stereo pair (C = 2), which is plotted side by side. Other images raise a
ValueError. Every function makes the folder of its `path`, which ends in .png or
.pdf, and returns the path.
"""

import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epy
from numpy.typing import ArrayLike

with epy.lazy_imports():  # these take seconds, and --help needs none
  from matplotlib import axes, figure, ticker


RED, GREY = "#c8102e", "#555555"
_NATS = ("elbo", "objective", "log_prob")
_ERROR = "error"  # 1 - accuracy, in percent
_LONGEST = 8  # characters of a label under an image
WITHOUT_AXES = dict(xticks=[], yticks=[], frame_on=False)
_STYLES = {
  "train": dict(linewidth=0.9, alpha=0.55),
  "validation": dict(linewidth=1.6, marker="o", markersize=3.5),
}


def new_sheet(*arguments: Any, **options: Any) -> "figure.Figure":
  """A white figure, whose parts are laid out so that none overlap."""
  return figure.Figure(
    *arguments, dpi=150, facecolor="white", layout="constrained", **options
  )


def learning_curves(
  metrics: Sequence[Mapping[str, object]],
  path: str | os.PathLike,
  *,
  reported: int | None = None,
  chosen_by: str | None = None,
) -> pathlib.Path:
  """Plots errors, losses and the measure that chose the checkpoint, by step.

  Measures with the same unit share a panel: the error in percent, mean errors,
  and losses. A loss that falls below 0 has a panel of its own. So has the
  measure that chose the checkpoint, unless it is one of the others.

  Args:
    metrics: the lines of metrics.jsonl: each has `step` and `split`, and any of
      `accuracy`, `loss` and names that end in `_loss` or `_error`. Other
      entries, other splits and numbers that are not finite are left out.
    path: file to write.
    reported: the step of the checkpoint that is reported, which is marked.
    chosen_by: the validation measure by whose highest value it was chosen; None
      for the last checkpoint.

  Raises:
    ValueError: if there is nothing to plot.
  """
  curves = _curves(metrics, chosen_by)
  groups = _groups(curves)
  if not groups:
    raise ValueError("no line of the metrics has a finite accuracy or loss.")
  chosen = _ERROR if chosen_by == "accuracy" else chosen_by
  marked = next((x for x, names in groups.items() if chosen in names), None)
  marked = marked or next(iter(groups))
  sheet = new_sheet(figsize=(4.6 * len(groups), 3.8))
  grid = sheet.subplots(1, len(groups), squeeze=False)[0]
  for panel, (ylabel, names) in zip(grid, groups.items(), strict=True):
    for n, name in enumerate(names):
      for split, points in curves[name].items():
        style = dict(color=f"C{n}", clip_on=False, **_STYLES[split])
        if split == "train" and len(points) == 1:  # a line would not be seen
          style |= dict(marker="s", markersize=5, markerfacecolor="none")
        label = f"{name.replace('_', ' ')}, {split}"
        panel.plot(*zip(*points, strict=True), label=label, **style)
    if reported is not None:
      label = _mark(reported, chosen_by) if ylabel == marked else None
      panel.axvline(reported, color=GREY, linestyle=":", label=label)
    points = dict(curves.get(chosen, {}).get("validation", ()))
    if chosen in names and reported in points:
      ring = dict(
        color="none", markeredgecolor=RED, markersize=10, clip_on=False
      )
      panel.plot(reported, points[reported], marker="o", zorder=4, **ring)
    _scale(panel, [curves[name] for name in names])
    panel.set(xlabel="step", ylabel=ylabel)
    bare(panel)
    # Below each other: side by side, long names would leave the figure.
    panel.legend(loc=(0, 1.02), ncols=1, fontsize=7, frameon=False)
  return save(sheet, path)


def _mark(reported: int, chosen_by: str | None) -> str:
  """The label of the line at the reported checkpoint."""
  how = f"highest {chosen_by.replace('_', ' ')}" if chosen_by else "the last"
  return f"reported: step {reported:,}, {how}"


def _groups(curves: Mapping[str, Mapping]) -> dict[str, list[str]]:
  """The names of curves that share a panel, by the panel's label of y."""
  groups: dict[str, list[str]] = {}
  for name, splits in curves.items():
    values = [value for points in splits.values() for _, value in points]
    if name == _ERROR:
      label = "error (%)"
    elif name.endswith("_error"):
      label = (
        "mean reconstruction error" if "reconstruction" in name else "error"
      )
    elif name.endswith("loss") and min(values) >= 0:
      label = "loss"
    else:
      label = "training loss" if name == "loss" else name.replace("_", " ")
      label += " (nats)" if name in _NATS else ""
    groups.setdefault(label, []).append(name)
  return groups


def choose_examples(
  labels: ArrayLike, predictions: ArrayLike, num_correct: int, num_mistakes: int
) -> np.ndarray:
  """Chooses examples for `reconstructions`, spread over the classes.

  Takes the first example of every class, then the second of every class, and
  so on; right ones come first.

  Args:
    labels: [N].
    predictions: [N].
    num_correct: largest number of correctly classified examples.
    num_mistakes: largest number of wrongly classified examples.

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
) -> pathlib.Path:
  """Plots inputs next to their reconstructions, mistakes last and in red.

  Args:
    images: [N H W C], some fifty examples at most.
    reconstructions: [N H W C].
    labels: [N], numbers or names.
    predictions: [N].
    path: file to write.
  """
  labels, predictions = np.asarray(labels), np.asarray(predictions)
  pairs = np.stack([as_rgb(images), as_rgb(reconstructions)], axis=1)
  height, width = pairs.shape[2:4]
  columns = max(1, min(8 * height // width, len(labels)))
  right = labels == predictions
  # Mistakes start on a new row.
  rows = [
    members[start : start + columns]
    for members in (np.flatnonzero(right), np.flatnonzero(~right))
    for start in range(0, len(members), columns)
  ] or [[]]
  inches = columns * (1.24 * width / height + 0.14)
  sheet = new_sheet((max(3.6, inches), 0.88 * len(rows) + 0.3))
  grid = sheet.subplots(
    len(rows), columns, squeeze=False, subplot_kw=WITHOUT_AXES
  )
  for panels, members in zip(grid, rows, strict=True):
    for panel, n in zip(panels, members, strict=False):
      text, _ = caption(labels[n], predictions[n], right[n])
      show(panel, mosaic(pairs[None, n]), text, right[n])
  sheet.suptitle("input | reconstruction; red: label → prediction", fontsize=8)
  return save(sheet, path)


def perturbations(
  grid: ArrayLike, offsets: ArrayLike, labels: Sequence, path: str | os.PathLike
) -> pathlib.Path:
  """Plots the effect of each dimension of a class capsule (figure 4).

  Sabour et al. (2017).

  Args:
    grid: [K D S H W C], reconstructions of K examples with one of D dimensions
      shifted by one of S offsets.
    offsets: [S].
    labels: [K], titles of the panels.
    path: file to write.
  """
  examples = as_rgb(grid)
  num_panels, num_dims, num_offsets, height, width, _ = examples.shape
  columns = min(5, num_panels)
  rows = math.ceil(num_panels / columns)
  inches = 0.32 / min(height, width)
  size = (
    columns * (num_offsets * (width + 1) * inches + 0.3) + 0.2,
    rows * (num_dims * (height + 1) * inches + 0.45) + 0.2,
  )
  sheet = new_sheet(size)
  panels = sheet.subplots(rows, columns, squeeze=False).flat
  x_ticks = np.arange(num_offsets) * (width + 1) + (width - 1) / 2
  y_ticks = np.arange(num_dims) * (height + 1) + (height - 1) / 2
  for panel in panels[num_panels:]:
    panel.set_axis_off()
  for panel, tiles, label in zip(panels, examples, labels, strict=False):
    # The panels have the ratio of their images, but for a percent or two; where
    # it is enforced the layout may cut off the titles.
    panel.imshow(mosaic(tiles), aspect="auto")
    panel.set_title(str(label), fontsize=9, parse_math=False)
    panel.set_xticks(x_ticks, [f"{x:z.2f}" for x in np.asarray(offsets)])
    panel.set_yticks(y_ticks, range(num_dims))
    panel.tick_params(length=0, labelsize=6, pad=2)
    panel.spines[:].set_visible(False)
  sheet.supxlabel("offset of this dimension", fontsize=8)
  sheet.supylabel("dimension of the pose", fontsize=8)
  return save(sheet, path)


def _curves(
  metrics: Sequence[Mapping], chosen_by: str | None
) -> dict[str, dict[str, list]]:
  """Lists (step, value) by name, then split; the error is in percent."""
  curves = {}
  for line in metrics:
    for name, value in line.items():
      if not isinstance(value, int | float) or not math.isfinite(value):
        continue
      if name == "accuracy":
        # Round errors such as 1 - 0.99999994, which would stretch the axis.
        name, value = _ERROR, round(100 * (1 - value), 4)
      is_shown = name.endswith(("error", "loss")) or name == chosen_by
      if line["split"] in _STYLES and is_shown:
        points = curves.setdefault(name, {}).setdefault(line["split"], [])
        points.append((line["step"], value))
  return dict(sorted(curves.items(), key=lambda item: item[0] != _ERROR))


def _scale(panel: "axes.Axes", curves: Sequence[dict[str, list]]) -> None:
  """Sets scales; y is linear if values are negative or within a factor of 3.

  Else it is logarithmic, with a place for 0.
  """
  points = [p for splits in curves for s in splits.values() for p in s]
  steps, values = zip(*points, strict=True)
  panel.set_xlim(0, max(1, 1.02 * max(steps)))
  panel.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
  panel.xaxis.set_major_formatter("{x:,.0f}")
  if min(values) < 0 or max(values) < 3 * min(values):
    return
  floor = min((value for value in values if value), default=1) / 2
  top = 2 * max(floor, *values)
  low, high = (math.floor(math.log10(end)) for end in (floor, top))
  digits = (1, 2, 5) if high - low < 6 else (1,)
  ticks = np.outer(10.0 ** np.arange(low, high + 1), digits).ravel()
  panel.set_yscale("symlog", linthresh=floor, linscale=0.3)  # Linear below.
  panel.set_yticks([0, *ticks[ticks > floor]])
  panel.set_ylim(0 if 0 in values else floor, top)
  panel.yaxis.set_major_formatter("{x:g}")


def caption(label: object, prediction: object, right: bool) -> tuple[str, str]:
  """The caption of an image, and its colour: red for a mistake."""
  label, prediction = short(label), short(prediction)
  return (label, GREY) if right else (f"{label} → {prediction}", RED)


def short(label: object, longest: int = _LONGEST) -> str:
  """A label, shortened so that it does not overlap its neighbours."""
  text = str(label)
  return text if len(text) <= longest else f"{text[: longest - 1]}…"


def show(
  panel: "axes.Axes",
  image: np.ndarray,
  text: str,
  right: bool,
  *,
  size: float = 7,
) -> None:
  """Plots an image under its caption, framed in red if it is a mistake."""
  color = GREY if right else RED
  # Names of classes may hold dollar signs.
  panel.set_title(text, color=color, size=size, pad=3, parse_math=False)
  panel.imshow(image)
  panel.set_frame_on(not right)
  panel.spines[:].set(color=color, linewidth=1.5)


def bare(panel: "axes.Axes") -> None:
  """Shows only the lower and the left axis, and a faint grid."""
  panel.grid(color="#dddddd", linewidth=0.6)
  panel.set_axisbelow(True)
  panel.spines[["top", "right"]].set_visible(False)


def save(sheet: "figure.Figure", path: str | os.PathLike) -> pathlib.Path:
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  # Leave out the library's version, and the date of PDF files, so that equal
  # figures are equal files.
  unknown = "CreationDate" if path.suffix == ".pdf" else "Software"
  sheet.savefig(path, format=path.suffix[1:], metadata={unknown: None})
  return path


def as_rgb(images: ArrayLike) -> np.ndarray:
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


def mosaic(tiles: np.ndarray) -> np.ndarray:
  """Turns [R S H W 3] into one image with white lines between its tiles."""
  gaps = [(0, 0), (0, 0), (0, 1), (0, 1), (0, 0)]
  tiles = np.pad(tiles, gaps, constant_values=1)
  rows, columns, height, width, _ = tiles.shape
  image = tiles.swapaxes(1, 2).reshape(rows * height, columns * width, 3)
  return image[:-1, :-1]
