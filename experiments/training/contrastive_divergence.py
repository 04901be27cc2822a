"""The start, learning rate, constraints and restart of energy models."""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from capjax import data

from . import train_step

# Range of minus half the precision of Gaussian units, as in the authors' code.
_QUADRATIC = (-50.0, -0.005)
# Limits of the images for statistics of the pixels: how many, and how many
# numbers in them (2 GiB).
_MOST_IMAGES, _MOST_NUMBERS = 100_000, 2**29


def first_intensities(
  images: np.ndarray | data.StoredImages,
) -> Float[Array, "N H W C"]:
  """Intensities of the first training images, for statistics of the pixels.

  Args:
    images: uint8 [M H W C]; also stored ones, of which only these are read.

  Returns:
    At most 100,000 images and, but for a single one, at most 2 GiB of them.
  """
  size = math.prod(images.shape[1:])
  count = min(_MOST_IMAGES, max(1, _MOST_NUMBERS // size))
  return data.as_intensities(jnp.asarray(images[:count]))


def falling_rate(
  rate: float,
  *,
  factor: float,
  every: int,
  slower_at: Sequence[int] = (),
  slower_by: float = 1.0,
) -> Callable[[jax.Array], jax.Array]:
  """A learning rate that falls in steps; the decay can become slower.

  Args:
    rate: the learning rate at the start.
    factor: multiplies the learning rate every `every` steps.
    every: number of steps between changes.
    slower_at: steps at which `factor` is multiplied by `slower_by`, up to 1.
    slower_by: see `slower_at`.

  Returns:
    The rate as a function of the step.
  """

  def schedule(step):
    value, decay, start = rate, factor, 0
    for end in [*sorted(slower_at), jnp.iinfo(jnp.int32).max]:
      value *= decay ** (jnp.clip(step, start, end) // every - start // every)
      start, decay = end, min(1.0, decay * slower_by)
    return value

  return schedule


def keep_proper(names: Sequence[str]) -> optax.GradientTransformation:
  """Limits the precisions of Gaussian units to a range of positive numbers.

  Args:
    names: parameters [2 ...] of Gaussian units; the second entry is minus half
      the precision.
  """

  def bound(path, change, value):
    if not any(getattr(part, "key", None) in names for part in path):
      return change
    quadratic = jnp.clip(value[1] + change[1], *_QUADRATIC)
    return change.at[1].set(quadratic - value[1])

  return optax.stateless(
    lambda updates, parameters: jax.tree_util.tree_map_with_path(
      bound, updates, parameters
    )
  )


def restart(state: train_step.TrainState) -> train_step.TrainState:
  """Restarts the persistent chains of a model, with new random numbers."""
  fantasy = getattr(state.model, "fantasy", None)
  if fantasy is not None:
    fantasy.set_value(fantasy.get_value()._replace(age=jnp.float32(0)))
  # A third key, different from the two that an update splits off.
  *_, key = jax.random.split(state.key, 3)
  return state._replace(key=key)
