"""The networks that the capsule papers compare with."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Key

from capjax import layers, losses
from capjax.kernels import checks
from capjax.kernels.matching import selection
from capjax.layers import convolution


class CapsNetBaseline(nnx.Module):
  """The convolutional baselines of Sabour et al. (2017).

  Convolutions of stride 1 with ReLU, each followed by max pooling if there is
  any, dense layers with ReLU, dropout, and logits. The defaults are the network
  of their section 5, with 35.4M weights on MNIST; `multimnist_baseline` makes
  that of section 6. With `average`, which their networks do not have, the dense
  layers see the mean over positions.
  """

  def __init__(
    self,
    image_shape: Sequence[int] = (28, 28, 1),
    num_classes: int = 10,
    *,
    conv_features: Sequence[int] = (256, 256, 128),
    conv_kernels: int | Sequence[int] = 5,
    pool: int = 1,
    average: bool = False,
    dense_features: Sequence[int] = (328, 192),
    dropout: float = 0.5,
    dtype: jax.typing.DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      image_shape: height, width and channels of the images.
      num_classes: J.
      conv_features: channels of the convolutions, whose padding keeps the size.
      conv_kernels: taps along each axis: one number for all convolutions, or
        one for each.
      pool: side of the squares of max pooling after each convolution; rows and
        columns that do not fill a square are dropped. 1 for no pooling.
      average: whether the dense layers take the mean of the features over
        positions, so that all positions share their weights; else a layer has
        weights for each position.
      dense_features: widths of the hidden dense layers.
      dropout: probability that a unit of the last hidden layer is dropped; the
        paper does not give it.
      dtype: dtype of the products, as for `layers.dense.set_dtype`.
      rngs: its `params` stream initialises the parameters.

    Raises:
      ValueError: if the numbers of kernels and of convolutions differ, a number
        is below 1, `dropout` is outside of [0, 1), or pooling leaves nothing of
        the images.
    """
    checks.rngs(rngs)
    checks.sequences(conv_features=conv_features, dense_features=dense_features)
    if not 0 <= dropout < 1:
      raise ValueError(f"dropout is {dropout}; give a probability below 1.")
    if not np.iterable(conv_kernels):
      conv_kernels = (conv_kernels,) * len(conv_features)
    if len(conv_kernels) != len(conv_features):
      raise ValueError(
        f"{len(conv_features)} convolutions cannot have kernels of "
        f"{tuple(conv_kernels)}; give one size for each, or one for all."
      )
    checks.image_shape(image_shape)
    checks.counts(num_classes=num_classes, pool=pool)
    self.image_shape = tuple(image_shape)
    height, width, _ = image_shape
    for _ in conv_features:
      height, width = height // pool, width // pool
    if not min(height, width):
      raise checks.ImageShapeError(
        f"images of {image_shape[0]}x{image_shape[1]} are too small for "
        f"{len(conv_features)} poolings by {pool}; give larger images."
      )
    channels = (image_shape[2], *conv_features)
    self.convs = nnx.List(
      layers.Conv(*sizes, padding="SAME", rngs=rngs)
      for sizes in zip(channels[:-1], channels[1:], conv_kernels, strict=True)
    )
    num_places = 1 if average else height * width
    widths = (num_places * channels[-1], *dense_features, num_classes)
    self.dense = nnx.List(
      layers.Linear(*sizes, rngs=rngs)
      for sizes in zip(widths[:-1], widths[1:], strict=True)
    )
    self.pool = pool
    self.average = average
    self.dropout = nnx.Dropout(dropout)
    layers.dense.set_dtype(self, dtype)

  def __call__(
    self, images: Float[Array, "B H W C"], key: jax.Array | None = None
  ) -> Float[Array, "B J"]:
    """Returns logits; with a `key` hidden units are dropped, as in training.

    Args:
      images: any floating-point numbers, such as intensities in [0, 1] or
        standardised images.
      key: samples the units that are dropped; None for none.

    Raises:
      TypeError: if the images hold integers.
      ValueError: if the images have another shape, or values are known and not
        finite.
    """
    x = self.hidden(images)
    x = self.dropout(x, deterministic=key is None, rngs=key)
    return self.dense[-1](x)

  def hidden(self, images: Float[Array, "B H W C"]) -> Float[Array, "B F"]:
    """Returns the units of the last hidden layer, before dropout.

    Args:
      images: as for the network.

    Raises:
      TypeError: as for the network.
      ValueError: as for the network.
    """
    checks.images(images, self.image_shape)
    x = images
    for conv in self.convs:
      x = jax.nn.relu(conv(x))
      if self.pool > 1:
        x = nnx.max_pool(x, (self.pool,) * 2, strides=(self.pool,) * 2)
    x = x.astype(jnp.float32)
    x = jnp.mean(x, axis=(1, 2)) if self.average else x.reshape(len(x), -1)
    for layer in self.dense[:-1]:
      x = jax.nn.relu(layer(x))
    return x


