"""CapsNet on images larger than those of the paper: votes are not stored."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import capjax
from capjax import losses

_TYPES, _CLASSES, _POSE = 8, 10, 16


def _gradient(side, batch_size):
  """The compiled gradient of the loss, and its arguments."""
  model = capjax.CapsNet(
    (side, side, 1),
    _CLASSES,
    conv_features=4,
    num_types=_TYPES,
    pose_size=_POSE,
    decoder_features=[],
    rngs=nnx.Rngs(0),
  )
  graph, parameters, rest = nnx.split(model, nnx.Param, ...)

  def loss(parameters, images, labels):
    model = nnx.merge(graph, parameters, rest, copy=True)
    return losses.capsnet_loss(
      model, images, labels, reconstruction_weight=0.0
    )[0]

  images = np.random.default_rng(0).uniform(size=(batch_size, side, side, 1))
  labels = np.arange(batch_size) % _CLASSES
  arguments = parameters, jnp.asarray(images, jnp.float32), labels
  return jax.jit(jax.grad(loss)).lower(*arguments).compile(), arguments


@pytest.mark.parametrize("side", [64, 96])
@pytest.mark.long
def test_memory_of_an_update_does_not_grow_by_the_votes(side):
  few, arguments = _gradient(side, 16)
  many, _ = _gradient(side, 48)
  gradients = few(*arguments)
  assert all(np.any(x) for x in jax.tree.leaves(gradients))
  assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(gradients))
  num_parts = _TYPES * ((side - 15) // 2) ** 2
  votes = 4 * num_parts * _CLASSES * _POSE  # bytes of an image
  grown = [x.memory_analysis().temp_size_in_bytes for x in (few, many)]
  assert (grown[1] - grown[0]) / 32 < 0.75 * votes
