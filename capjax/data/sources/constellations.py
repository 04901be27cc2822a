"""Constellations: the corners of a few moved patterns, as points.

Kosiorek et al. (2019), section 3.1; numerical values are those of their code.
Axes: N points, K objects.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from capjax.data.dataset import Dataset
from capjax.kernels import checks

SQUARE = np.array([[3.0, 3.0], [1.0, 1.0], [3.0, 1.0], [1.0, 3.0]])
TRIANGLE = np.array([[1.0, 2.0], [3.0, 1.0], [3.0, 3.0]])
PATTERNS = (SQUARE, TRIANGLE, SQUARE)

_SCALES = (1.0, 4.0)
_LARGEST_ANGLE = np.pi / 2
_NUMBERS = {"train": (0, 12_000), "test": (12_000, 14_000)}
_SEED = 3571  # of all numbered constellations
_TRANSLATION = 24.0  # largest translation at scale 1; less for larger objects


class Constellation(NamedTuple):
  """The points of one image.

  Attributes:
    points: [N 2], in [-1, 1] without noise; 0 where they are absent.
    presence: [N], 1 or 0, the same for all points of an object.
    objects: [N] in 0..K-1, the object of each point, present or absent.
  """

  points: Float[Array, "N 2"]
  presence: Float[Array, " N"]
  objects: Int[Array, " N"]


def sample(
  key: PRNGKeyArray,
  *,
  patterns: Sequence[Float[np.ndarray, "_ 2"]] = PATTERNS,
  noise: float = 0.0,
  drop: float = 0.5,
) -> Constellation:
  """Samples one constellation.

  Each object is its pattern, scaled by U(1, 4), turned by U(-90, 90) degrees
  and moved by 24 U(0, 1)^2 / scale, or it is left out. The points are in random
  order.

  Args:
    key: random key.
    patterns: the corners of each object, in units of half the side of a square.
    noise: standard deviation of the noise that is added to each corner before
      the object is moved, in the unit of patterns (Nazabal et al., 2022).
    drop: the probability that an object is left out; all objects may be.

  Returns:
    See `Constellation`.

  Raises:
    ValueError: if `noise` is negative or not finite, `drop` is outside [0, 1],
      or there are no patterns.

  Differs from the authors' code: it rescales a block of 3,200 images by its
  least and greatest coordinate; ours are rescaled by the limits of coordinates
  without noise, which such blocks nearly reach, so that an image does not
  depend on others. Their noise is added to the points, not to the patterns.
  """
  checks.within(0.0, math.inf, noise=noise)
  checks.within(0.0, 1.0, drop=drop)
  if not len(patterns):
    raise ValueError("patterns is empty; give at least one.")
  sizes = [len(pattern) for pattern in patterns]
  objects = np.repeat(np.arange(len(patterns)), sizes)
  scale_key, turn_key, move_key, drop_key, noise_key, order_key = (
    jax.random.split(key, 6)
  )
  low, high = _SCALES
  count = (len(patterns),)
  scale = jax.random.uniform(scale_key, count, minval=low, maxval=high)
  angle = _LARGEST_ANGLE * jax.random.uniform(turn_key, count, minval=-1)
  room = _TRANSLATION / scale[:, None]
  move = room * jax.random.uniform(move_key, (len(patterns), 2))
  kept = jax.random.bernoulli(drop_key, 1 - drop, count)

  corners = jnp.asarray(np.concatenate(patterns), jnp.float32)
  corners += noise * jax.random.normal(noise_key, corners.shape)
  cos, sin = jnp.cos(angle)[objects], jnp.sin(angle)[objects]
  x, y = corners.T
  turned = jnp.stack([x * cos - y * sin, x * sin + y * cos], axis=-1)
  points = turned * scale[objects, None] + move[objects]
  middle, extent = _limits(patterns)
  presence = kept[objects].astype(jnp.float32)
  points = presence[:, None] * (points - middle) / extent
  order = jax.random.permutation(order_key, len(objects))
  return Constellation(
    points[order], presence[order], jnp.asarray(objects)[order]
  )


def numbered(number: Int[Array, ""], *, noise: float = 0.0) -> Constellation:
  """Returns the constellation with a given number, which never changes.

  Args:
    number: a label of the data set.
    noise: as for `sample`.

  Returns:
    See `Constellation`.
  """
  key = jax.random.fold_in(jax.random.key(_SEED), number)
  return sample(key, noise=noise)


def load(split: str) -> Dataset:
  """Numbers the constellations of a split.

  Args:
    split: "train" or "test".

  Returns:
    A data set whose labels are numbers for `numbered`, all different, of
    constellations with at least one object. Images are placeholders of one
    black pixel. The classes are the two patterns.

  Raises:
    ValueError: if the split is neither of the two.
  """
  if split not in _NUMBERS:
    raise ValueError(f"unknown split {split!r}; use {' or '.join(_NUMBERS)}")
  numbers = np.arange(*_NUMBERS[split], dtype=np.int32)
  presence = jax.jit(jax.vmap(lambda n: numbered(n).presence))(numbers)
  numbers = numbers[np.asarray(presence).any(axis=1)]
  pixels = np.zeros((len(numbers), 1, 1, 1), np.uint8)
  return Dataset(pixels, numbers, 2, {})


def _limits(patterns) -> tuple[float, float]:
  """Centre and half width of the range of coordinates without noise."""
  corners = np.concatenate(patterns)
  radius = np.hypot(*corners.T)
  middle_angle = np.arctan2(corners[:, 1], corners[:, 0])
  angles = middle_angle[:, None] + np.linspace(
    -_LARGEST_ANGLE, _LARGEST_ANGLE, 721
  )
  turned = radius[:, None] * np.stack([np.cos(angles), np.sin(angles)])
  scales = np.array(_SCALES)
  low = np.min(turned.min() * scales)
  high = np.max(turned.max() * scales + _TRANSLATION / scales)
  return float(high + low) / 2, float(high - low) / 2