def multimnist_baseline(
  image_shape: Sequence[int] = (28, 28, 1),
  num_classes: int = 10,
  *,
  conv_kernels: Sequence[int] = (9, 5),
  dtype: jax.typing.DTypeLike = jnp.float32,
  rngs: nnx.Rngs,
) -> CapsNetBaseline:
  """Makes the baseline on MultiMNIST of Sabour et al. (2017, section 6.2).

  Two convolutions of 512 and 256 channels, each followed by 2x2 max pooling, a
  dense layer of 1024, and logits of ten sigmoids, without dropout. The paper
  does not give the padding; only convolutions that keep the size of 36x36
  images have its 24.56M weights.

  Args:
    image_shape: height, width and channels of the images; (36, 36, 1) in the
      paper.
    num_classes: J.
    conv_kernels: taps along each axis of the two convolutions; the authors'
      code has 5 and 5.
    dtype: as for `CapsNetBaseline`.
    rngs: its `params` stream initialises the parameters.

  Returns:
    The network; train it with `losses.multilabel_loss`.

  Raises:
    ValueError: as for `CapsNetBaseline`.
  """
  return CapsNetBaseline(
    image_shape,
    num_classes,
    conv_features=(512, 256),
    conv_kernels=conv_kernels,
    pool=2,
    dense_features=(1024,),
    dropout=0.0,
    dtype=dtype,
    rngs=rngs,
  )


def smallnorb_baseline(
  image_shape: Sequence[int] = (28, 28, 1),
  num_classes: int = 10,
  *,
  features: tuple[int, int] = (32, 64),
  dense_features: int = 1024,
  dtype: jax.typing.DTypeLike = jnp.float32,
  rngs: nnx.Rngs,
) -> CapsNetBaseline:
  """Makes the baseline on smallNORB of Hinton et al. (2018, section 5).

  Two convolutions of 32 and 64 channels, 5x5, each followed by 2x2 max pooling,
  a dense layer of 1024 with dropout, and logits: 4.2M weights, as the paper
  says, if the convolutions keep the size.

  Args:
    image_shape: height, width and channels of the images; (32, 32, 2) in the
      paper.
    num_classes: J; 5 in the paper.
    features: channels of the two convolutions.
    dense_features: units of the dense layer.
    dtype: as for `CapsNetBaseline`.
    rngs: its `params` stream initialises the parameters.

  Raises:
    ValueError: as for `CapsNetBaseline`.
  """
  return CapsNetBaseline(
    image_shape,
    num_classes,
    conv_features=features,
    pool=2,
    dense_features=(dense_features,),
    dtype=dtype,
    rngs=rngs,
  )


