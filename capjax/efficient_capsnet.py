"""Efficient-CapsNet: one pass of self-attention between few capsules.

Mazzia, Salvetti, Chiaberge (2021), Efficient-CapsNet: capsule network with
self-attention routing.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from capjax import decoder, layers
from capjax.kernels import checks, numerics, routing
from capjax.layers import platforms, tiling

# The default of Keras, which the authors use.
_MOMENTUM = 0.99
_EPSILON = 1e-3


class EfficientCapsNet(nnx.Module):
  """The network of the paper's section 3; defaults are its MNIST widths.

  Convolutions, each with ReLU and then batch normalisation, primary capsules
  that each see the whole feature map, class capsules by self-attention routing,
  and the decoder of `CapsNet`: 161,824 parameters without it, where `CapsNet`
  has 6.8 million.

  Initial parameters are those of the authors' code: He normal in convolutions
  and capsule matrices, Glorot uniform in the primary capsules, zero biases and
  priors. The decoder has the defaults of Flax's dense layers.

  Batch normalisation follows `train()` and `eval()`. In training it updates its
  running statistics (`nnx.BatchStat`) in the called module, so a function under
  a transformation of JAX has to return them.
  """

  def __init__(
    self,
    image_shape: Sequence[int] = (28, 28, 1),
    num_classes: int = 10,
    *,
    conv_features: Sequence[int] = (32, 64, 64, 128),
    conv_kernels: Sequence[int] = (5, 3, 3, 3),
    conv_strides: Sequence[int] = (1, 1, 1, 2),
    part_size: int = 8,
    pose_size: int = 16,
    decoder_features: Sequence[int] = (512, 1024),
    dtype: jax.typing.DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      image_shape: height, width and channels of the images.
      num_classes: J.
      conv_features: channels of the convolutions; the last make I = channels /
        `part_size` primary capsules.
      conv_kernels: taps of each convolution along each axis.
      conv_strides: stride of each convolution.
      part_size: C, length of a primary capsule.
      pose_size: D, length of a class capsule.
      decoder_features: widths of the decoder's hidden layers; empty for a
        network without decoder.
      dtype: dtype of the convolutions; statistics, capsules and decoder stay in
        float32.
      rngs: its `params` stream initialises the parameters.

    Raises:
      ValueError: where the convolutions do not fit each other, the images or
        the capsules.
    """
    checks.rngs(rngs)
    checks.sequences(
      conv_features=conv_features,
      conv_kernels=conv_kernels,
      conv_strides=conv_strides,
      decoder_features=decoder_features,
    )
    if not len(conv_features) == len(conv_kernels) == len(conv_strides) > 0:
      raise ValueError(
        f"conv_features {tuple(conv_features)}, conv_kernels "
        f"{tuple(conv_kernels)} and conv_strides {tuple(conv_strides)} must be "
        "as many; give one of each for every convolution."
      )
    checks.counts(part_size=part_size)
    if conv_features[-1] % part_size:
      raise ValueError(
        f"{conv_features[-1]} channels cannot be cut into capsules of "
        f"{part_size}; give a multiple as the last of conv_features."
      )
    checks.image_shape(image_shape)
    checks.counts(num_classes=num_classes, pose_size=pose_size)
    self.image_shape = tuple(image_shape)
    height, width, channels = image_shape
    convs, norms = [], []
    self.numbers_per_image = 0  # in the outputs of the convolutions
    for features, taps, stride in zip(
      conv_features, conv_kernels, conv_strides, strict=True
    ):
      if min(height, width) < taps:
        raise checks.ImageShapeError(
          f"images of {image_shape[0]}x{image_shape[1]} are too small for "
          f"kernels of {tuple(conv_kernels)} at strides {tuple(conv_strides)}; "
          "give smaller ones."
        )
      height, width = (
        (height - taps) // stride + 1,
        (width - taps) // stride + 1,
      )
      convs.append(
        layers.Conv(
          channels,
          features,
          taps,
          stride=stride,
          kernel_init=nnx.initializers.he_normal(),
          dtype=dtype,
          rngs=rngs,
        )
      )
      norms.append(
        layers.BatchNorm(
          features, momentum=_MOMENTUM, epsilon=_EPSILON, rngs=rngs
        )
      )
      channels = features
      self.numbers_per_image += height * width * channels
    self.convs, self.norms = nnx.List(convs), nnx.List(norms)
    self.primary = MapCaps(height, width, channels, part_size, rngs=rngs)
    num_parts = channels // part_size
    self.classes = layers.DenseCaps(
      num_parts,
      part_size,
      num_classes,
      pose_size,
      routing="self_attention",
      transforms_init=nnx.initializers.he_normal(),
      bias_init=None,
      rngs=rngs,
    )
    self.decoder = (
      decoder.Decoder(
        num_classes, pose_size, decoder_features, image_shape, rngs=rngs
      )
      if decoder_features
      else None
    )

  def __call__(self, images: Float[Array, "B H W C"]) -> routing.RoutingOutput:
    """Finds the classes in images with intensities in [0, 1], as `CapsNet`.

    Args:
      images: in [0, 1]; any finite numbers for a network without decoder.

    Returns:
      Poses [B J D], activations [B J] in [0, 1], and coefficients [B I J].

    Raises:
      TypeError: if the images hold integers.
      ValueError: as `CapsNet`.
    """
    decodes = self.decoder is not None
    checks.images(images, self.image_shape, intensities=decodes)
    if self.norms[0].use_running_average:
      # Images do not affect each other, so a few at a time can fit the cache.
      in_pieces = functools.partial(
        tiling.in_pieces,
        self._parts,
        spread=self.numbers_per_image,
        weights=0,
      )
      parts = platforms.choose(images, cpu=in_pieces, default=self._parts)
    else:
      parts = self._parts(images)
    return self.classes(parts)

  def decode(
    self,
    poses: Float[Array, "B J D"],
    classes: Int[Array, " B"] | Int[Array, "B J"],
  ) -> Float[Array, "B H W C"]:
    """Reconstructs images from one class capsule each; see `decoder.decode`.

    Args:
      poses: as for `decoder.decode`.
      classes: as for `decoder.decode`.

    Returns:
      Images with intensities in (0, 1).

    Raises:
      TypeError: as `decoder.decode`.
      ValueError: as `decoder.decode`.
    """
    return decoder.decode(self.decoder, poses, classes)

  def _parts(self, images):
    features = images
    for conv, norm in zip(self.convs, self.norms, strict=True):
      features = norm(jax.nn.relu(conv(features)))
    return self.primary(features)


