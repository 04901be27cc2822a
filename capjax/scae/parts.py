"""Part capsules: presence, pose and appearance of the parts of an image.

The part capsule autoencoder of Kosiorek et al. (2019), section 2.2. Axes:
B batch, M parts, U V template, H W C image, F special features.
"""

import functools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from capjax import layers
from capjax.kernels import checks, geometry, numerics, rendering
from capjax.layers import platforms
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

  Others are for comparison. "conv" pools the maps of each part by their mean;
  "linear" reads all features that the convolutions find by one dense layer. So
  do the encoders of these names in the authors' code. "pixels" is one dense
  layer of the image, without convolutions.
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
      ValueError: if `kind` is unknown, or the images are too small for the
        convolutions.
    """
    if kind not in ("attention", "conv", "linear", "pixels"):
      raise ValueError(
        f"part_encoder={kind!r}; pass 'attention', 'conv', 'linear' or "
        "'pixels'."
      )
    *size, channels = image_shape
    strides = () if kind == "pixels" else _STRIDES
    widths = [channels, *[width] * len(strides)]
    self.convs = nnx.List(
      layers.Conv(
        before,
        after,
        3,
        stride=stride,
        kernel_init=voting.draw_kernel(),
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
        "at least 23x23."
      )
    # For each part: attention map, if any, pose, presence and features.
    numbers = num_parts * ((kind == "attention") + _POSE + 1 + num_features)
    has_maps = kind in ("attention", "conv")
    kernel_init = voting.draw_kernel()
    self.bias = nnx.Param(jnp.zeros((*size, width))) if has_maps else None
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
    """
    for conv in self.convs:
      images = jax.nn.relu(conv(images))
    raw, logits, features = jnp.split(
      self._read(images), [_POSE, _POSE + 1], axis=-1
    )
    presence = jax.nn.sigmoid(voting.jitter(logits[..., 0], key))
    return Parts(geometry.pose_matrix(raw), presence, features)

  def _read(self, found):
    """Numbers [B M pose+1+F] of the parts, from what convolutions find."""
    if self.dense is not None:
      numbers = self.dense(found.reshape(len(found), -1)).astype(jnp.float32)
      return numbers.reshape(len(numbers), self.num_parts, -1)
    maps = self.maps(found + self.bias[...]).astype(jnp.float32)
    maps = maps.reshape(
      len(maps), -1, self.num_parts, maps.shape[-1] // self.num_parts
    )
    if self.kind == "conv":
      return jnp.mean(maps, axis=1)
    attention = numerics.softmax(maps[..., :1], axis=1)
    return jnp.sum(attention * maps[..., 1:], axis=1)


