"""Templates of parts, and images as mixtures of them.

Of the part capsule autoencoder of Kosiorek et al. (2019), section 2.2. Axes:
B batch, M parts, U V template, H W C image, F special features.
"""

import functools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from capjax import layers
from capjax.kernels import (
  broadcasting,
  checks,
  rendering,
)
from capjax.layers import platforms
from capjax.scae import voting
from capjax.scae.parts import Parts


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
        without them templates have no colour, as in the authors' code.
      nonlinearity: nonlinearity of templates and colours; "relu1" clips to [0,
        1].
      mixing: "alpha" learns how strongly each pixel of a template hides others;
        "coupled" lets brighter pixels hide darker ones.
      rngs: its `params` stream initialises the parameters.

    Raises:
      ValueError: if the nonlinearity or the mixing is unknown, or a number is
        below 1.

    Differs from the authors' code: there all initial templates are rescaled by
    their common minimum and maximum; here each template is rescaled to [0, 1]
    by its own.
    """
    checks.image_shape(image_shape)
    checks.counts(num_parts=num_parts, size=size)
    checks.choice(("sigmoid", "relu1"), nonlinearity=nonlinearity)
    checks.choice(("alpha", "coupled"), mixing=mixing)
    *canvas, channels = image_shape
    self.canvas = tuple(canvas)
    self.nonlinearity = nonlinearity
    shape = (num_parts, size, size, channels)
    self.raw = nnx.Param(_initial_templates(rngs.params(), shape))
    has_alphas = mixing == "alpha"
    self.alphas = (
      nnx.Param(jnp.zeros((*shape[:3], 1), jnp.float32)) if has_alphas else None
    )
    self.background_logit = (
      nnx.Param(jnp.zeros(1, jnp.float32)) if has_alphas else None
    )
    self.temperature = None if has_alphas else nnx.Param(_initial_number(rngs))
    self.hidden, self.color = (
      layers.Linear(*size, kernel_init=voting.kernel_initializer(), rngs=rngs)
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
    """Returns the colours by which templates are multiplied, in [0, 1].

    Args:
      features: of each part.
    """
    if self.hidden is None or self.color is None:
      return jnp.ones((*features.shape[:2], self.num_channels))
    colors = self.color(jax.nn.relu(self.hidden(features)))
    # Clipping has no gradient outside of [0, 1], so colours start at 1.
    return self._squash(colors + 0.99 * (self.nonlinearity == "relu1"))

  def render(self, parts: Parts) -> Float[Array, "B H W C"]:
    """Renders parts: the mean of their mixture at each pixel.

    Equals `explain(images, parts).mean`, which does not depend on the images.

    Args:
      parts: found in images, moved, or made by hand.

    Returns:
      Intensities, in [0, 1] for presences in [0, 1].
    """
    shape = (len(parts.poses), *self.canvas, self.num_channels)
    return self.explain(jnp.zeros(shape, parts.poses.dtype), parts).mean

  def explain(
    self, images: Float[Array, "B H W C"], parts: Parts
  ) -> rendering.ImageMixture:
    """Explains each image as a mixture of templates in their poses.

    Args:
      images: any finite numbers.
      parts: of each image.

    Returns:
      The mixtures, with leading axis B.

    Raises:
      TypeError: if the images or the parts hold no floats.
      ValueError: if they have other shapes, or known images are not finite.
    """
    # Images are rendered again for the gradient.
    explain = jax.checkpoint(_explain_image, static_argnums=1)
    return _map(explain, *self._scenes(images, parts))

  def log_prob(
    self, images: Float[Array, "B H W C"], parts: Parts
  ) -> Float[Array, " B"]:
    """Computes `explain(images, parts).log_prob` with less memory and time.

    Args:
      images: as for `explain`.
      parts: of each image.

    Returns:
      Log densities in nats.

    Raises:
      TypeError: as `explain`.
      ValueError: as `explain`.
    """
    return _log_probs(*self._scenes(images, parts))

  def _scenes(self, images, parts):
    """Returns the arrays of each image [B ...], and those that images share."""
    checks.images(images, (*self.canvas, self.num_channels))
    checks.arrays(
      {
        "parts.poses": (parts.poses, "B M 3 3"),
        "parts.presence": (parts.presence, "B M"),
        "parts.features": (parts.features, "B M F"),
      },
      empty="F",
      B=len(images),
      M=len(self.raw),
      F=self.num_features,
    )
    templates, background = self.templates(), self.background[...]
    background = jax.nn.sigmoid(background)
    background = jnp.broadcast_to(background, (self.num_channels,))
    if self.alphas is not None:
      templates = jnp.concatenate([templates, self.alphas[...]], axis=-1)
      sharing = jax.nn.softplus(self.background_logit[...])
    else:
      sharing = jax.nn.softplus(self.temperature[...] + 0.5) + 1e-4
    colors = self.colors(parts.features)
    own = images, parts.poses, parts.presence, colors
    return own, (templates, background, sharing)

  def _squash(self, x):
    if self.nonlinearity == "sigmoid":
      return jax.nn.sigmoid(x)
    return jnp.clip(x, 0.0, 1.0)


class _Scene(NamedTuple):
  """One image, its parts, and the templates.

  Attributes:
    image: [H W C].
    poses: [M 3 3].
    presence: [M].
    colors: [M C].
    templates: [M U V C], or [M U V C+1] with alphas.
    background: [C], its intensity.
    sharing: [1], the logit of the background with alphas, else the temperature.
  """

  image: Float[Array, "H W C"]
  poses: Float[Array, "M 3 3"]
  presence: Float[Array, " M"]
  colors: Float[Array, "M C"]
  templates: Float[Array, "M U V channels"]
  background: Float[Array, " C"]
  sharing: Float[Array, " 1"]


def _explain_image(
  scene: _Scene, gradient: Literal["scatter", "products"]
) -> rendering.ImageMixture:
  """Explains one image; `gradient` is the `template_gradient` of a warp."""
  height, width, channels = scene.image.shape
  warp = functools.partial(
    rendering.warp, canvas=(height, width), template_gradient=gradient
  )
  rendered = jax.vmap(warp)(scene.templates, scene.poses)
  colors = broadcasting.spread(scene.colors, after=(height, width))
  parts = rendered[..., :channels] * jnp.moveaxis(colors, 1, -1)
  if scene.templates.shape[-1] > channels:
    logits, background_logit = rendered[..., channels:], scene.sharing
  else:
    logits = parts / scene.sharing
    background_logit = scene.background / scene.sharing
  return rendering.explain_image(
    scene.image,
    parts,
    logits,
    scene.presence,
    scene.background,
    background_logit,
  )


def _image_log_prob(
  scene: _Scene, gradient: Literal["scatter", "products"]
) -> Float[Array, ""]:
  return _explain_image(scene, gradient).log_prob


def _map(function, own, shared):
  """Maps a function of scenes, and of how gradients are summed, over images.

  On a CPU one by one, within its cache; on accelerators all at once.
  """

  def of_one(gradient, own):
    return function(_Scene(*own, *shared), gradient)

  return platforms.choose(
    own,
    cpu=functools.partial(
      platforms.map_examples, functools.partial(of_one, "scatter")
    ),
    default=jax.vmap(functools.partial(of_one, "products")),
  )


@jax.custom_jvp
def _log_probs(own, shared) -> Float[Array, " B"]:
  """Log-likelihoods of images; gradients, if needed, come with the values.

  Only these gradients are then stored, a few numbers of each part, and no image
  is rendered twice.
  """
  return _map(_image_log_prob, own, shared)


@_log_probs.defjvp
def _log_probs_jvp(primals, tangents):
  log_probs, gradients = _map(jax.value_and_grad(_image_log_prob), *primals)
  own, shared = tangents
  changes = jax.tree.map(
    lambda gradient, change: (gradient * change).reshape(len(gradient), -1),
    gradients,
    _Scene(*own, *shared),
  )
  total = sum(jnp.sum(change, axis=1) for change in changes)
  return log_probs, total.astype(log_probs.dtype)


def _initial_number(rngs):
  """One number [1] from the default initialiser of TensorFlow 1.

  That is Glorot uniform with one input and one output: in +-sqrt(3).
  """
  bound = 3**0.5
  return jax.random.uniform(
    rngs.params(), (1,), jnp.float32, minval=-bound, maxval=bound
  )


def _initial_templates(key, shape):
  """Rows of an orthogonal matrix, each rescaled to [0, 1].

  Rows of a single number become 0.
  """
  num_parts, size = shape[0], int(np.prod(shape[1:]))
  rows = jax.random.uniform(key, (num_parts, size), jnp.float32)
  # With more parts than pixels the columns are orthogonal instead of the rows.
  few = num_parts <= size
  rows = jnp.linalg.qr(rows.T)[0].T if few else jnp.linalg.qr(rows)[0]
  low = jnp.min(rows, axis=1, keepdims=True)
  high = jnp.max(rows, axis=1, keepdims=True)
  span = jnp.where(high > low, high - low, 1.0)
  return ((rows - low) / span).reshape(shape)
