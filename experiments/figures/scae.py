"""Figures of stacked capsule autoencoders; conventions as in `grids`."""

import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from etils import epy
from numpy.typing import ArrayLike

from . import energy_models, grids

with epy.lazy_imports():  # these take seconds, and --help needs none
  import matplotlib
  from matplotlib import ticker

_MOST_NAMES = 30  # of classes beside an axis


def templates(images: ArrayLike, path: str | os.PathLike) -> pathlib.Path:
  """Plots templates [M U V C] side by side."""
  title = f"templates of {len(images)} parts, intensities before mixing"
  return energy_models.tiles(images, path, columns=10, title=title)


def reconstructions(
  images: ArrayLike,
  targets: ArrayLike,
  by_parts: ArrayLike,
  coefficients: ArrayLike,
  by_objects: ArrayLike,
  path: str | os.PathLike,
) -> pathlib.Path:
  """Plots images, and below them reconstructions from parts and from objects.

  Args:
    images: [N H W C].
    targets: [N H W C], the images that parts explain.
    by_parts: [N H W C].
    coefficients: [N M+1 H W 1 or C], of the parts and the background; plotted
      with a colour for each part and the brightness of the reconstruction.
    by_objects: [N H W C].
    path: file to write.
  """
  coefficients = np.mean(coefficients, axis=-1)[:, :-1]
  num_parts = coefficients.shape[1]
  hues = matplotlib.colormaps["hsv"](np.arange(num_parts) / num_parts)[:, :3]
  brightness = np.mean(by_parts, axis=-1, keepdims=True)
  colored = np.einsum("nmhw,mc->nhwc", coefficients, hues) * brightness
  largest = np.max(colored, axis=(1, 2, 3), keepdims=True)
  rows = {"image": images, "target": targets, "parts": by_parts}
  if np.array_equal(images, targets):
    del rows["target"]
  rows |= {"which part": colored / np.maximum(largest, 1e-6)}
  rows |= {"objects": by_objects}
  sheet = grids.new_sheet((0.5 * len(images) + 0.6, 0.5 * len(rows)))
  places = sheet.subplots(len(rows), 1, squeeze=False)[:, 0]
  for place, (name, pictures) in zip(places, rows.items(), strict=True):
    pictures = np.clip(grids.as_rgb(pictures), 0, 1)
    place.imshow(grids.mosaic(pictures[None]), interpolation="nearest")
    place.set(xticks=[], yticks=[], frame_on=False)
    place.set_ylabel(name, fontsize=7, rotation=0, ha="right", va="center")
  return grids.save(sheet, path)


def presences(
  means: Mapping[str, ArrayLike],
  names: Sequence[str],
  path: str | os.PathLike,
) -> pathlib.Path:
  """Plots the mean presence of each object in images of each class.

  Args:
    means: [classes K], by the kind of presence.
    names: [classes], of the classes.
    path: file to write.
  """
  count = np.shape(next(iter(means.values())))[1]
  sheet = grids.new_sheet((0.2 * count + 1.5, 5))
  places = sheet.subplots(len(means), 1, squeeze=False)[:, 0]
  for place, (kind, values) in zip(places, means.items(), strict=True):
    picture = place.imshow(values, aspect="auto", cmap="viridis", vmin=0)
    place.set(xlabel="object", ylabel="class", title=f"{kind} presence")
    place.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    if len(names) <= _MOST_NAMES:
      place.set_yticks(range(len(names)), names, size=7, parse_math=False)
    sheet.colorbar(picture, ax=place)
  return grids.save(sheet, path)


def embedding(
  points: ArrayLike,
  labels: ArrayLike,
  names: Sequence[str],
  path: str | os.PathLike,
) -> pathlib.Path:
  """Plots points [N 2] in the colours of their labels [N], with their names."""
  points, labels = np.asarray(points), np.asarray(labels)
  sheet = grids.new_sheet((5, 5))
  place = sheet.subplots()
  handles = {}
  for number, label in enumerate(np.unique(labels)):
    x, y = points[labels == label].T
    color = f"C{number % 10}"
    handles[names[label]] = place.scatter(x, y, s=4, color=color)
  place.set(xticks=[], yticks=[], frame_on=False)
  # Given by hand: labels that start with "_" are left out otherwise.
  legend = place.legend(
    handles.values(), handles, fontsize=7, markerscale=2, frameon=False
  )
  for text in legend.get_texts():
    text.set_parse_math(False)  # names may hold dollar signs
  return grids.save(sheet, path)
