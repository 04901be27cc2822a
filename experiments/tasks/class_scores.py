"""Scores of classes, of networks with capsules and of those without."""

import jax
import optax
from flax import nnx

from capjax.data.transforms.preprocessing import Preprocessing


def scores(
  model: nnx.Module, images: jax.Array, *, steps: Preprocessing
) -> jax.Array:
  """Scores [B J] of the classes: activations of capsules, or logits.

  Args:
    model: the network.
    images: [B H W C] in [0, 1], as `Task.prepare` returns them.
    steps: from an image to the input of the network.
  """
  output = model(jax.vmap(steps.normalise)(images))
  return getattr(output, "activations", output)


def cross_entropy(
  model: nnx.Module,
  images: jax.Array,
  labels: jax.Array,
  *,
  steps: Preprocessing,
) -> jax.Array:
  """The cross-entropy [B] of the scores, for attacks on any network.

  Capsules are trained with the margin or spread loss, whose gradient is exactly
  0 where the margins are kept: an attack that follows it leaves those images
  alone and makes capsules look robust.

  Args:
    model: the network.
    images: [B H W C] in [0, 1], as `Task.prepare` returns them.
    labels: [B], the classes.
    steps: from an image to the input of the network.
  """
  return optax.softmax_cross_entropy_with_integer_labels(
    scores(model, images, steps=steps), labels
  )