class MapCaps(nnx.Module):
  """Capsules that each see the whole map of a few channels.

  Each number of a pose is the weighted sum of one channel: a depthwise
  convolution whose kernel is as large as the map (the paper's section 3.1).
  """

  def __init__(
    self,
    height: int,
    width: int,
    num_features: int,
    pose_size: int,
    *,
    rngs: nnx.Rngs,
  ):
    """Initialises the weights, Glorot uniform, and zero biases.

    Args:
      height: rows of the map.
      width: columns of the map.
      num_features: channels of the map, a multiple of `pose_size`.
      pose_size: C, length of each capsule's vector; its channels lie side by
        side.
      rngs: its `params` stream initialises the parameters.
    """
    # A depthwise kernel has one input channel, which the initialiser counts.
    kernel = nnx.initializers.glorot_uniform()(
      rngs.params(), (height, width, 1, num_features), jnp.float32
    )
    self.kernel = nnx.Param(kernel[:, :, 0])
    self.bias = nnx.Param(jnp.zeros(num_features, jnp.float32))
    self.pose_size = pose_size

  def __call__(
    self, features: Float[Array, "B H W F"]
  ) -> Float[Array, "B I C"]:
    """Computes the capsules of each map.

    Args:
      features: any floats, of the map's height and width and `num_features`.

    Returns:
      Poses in float32, with lengths in [0, 1); I is F / C.
    """
    features = features.astype(jnp.float32)
    # Not a contraction: CPUs would transpose the map for it.
    total = jnp.sum(features * self.kernel[...], axis=(1, 2))
    total += self.bias[...]
    poses = total.reshape(len(total), -1, self.pose_size)
    return numerics.exponential_squash(poses)