class ConvVAE(nnx.Module):
  """The variational auto-encoder compared with capsule RBMs (Li and Zhu, 2019).

  Two convolutions of stride 2 down to the mean and the variance of Gaussian
  latents, and two up to the log odds of Bernoulli pixels. The paper gives the
  number of layers and of latents (40 for MNIST, 20 for Fashion-MNIST), not the
  widths.
  """

  def __init__(
    self,
    image_shape: Sequence[int] = (28, 28, 1),
    *,
    num_latents: int = 40,
    features: tuple[int, int] = (32, 64),
    pixel_scale: float | None = None,
    dtype: jax.typing.DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      image_shape: height, width and channels. If a side is not a multiple of 4,
        a larger image is decoded and cropped.
      num_latents: L.
      features: channels of the two convolutions.
      pixel_scale: standard deviation of Gaussian pixels about the same means;
        None for Bernoulli pixels, as in the paper.
      dtype: dtype of the products, as for `layers.dense.set_dtype`.
      rngs: its `params` stream initialises the parameters.

    Raises:
      ValueError: if a number is below 1, or `pixel_scale` is not above 0.
    """
    checks.rngs(rngs)
    if pixel_scale is not None:
      checks.positive(pixel_scale=pixel_scale)
    checks.image_shape(image_shape)
    checks.counts(num_latents=num_latents)
    self.image_shape = tuple(image_shape)
    height, width, channels = image_shape
    self.pixel_scale = pixel_scale
    checks.sequences(features=features)
    if len(features) != 2:
      raise ValueError(f"features is {features}; give two numbers.")
    first, second = features
    self.squares = (math.ceil(height / 4), math.ceil(width / 4), second)
    size = math.prod(self.squares)
    down: dict[str, Any] = dict(stride=2, padding="SAME", rngs=rngs)
    self.down = nnx.List(
      [
        layers.Conv(channels, first, 3, **down),
        layers.Conv(first, second, 3, **down),
      ]
    )
    self.code = layers.Linear(size, 2 * num_latents, rngs=rngs)
    self.decode_code = layers.Linear(num_latents, size, rngs=rngs)
    self.up = nnx.List(
      [
        layers.Conv(second, 4 * first, 3, padding="SAME", rngs=rngs),
        layers.Conv(first, 4 * channels, 3, padding="SAME", rngs=rngs),
      ]
    )
    layers.dense.set_dtype(self, dtype)

  def encode(
    self, images: Float[Array, "B H W C"]
  ) -> tuple[Float[Array, "B L"], Float[Array, "B L"]]:
    """Computes means and log variances of the latents of images.

    Args:
      images: in [0, 1]; any values if pixels are Gaussian.

    Raises:
      TypeError: if the images hold integers.
      ValueError: if the images have another shape, or, where values are known
        (not under jit), values out of range.
    """
    checks.images(
      images, self.image_shape, intensities=self.pixel_scale is None
    )
    x = images
    for conv in self.down:
      x = jax.nn.relu(conv(x))
    x = x.reshape(len(x), -1).astype(jnp.float32)
    means, log_variances = jnp.split(self.code(x), 2, -1)
    return means, log_variances

  def decode(self, latents: Float[Array, "B L"]) -> Float[Array, "B H W C"]:
    """Decodes latents to the log odds of the pixels' means.

    Args:
      latents: any floats.
    """
    x = jax.nn.relu(self.decode_code(latents)).reshape(-1, *self.squares)
    x = jax.nn.relu(convolution.depth_to_space(self.up[0](x)))
    height, width, _ = self.image_shape
    odds = self.up[1](x).astype(jnp.float32)
    return convolution.depth_to_space(odds)[:, :height, :width]

  def activities(
    self, images: Float[Array, "B H W C"]
  ) -> list[Float[Array, "B L"]]:
    """The means of the latents.

    Args:
      images: as for `encode`.

    Raises:
      TypeError: as `encode`.
      ValueError: as `encode`.
    """
    return [self.encode(images)[0]]

  def reconstruct(
    self, images: Float[Array, "B H W C"]
  ) -> Float[Array, "B H W C"]:
    """Mean images given the means of the latents.

    Args:
      images: as for `encode`.

    Returns:
      Intensities in (0, 1).

    Raises:
      TypeError: as `encode`.
      ValueError: as `encode`.
    """
    return jax.nn.sigmoid(self.decode(self.encode(images)[0]))

  def log_weights(
    self, key: Key[Array, ""], images: Float[Array, "B H W C"]
  ) -> Float[Array, " B"]:
    """One log p(x, h) - log q(h | x) of each image, with h sampled from q.

    With Bernoulli pixels, intensities in [0, 1] are probabilities; with
    Gaussian pixels they are values, and p(x, h) is a density with respect to
    them.

    Args:
      key: samples the latents, one vector for each image.
      images: in [0, 1]; any values if pixels are Gaussian.

    Returns:
      Log weights in nats.

    Raises:
      TypeError: as `encode`.
      ValueError: as `encode`.
    """
    means, log_variances = self.encode(images)
    noise = jax.random.normal(key, means.shape)
    latents = means + jnp.exp(log_variances / 2) * noise
    prior = -jnp.sum(jnp.square(latents), axis=-1) / 2
    posterior = -jnp.sum(jnp.square(noise) + log_variances, axis=-1) / 2
    odds = self.decode(latents).reshape(len(images), -1)
    images = images.reshape(odds.shape)
    if self.pixel_scale is None:
      pixels = jnp.sum(images * odds - jax.nn.softplus(odds), axis=-1)
    else:
      scales = jnp.full(1, self.pixel_scale)
      pixels = selection.gaussian(images, jax.nn.sigmoid(odds), scales)
    return pixels + prior - posterior

  def bound(
    self,
    key: Key[Array, ""],
    images: Float[Array, "B H W C"],
    num_samples: int,
  ) -> losses.Bound:
    """Bounds on log p(x) from samples of the encoder.

    Args:
      key: random key of the samples.
      images: as for `log_weights`.
      num_samples: samples for each image.

    Raises:
      TypeError: as `encode`.
      ValueError: as `encode`.
    """
    weights = jax.lax.map(
      lambda key: self.log_weights(key, images),
      jax.random.split(key, num_samples),
    )
    return losses.likelihood_bound(weights.T)