class Templates(nnx.Module):
  """Templates of the parts, and images as mixtures of them (Eqs. 3-5)."""

  def __init__(
    self,
    image_shape: Sequence[int],
    num_parts: int,
    *,
    size: int = 11,
    num_features: int = 16,
    nonlinearity: Literal["sigmoid", "relu1"] = "sigmoid",
    mixing: Literal["alpha", "coupled"] = "alpha",
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      image_shape: (H, W, C) of the images that the parts explain.
      num_parts: M.
      size: pixels along each side of a template.
      num_features: F, special features of a part, which decide its colour;
        without them templates have none of it, as in the authors' code.
      nonlinearity: nonlinearity of templates and colours; "relu1" clips to [0,
        1].
      mixing: "alpha" learns how strongly each pixel of a template hides others;
        "coupled" lets brighter pixels hide darker.
      rngs: its `params` stream initialises the parameters.

    Raises:
      ValueError: if the nonlinearity or the mixing is unknown, or templates
        have no pixels.

    Differs from the authors' code: there all initial templates are rescaled by
    their common minimum and maximum; here each template is rescaled to [0, 1]
    by its own.
    """
    if size < 1:
      raise ValueError(f"size={size}; give templates at least 1 pixel.")
    if nonlinearity not in ("sigmoid", "relu1"):
      raise ValueError(
        f"nonlinearity={nonlinearity!r}; pass 'sigmoid' or 'relu1'."
      )
    if mixing not in ("alpha", "coupled"):
      raise ValueError(f"mixing={mixing!r}; pass 'alpha' or 'coupled'.")
    *self.canvas, channels = image_shape
    self.nonlinearity = nonlinearity
    shape = (num_parts, size, size, channels)
    self.raw = nnx.Param(_initial_templates(rngs.params(), shape))
    has_alphas = mixing == "alpha"
    self.alphas = nnx.Param(jnp.zeros((*shape[:3], 1))) if has_alphas else None
    self.background_logit = nnx.Param(jnp.zeros(1)) if has_alphas else None
    self.temperature = None if has_alphas else nnx.Param(_initial_number(rngs))
    self.hidden, self.color = (
      layers.Linear(*size, kernel_init=voting.draw_kernel(), rngs=rngs)
      if num_features
      else None
      for size in ((num_features, 32), (32, channels))
    )
    self.num_features, self.num_channels = num_features, channels
    self.background = nnx.Param(_initial_number(rngs))

  def templates(self) -> Float[Array, "M U V C"]:
    """Returns the templates without colour, in [0, 1]."""
    return self._squash(self.raw[...])

  def colors(self, features: Float[Array, "B M F"]) -> Float[Array, "B M C"]:
    """Returns the colours by which templates are multiplied, in [0, 1]."""
    if self.hidden is None or self.color is None:
      return jnp.ones((*features.shape[:2], self.num_channels))
    colors = self.color(jax.nn.relu(self.hidden(features)))
    # Clipping has no gradient outside of [0, 1], so colours start at 1.
    return self._squash(colors + 0.99 * (self.nonlinearity == "relu1"))

  def explain(
    self, images: Float[Array, "B H W C"], parts: Parts
  ) -> rendering.ImageMixture:
    """Explains each image as a mixture of templates in their poses."""
    return self._explain(images, parts, lambda mixture: mixture)

  def log_prob(
    self, images: Float[Array, "B H W C"], parts: Parts
  ) -> Float[Array, " B"]:
    """Computes `explain(images, parts).log_prob` with less memory."""
    return self._explain(images, parts, lambda mixture: mixture.log_prob)

  def _explain(self, images, parts, choose):
    # Images are rendered again for the gradient: on a CPU one by one, within
    # its cache; on accelerators all at once.
    @jax.checkpoint
    def explain(arguments):
      return choose(self._explain_image(*arguments))

    return platforms.choose(
      (images, parts.poses, parts.presence, self.colors(parts.features)),
      cpu=functools.partial(platforms.map_examples, explain),
      default=jax.vmap(explain),
    )

  def _explain_image(self, image, poses, presence, colors):
    templates = self.templates()
    background = jax.nn.sigmoid(self.background[...])
    background = jnp.broadcast_to(background, image.shape[-1:])
    if self.alphas is not None:
      channels = templates.shape[-1]
      rendered = self._render(
        jnp.concatenate([templates, self.alphas[...]], axis=-1), poses
      )
      parts, logits = jnp.split(rendered, [channels], axis=-1)
      parts = parts * colors[:, None, None]
      background_logit = jax.nn.softplus(self.background_logit[...])
    else:
      parts = self._render(templates, poses) * colors[:, None, None]
      temperature = jax.nn.softplus(self.temperature[...] + 0.5) + 1e-4
      logits, background_logit = parts / temperature, background / temperature
    return rendering.explain_image(
      image, parts, logits, presence, background, background_logit
    )

  def _render(self, templates, poses):
    return jax.vmap(rendering.warp, (0, 0, None))(
      templates, poses, tuple(self.canvas)
    )

  def _squash(self, x):
    if self.nonlinearity == "sigmoid":
      return jax.nn.sigmoid(x)
    return jnp.clip(x, 0.0, 1.0)


def _initial_number(rngs):
  """One number [1] from the default initialiser of TensorFlow 1.

  That is Glorot uniform with one input and one output: in +-sqrt(3).
  """
  bound = 3**0.5
  return jax.random.uniform(rngs.params(), (1,), minval=-bound, maxval=bound)


def _initial_templates(key, shape):
  """Rows of an orthogonal matrix, each rescaled to [0, 1].

  Rows of a single number become 0.
  """
  num_parts, size = shape[0], int(np.prod(shape[1:]))
  rows = jax.random.uniform(key, (num_parts, size))
  # With more parts than pixels the columns are orthogonal instead of the rows.
  few = num_parts <= size
  rows = jnp.linalg.qr(rows.T)[0].T if few else jnp.linalg.qr(rows)[0]
  low = jnp.min(rows, axis=1, keepdims=True)
  high = jnp.max(rows, axis=1, keepdims=True)
  span = jnp.where(high > low, high - low, 1.0)
  return ((rows - low) / span).reshape(shape)
