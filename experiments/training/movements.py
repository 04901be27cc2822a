"""Moved images and their movements, the inputs of transforming models."""

from typing import NamedTuple

import jax


class Moved(NamedTuple):
  """An image that has been moved, and its transformations.

  Attributes:
    image: [H W C], the moved image.
    movement: [3 3], the transformation that the model is given, in pixels about
      the centre.
    place: [3 3], the transformation that was applied to the image; the model is
      not given it.
  """

  image: jax.Array
  movement: jax.Array
  place: jax.Array


def as_transforms(model: object, movements: jax.Array) -> jax.Array:
  """Movements [... 3 3] in the form of a model's input: [... 2] for shifts."""
  return movements[..., :2, 2] if model.pose == "shift" else movements
