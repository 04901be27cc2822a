"""The networks that the capsule papers compare with."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from capjax import layers


class CapsNetBaseline(nnx.Module):
  """The convolutional baseline on MNIST of Sabour et al. (2017), 35.4M weights.

  Three 5x5 convolutions of stride 1 with ReLU, two dense layers, dropout, and
  logits.
  """

  def __init__(
    self,
    image_shape: Sequence[int] = (28, 28, 1),
    num_classes: int = 10,
    *,
    conv_features: Sequence[int] = (256, 256, 128),
    dense_features: Sequence[int] = (328, 192),
    dropout: float = 0.5,
    rngs: nnx.Rngs,
  ):
    """Draws the parameters.

    Args:
      image_shape: height, width and channels of the images.
      num_classes: J.
      conv_features: channels of the convolutions.
      dense_features: widths of the hidden dense layers.
      dropout: chance that a unit of the last hidden layer is dropped; the
        paper names no figure.
      rngs: its `params` stream draws the parameters.
    """
    height, width, channels = image_shape
    sizes = (channels, *conv_features)
    self.convs = nnx.List(
      layers.Conv(*pair, 5, padding="SAME", rngs=rngs)
      for pair in zip(sizes, sizes[1:], strict=False)
    )
    sizes = (height * width * sizes[-1], *dense_features, num_classes)
    self.dense = nnx.List(
      nnx.Linear(*pair, rngs=rngs)
      for pair in zip(sizes, sizes[1:], strict=False)
    )
    self.dropout = dropout

  def __call__(
    self, images: Float[Array, "B H W C"], key: jax.Array | None = None
  ) -> Float[Array, "B J"]:
    """Gives logits; with a `key` hidden units are dropped, as in training."""
    x = images
    for conv in self.convs:
      x = jax.nn.relu(conv(x))
    x = x.reshape(len(x), -1)
    for layer in self.dense[:-1]:
      x = jax.nn.relu(layer(x))
    if key is not None:
      kept = jax.random.bernoulli(key, 1 - self.dropout, x.shape)
      x = jnp.where(kept, x / (1 - self.dropout), 0.0)
    return self.dense[-1](x)
