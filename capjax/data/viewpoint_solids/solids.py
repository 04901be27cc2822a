"""Viewpoint solids: rendered figures with the structure of smallNORB.

Five categories of ten figures, made of simple solids with random proportions,
in 9 elevations, 18 azimuths and 6 lightings, seen by two eyes; five figures of
each are for training, the other five for testing. Results on these images are
not results on smallNORB, whose toys are far more detailed.
"""

import functools
import itertools
import logging
import os
import pathlib
import time
import zipfile
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt8

from capjax.data.dataset import Dataset
from capjax.data.viewpoint_solids import raytracing, toys
from capjax.kernels import checks

NUM_AZIMUTHS, NUM_ELEVATIONS, NUM_LIGHTINGS = 18, 9, 6
_INSTANCES = {"train": range(5), "test": range(5, 10)}
_SIZE = 48
# Increment with every change of the images: files of other versions are
# ignored.
_VERSION = 1
# Checksum of a few downsampled images; a failing test prints the new value.
_CHECKSUM = 426015239
_TELL_EVERY = 10.0  # seconds between lines on the progress of rendering
_log = logging.getLogger(__name__)


def lights() -> raytracing.Lights:
  """Makes the six lightings, from all sides and more or less diffuse."""
  azimuths = np.radians([-150, -30, 60, -90, 150, -60])
  elevations = np.radians([50, 55, 60, 65, 50, 75])
  across, up = np.cos(elevations), np.sin(elevations)
  directions = np.stack(
    [across * np.cos(azimuths), across * np.sin(azimuths), up], axis=-1
  )
  return raytracing.Lights(
    directions.astype(np.float32),
    levels=np.array([0.88, 0.78, 0.68, 0.9, 0.82, 0.72], np.float32),
    ambient=np.array([0.45, 0.4, 0.5, 0.6, 0.45, 0.55], np.float32),
  )


def generate(
  split: str,
  *,
  seed: int = 0,
  size: int = _SIZE,
  azimuths: Sequence[int] = range(NUM_AZIMUTHS),
  elevations: Sequence[int] = range(NUM_ELEVATIONS),
) -> Dataset:
  """Renders a split, or some of its views.

  Args:
    split: "train" or "test".
    seed: determines the figures and the order of the examples.
    size: rows and columns of the images.
    azimuths: in steps of 20 degrees, each in 0..17.
    elevations: in steps of 5 degrees from 30 degrees on, each in 0..8.

  Returns:
    24,300 examples with all views, in random order; the factors are
    named as those of smallNORB. Devices may round a pixel differently.

  Raises:
    ValueError: an argument is out of range.
  """
  if split not in _INSTANCES:
    raise ValueError(f"unknown split {split!r}; use {' or '.join(_INSTANCES)}")
  for name, values, count in (
    ("azimuths", azimuths, NUM_AZIMUTHS),
    ("elevations", elevations, NUM_ELEVATIONS),
  ):
    if not len(values) or not set(values) <= set(range(count)):
      raise ValueError(f"{name}={list(values)}; pass some of 0..{count - 1}.")
  checks.counts(size=size)
  categories, instances = range(len(toys.CATEGORIES)), _INSTANCES[split]
  turns = np.float32(np.radians(20.0 * np.array(azimuths)))
  heights = np.float32(np.radians(30.0 + 5.0 * np.array(elevations)))
  figures = list(itertools.product(categories, instances))
  images, told = [], time.monotonic()
  for done, (category, n) in enumerate(figures):
    if time.monotonic() - told > _TELL_EVERY:
      told = time.monotonic()
      _log.warning("rendered %d of %d figures", done, len(figures))
    figure = toys.figure(category, n, seed=seed)
    images.append(np.asarray(_views(figure, turns, heights, size=size)))
  grid = np.meshgrid(
    categories,
    instances,
    azimuths,
    elevations,
    range(NUM_LIGHTINGS),
    indexing="ij",
  )
  labels, *factors = (np.ravel(values).astype(np.int32) for values in grid)
  # The first examples serve for validation, so they must be of all kinds.
  order = np.random.default_rng([seed, instances[0]]).permutation(len(labels))
  names = ("instance", "azimuth", "elevation", "lighting")
  return Dataset(
    np.concatenate(images).reshape(-1, size, size, 2)[order],
    labels[order],
    len(categories),
    {
      f"label_{name}": values[order]
      for name, values in zip(names, factors, strict=True)
    },
  )


def load(split: str, folder: str | os.PathLike[str] | None = None) -> Dataset:
  """Loads a split, rendered unless a file in `folder` has it already.

  Args:
    split: "train" or "test".
    folder: the folder of the files, one for each split; created if it does not
      exist. Without it, or if it is not writable, the split is rendered each
      time.

  Returns:
    As `generate`.
  """
  if folder is None:
    _log.warning(
      "rendering the %s split of viewpoint solids, about half a minute; give a "
      "data_dir to keep it",
      split,
    )
    return generate(split)
  path = pathlib.Path(folder) / f"{split}-v{_VERSION}.npz"
  if path.is_file():
    try:
      return _read(path)
    except (
      OSError,
      ValueError,
      KeyError,
      EOFError,
      zipfile.BadZipFile,
    ) as error:
      _log.warning("%s is damaged (%s); rendering it again", path, error)
  else:
    _log.warning("rendering %s, about half a minute, once", path)
  dataset = generate(split)
  try:
    _write(path, dataset)
  except OSError as error:
    _log.warning("cannot keep %s (%s); it is rendered each time", path, error)
  return dataset


@functools.partial(jax.jit, static_argnames="size")
def _views(
  figure, azimuths, elevations, *, size
) -> UInt8[Array, "A E L H W 2"]:
  def turned(azimuth):
    seen = raytracing.render(
      raytracing.turn(figure, azimuth), lights(), elevations, size=size
    )
    return jnp.round(255 * seen).astype(jnp.uint8)

  return jax.lax.map(turned, azimuths)


def _read(path: pathlib.Path) -> Dataset:
  # Opened here: np.load does not close a file that is damaged.
  with path.open("rb") as file, np.load(file) as arrays:
    images, labels = arrays["images"], arrays["labels"]
    factors = {n: arrays[n] for n in arrays.files if n.startswith("label_")}
  lengths = {len(values) for values in (images, labels, *factors.values())}
  if images.shape[1:] != (_SIZE, _SIZE, 2) or len(lengths) != 1:
    raise ValueError("its arrays are of other shapes")
  return Dataset(images, labels, len(toys.CATEGORIES), factors)


def _write(path: pathlib.Path, dataset: Dataset) -> None:
  """Writes a file atomically, also while other processes do the same."""
  path.parent.mkdir(parents=True, exist_ok=True)
  partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
  try:
    with partial.open("wb") as file:
      arrays: dict[str, Any] = {
        "images": dataset.images,
        "labels": dataset.labels,
        **dataset.factors,
      }
      np.savez(file, **arrays)
    partial.replace(path)
  finally:
    partial.unlink(missing_ok=True)
