"""Figures of objects as shares of pixels; conventions as in `grids`."""

import os
import pathlib

import numpy as np
from etils import epy
from numpy.typing import ArrayLike

from . import energy_models, grids

with epy.lazy_imports():  # these take seconds, and --help needs none
  import matplotlib

_MOST = 6  # objects with a row of their own
_BOTH = 0.35  # grey of ink that belongs to none
_TRUE = (np.array([1.0, 0.2, 0.2]), np.array([0.2, 0.6, 1.0]))  # two objects


def object_masks(
  images: ArrayLike,
  reconstructions: ArrayLike,
  masks: ArrayLike,
  owners: ArrayLike,
  path: str | os.PathLike,
) -> pathlib.Path:
  """Plots images, reconstructions, and objects: true, found, and one by one.

  Objects have colours, with the brightness of the image; ink without an owner
  is grey. The objects with a row of their own are the six with most ink.

  Args:
    images: [N H W C] in [0, 1].
    reconstructions: [N H W C].
    masks: [N K H W], the share of each object in a pixel.
    owners: [N H W], the true object; -1 for none.
    path: file to write.
  """
  masks, owners = np.asarray(masks), np.asarray(owners)
  count, num_objects = masks.shape[:2]
  hues = matplotlib.colormaps["hsv"](np.arange(num_objects) / num_objects)
  brightness = np.mean(images, axis=-1, keepdims=True)
  true = np.where((owners == 0)[..., None], *_TRUE)
  true = np.where((owners < 0)[..., None], _BOTH, true)
  found = hues[np.argmax(masks, axis=1), :3]
  rows = {
    "image": grids.as_rgb(images),
    "reconstruction": grids.as_rgb(reconstructions),
    "true objects": true * brightness,
    "found objects": found * brightness,
  }
  won = masks * brightness[..., 0][:, None]
  for n in np.argsort(-won.sum(axis=(0, 2, 3)), kind="stable")[:_MOST]:
    rows[f"object {n + 1}"] = won[:, n, ..., None] * hues[n, :3]
  return energy_models.tiles(
    np.concatenate(list(rows.values())),
    path,
    columns=count,
    title="ink in the colours of the objects that it belongs to",
    row_labels=list(rows),
  )
