"""Part capsules: presence, pose and appearance of the parts of an image.

The part capsule autoencoder of Kosiorek et al. (2019), section 2.2. Axes:
B batch, M parts, U V template, H W C image, F special features.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from capjax import layers
from capjax.kernels import (
  broadcasting,
  checks,
  geometry,
  numerics,
)
from capjax.scae import voting

Encoding = Literal["attention", "conv", "linear", "pixels"]
_POSE = 6
_STRIDES = (2, 2, 1, 1)


class Parts(NamedTuple):
  """The parts of images.

  Attributes:
    poses: [B M 3 3], from templates to canvas.
    presence: [B M] in (0, 1).
    features: [B M F], special features of a part, such as its colour.
  """

  poses: Float[Array, "B M 3 3"]
  presence: Float[Array, "B M"]
  features: Float[Array, "B M F"]


class PartEncoder(nnx.Module):
  """Convolutions, and an attention map for each part (App. B).

  Other kinds are for comparison. "conv" pools the maps of each part by their
  mean; "linear" reads all features of the convolutions by one dense layer. The
  encoders of these names in the authors' code do the same. "pixels" is one
  dense layer of the image, without convolutions.
  """

  def __init__(
    self,
    image_shape: Sequence[int],
    num_parts: int,
    *,
    num_features: int = 16,
    width: int = 128,
    kind: Encoding = "attention",
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      image_shape: (H, W, C); H and W at least 23, if there are convolutions.
      num_parts: M.
      num_features: F, special features of a part.
      width: channels of the convolutions.
      kind: how parts are read from an image, see the class.
      rngs: its `params` stream initialises the parameters.

    Raises:
      ValueError: if `kind` is unknown, a number is below 1, or the images are
        too small for the convolutions.
    """
    if kind not in ("attention", "conv", "linear", "pixels"):
      raise ValueError(
        f"part_encoder={kind!r}; pass 'attention', 'conv', 'linear' or "
        "'pixels'."
      )
    checks.image_shape(image_shape)
    checks.counts(num_parts=num_parts, width=width)
    *size, channels = image_shape
    strides = () if kind == "pixels" else _STRIDES
    widths = [channels, *[width] * len(strides)]
    self.convs = nnx.List(
      layers.Conv(
        before,
        after,
        3,
        stride=stride,
        kernel_init=voting.kernel_initializer(),
        rngs=rngs,
      )
      for before, after, stride in zip(
        widths[:-1], widths[1:], strides, strict=True
      )
    )
    for stride in strides:
      size = [(length - 3) // stride + 1 for length in size]
    if min(size) < 1:
      raise checks.ImageShapeError(
        f"image_shape={tuple(image_shape)}; the part encoder needs images of "
        "at least 23x23: enlarge them, or place them on a larger canvas "
        "(--image_size=32 or --canvas=32)."
      )
    # For each part: attention map, if any, pose, presence and features.
    numbers = num_parts * ((kind == "attention") + _POSE + 1 + num_features)
    has_maps = kind in ("attention", "conv")
    kernel_init = voting.kernel_initializer()
    self.bias = (
      nnx.Param(jnp.zeros((*size, width), jnp.float32)) if has_maps else None
    )
    self.maps = (
      layers.Conv(width, numbers, 1, kernel_init=kernel_init, rngs=rngs)
      if has_maps
      else None
    )
    inputs = math.prod(size) * widths[-1]
    self.dense = (
      None
      if has_maps
      else layers.Linear(inputs, numbers, kernel_init=kernel_init, rngs=rngs)
    )
    self.image_shape = tuple(image_shape)
    self.num_parts = num_parts
    self.kind = kind

  def __call__(
    self,
    images: Float[Array, "B H W C"],
    *,
    key: PRNGKeyArray | None = None,
  ) -> Parts:
    """Finds the parts.

    Args:
      images: in [0, 1].
      key: samples the noise of training, as for `voting.jitter`; None for none.

    Raises:
      ValueError: if the images have another shape than the encoder was made
        for, or values are known and not finite.
    """
    checks.images(images, self.image_shape)
    for conv in self.convs:
      images = jax.nn.relu(conv(images))
    raw, logits, features = jnp.split(
      self._read(images), [_POSE, _POSE + 1], axis=-1
    )
    presence = jax.nn.sigmoid(voting.jitter(logits[..., 0], key))
    return Parts(geometry.pose_matrix(raw), presence, features)

  def _read(self, found):
    """Numbers [B M pose+1+F] of the parts, from features of convolutions."""
    if self.dense is not None:
      numbers = self.dense(found.reshape(len(found), -1)).astype(jnp.float32)
      return numbers.reshape(len(numbers), self.num_parts, -1)
    # Each part has weighted sums of its maps over positions. These are linear
    # in the features, which are summed first since they have fewer numbers.
    found = broadcasting.add_bias(found, self.bias[...]).astype(jnp.float32)
    found = found.reshape(len(found), -1, found.shape[-1])  # [B P F]
    shape, dtype = (self.num_parts, -1), self.maps.dtype
    kernel = self.maps.kernel[...].reshape(found.shape[-1], *shape)  # [F M N]
    bias = self.maps.bias[...].reshape(shape)
    if self.kind == "conv":
      means = jnp.mean(found, axis=1)
      return numerics.einsum("bf,fmn->bmn", means, kernel, dtype=dtype) + bias
    # Softmax does not change with the bias of a part's attention map.
    logits = numerics.einsum("bpf,fm->bpm", found, kernel[..., 0], dtype=dtype)
    sums = numerics.einsum(
      "bpm,bpf->bmf", numerics.softmax(logits, axis=1), found
    )
    numbers = numerics.einsum(
      "bmf,fmn->bmn", sums, kernel[..., 1:], dtype=dtype
    )
    return numbers + bias[:, 1:]
