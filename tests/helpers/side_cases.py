"""A routing that finds the side of the dot in an image, for tests of suites."""

from types import SimpleNamespace

import golden_cases
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from capjax import data
from kernels import routing

SIDE = 9
# Places of a dot: right, below, left, above. A quarter turn gives the next one.
PLACES = ((4, 7), (7, 4), (4, 1), (1, 4))


class Sides(nnx.Module):
  """A network of two parts and four classes, which are the sides.

  The parent of the first part is the side with the dot. The parent of the other
  part is always the first side. The pose of each class is the brightness at its
  place, and a constant.
  """

  primary = SimpleNamespace(num_types=2)

  def __call__(self, images):
    ink = jax.lax.reduce_window(
      images[..., 0], 0.0, jax.lax.add, (1, 3, 3), (1, 1, 1), "SAME"
    )
    ink = jnp.stack([ink[:, *place] for place in PLACES], axis=1)
    first = jnp.zeros_like(ink).at[:, 0].set(1)
    side = jax.nn.one_hot(jnp.argmax(ink, axis=1), len(PLACES))
    poses = jnp.stack([ink, jnp.ones_like(ink)], axis=-1)
    return routing.RoutingOutput(poses, ink, jnp.stack([side, first], axis=1))


def dots(count=8, *, turns=0):
  """Images of one dot, equally often on each side; the side is the label.

  With `turns`, the label is the side after so many clockwise quarter turns.
  """
  sides = np.arange(count) % len(PLACES)
  images = np.zeros((count, SIDE, SIDE, 1), np.uint8)
  for image, side in zip(images, sides, strict=True):
    image[PLACES[side]] = 255
  labels = (sides + turns) % len(PLACES)
  return data.Dataset(images, labels.astype(np.int32), len(PLACES), {})


def trained_on(model, test, **fields):
  """A `models.Trained` of a model with class capsules."""
  found = golden_cases.classifier(test, model)
  task = found.task._replace(
    scores=lambda model, images: model(images).activations
  )
  return found._replace(task=task, **fields)
