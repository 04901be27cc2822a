"""Scores of classes, for networks with and without capsules."""

import jax
from flax import nnx

from capjax.data.transforms.preprocessing import Preprocessing
from capjax.evaluation import attacks


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


def attack_loss(
  model: nnx.Module,
  images: jax.Array,
  labels: jax.Array,
  *,
  steps: Preprocessing,
) -> jax.Array:
  """The loss [B] that attacks on a network increase, from its scores.

  Args:
    model: the network.
    images: [B H W C] in [0, 1], as `Task.prepare` returns them.
    labels: [B], the classes.
    steps: from an image to the input of the network.
  """
  return attacks.log_odds_against(scores(model, images, steps=steps), labels)
