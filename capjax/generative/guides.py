"""Recognition of generative capsules (Smith et al., 2020, section 2.2).

The guide is q(t, A | x), from the parts up: a convolutional network computes
the distribution of the parts of an image, set transformers that of each further
layer given a sample of the layer below. Within a layer it is mean field; there
are no skip connections between layers.

Axes: B batch, I capsules of a layer, H W C image.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from capjax import layers
from capjax.generative.model import GenerativeCapsules, Layers
from capjax.kernels import broadcasting, checks, numerics
from capjax.kernels.matching import selection
from capjax.kernels.matching.selection import Capsules, Temperature
from capjax.layers import set_transformer


class Posterior(NamedTuple):
  """The distribution q of a layer, independent for each capsule.

  Attributes:
    log_odds: [... I], log odds of presences, relaxed Bernoulli variables.
    poses: [... I 6], means of Gaussian poses, or point estimates of poses.
    log_scales: [... I 6], logs of the standard deviations of Gaussian poses;
      None for point estimates ("delta" distributions).
  """

  log_odds: Float[Array, "*batch I"]
  poses: Float[Array, "*batch I 6"]
  log_scales: Float[Array, "*batch I 6"] | None = None

  def sample(self, key: Key[Array, ""], temperature: Temperature) -> Capsules:
    """Samples a layer; differentiable with respect to the posterior.

    Args:
      key: random key of the sample.
      temperature: tau > 0 of the relaxed presences.

    Returns:
      Logits of presences [... I] and poses [... I 6].
    """
    presence_key, pose_key = jax.random.split(key)
    noise = jax.random.logistic(presence_key, self.log_odds.shape)
    poses = self.poses
    if self.log_scales is not None:
      poses += jnp.exp(self.log_scales) * jax.random.normal(
        pose_key, poses.shape
      )
    return Capsules((self.log_odds + noise) / temperature, poses)

  def median(self, temperature: Temperature) -> Capsules:
    """Returns the layer without noise: medians of presences and poses.

    Args:
      temperature: tau > 0 of the relaxed presences.

    Returns:
      Logits of presences [... I] and poses [... I 6].
    """
    return Capsules(self.log_odds / temperature, self.poses)

  def log_density(
    self, layer: Capsules, temperature: Temperature
  ) -> Float[Array, "*batch"]:
    """Computes log q of a layer in nats; point estimates of poses count 0.

    Args:
      layer: a layer of the shape of the posterior.
      temperature: tau > 0 of the relaxed presences.

    Returns:
      log q, summed over the capsules of the layer.
    """
    logs = selection.binary_concrete(
      layer.logits, self.log_odds, temperature=temperature
    )
    if self.log_scales is not None:
      scales = jnp.exp(self.log_scales)
      logs += selection.gaussian(layer.poses, self.poses, scales)
    return jnp.sum(logs, axis=-1)


Posteriors = tuple[Posterior, ...]


class PartEncoder(nnx.Module):
  """From images to parts: convolutions, and attention over positions.

  Each part has maps of log odds and pose and an attention map, whose softmax
  over positions weights the other maps (Kosiorek et al., 2019, section
  2.2). ELU; the first two convolutions have stride 2.

  Differs from paper: its numbers of channels were not available to us; the bias
  of each position, which lets maps depend on position, is from Kosiorek et al.
  """

  def __init__(
    self,
    image_shape: Sequence[int],
    num_parts: int,
    *,
    features: Sequence[int] = (128, 128, 128, 128),
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      image_shape: height, width and channels.
      num_parts: I.
      features: channels of the 3x3 convolutions.
      rngs: its `params` stream initialises the parameters.

    Raises:
      TypeError: if `rngs` is not `nnx.Rngs`, or `num_parts` or a number of
        `features` is no whole number.
      ValueError: if `image_shape` is not three whole numbers above 0, or
        `num_parts` or a number of `features` is below 1.
    """
    checks.image_shape(image_shape)
    checks.counts(num_parts=num_parts)
    self.image_shape = tuple(image_shape)
    height, width, channels = image_shape
    sizes = (channels, *features)
    strides = [2, 2, *[1] * len(features)][: len(features)]
    self.convs = nnx.List(
      layers.Conv(below, above, 3, stride=stride, padding="SAME", rngs=rngs)
      for below, above, stride in zip(sizes, sizes[1:], strides, strict=False)
    )
    for stride in strides:
      height, width = -(-height // stride), -(-width // stride)
    self.positions = nnx.Param(
      nnx.initializers.normal(0.1)(
        rngs.params(), (height, width, sizes[-1]), jnp.float32
      )
    )
    self.maps = layers.Linear(sizes[-1], num_parts * 8, rngs=rngs)
    self.log_scales: layers.Linear | None = nnx.data(None)

  def __call__(self, images: Float[Array, "B H W C"]) -> Posterior:
    """Infers the parts in images.

    Args:
      images: in [0, 1].

    Raises:
      TypeError: if the images hold integers.
      ValueError: if the images have another shape, or, where values are known
        (not under jit), intensities outside of [0, 1].
    """
    checks.images(images, self.image_shape, intensities=True)
    x = images
    for conv in self.convs:
      x = jax.nn.elu(conv(x))
    x = broadcasting.add_bias(x, self.positions[...])
    x = x.reshape(len(x), -1, x.shape[-1])
    maps = self.maps(x).reshape(*x.shape[:2], -1, 8)
    weights = numerics.softmax(maps[..., 0], axis=1)
    read = numerics.einsum("bni,bnid->bid", weights, maps[..., 1:])
    if self.log_scales is None:
      return Posterior(read[..., 0], read[..., 1:])
    logs = self.log_scales(x).reshape(*weights.shape, 6)
    logs = numerics.einsum("bni,bnid->bid", weights, logs)
    return Posterior(read[..., 0], read[..., 1:], logs)

  def add_scales(self, scale: float, rngs: nnx.Rngs) -> None:
    """Makes poses Gaussian, with this initial standard deviation.

    Args:
      scale: in the unit of poses, > 0.
      rngs: its `params` stream initialises the parameters.
    """
    inputs, outputs = self.maps.kernel.shape
    self.log_scales = layers.Linear(
      inputs,
      outputs // 8 * 6,
      **_constant(scale),
      dtype=self.maps.dtype,
      rngs=rngs,
    )


class ObjectEncoder(nnx.Module):
  """From a layer to the one above: a set transformer, then MLPs.

  A token holds the pose, the presence and the one-hot index of a capsule. Each
  output capsule has its own MLPs with one hidden layer, one for each variable.
  """

  def __init__(
    self,
    num_children: int,
    num_parents: int,
    *,
    width: int = 128,
    num_blocks: int = 2,
    num_heads: int = 4,
    num_inducing: int = 16,
    out_features: int = 256,
    hidden: int = 128,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      num_children: I below.
      num_parents: I above.
      width: numbers of a token within the transformer.
      num_blocks: number of `set_transformer.ISAB`s.
      num_heads: heads of every attention.
      num_inducing: inducing points.
      out_features: numbers of an output of the transformer.
      hidden: units of the MLPs.
      rngs: its `params` stream initialises the parameters.
    """
    self.transformer = set_transformer.SetTransformer(
      7 + num_children,
      width=width,
      num_blocks=num_blocks,
      num_heads=num_heads,
      num_outputs=num_parents,
      out_features=out_features,
      num_inducing=num_inducing,
      rngs=rngs,
    )
    self.num_children = num_children
    sizes = (num_parents, out_features, hidden)
    self.log_odds = _EachMLP(*sizes, 1, rngs=rngs)
    self.poses = _EachMLP(*sizes, 6, rngs=rngs)
    self.log_scales: _EachMLP | None = nnx.data(None)
    self.sizes = sizes

  def __call__(self, children: Capsules) -> Posterior:
    """Infers the layer above from the capsules of a layer.

    Args:
      children: logits of presences [B I] and poses [B I 6] of the layer below.

    Returns:
      The distribution of the layer above, with leading axis B.

    Raises:
      TypeError: if logits or poses hold integers.
      ValueError: if they differ in B or I, there are not I children, or not 6
        numbers of a pose.
    """
    checks.arrays(
      {
        "logits": (children.logits, "B I"),
        "poses": (children.poses, "B I 6"),
      },
      I=self.num_children,
    )
    presences = jax.nn.sigmoid(children.logits)
    names = jnp.eye(presences.shape[1])
    names = jnp.broadcast_to(names, (len(presences), *names.shape))
    tokens = jnp.concatenate(
      [children.poses, presences[..., None], names], axis=-1
    )
    codes = self.transformer(tokens, presences)
    return Posterior(
      self.log_odds(codes)[..., 0],
      self.poses(codes),
      None if self.log_scales is None else self.log_scales(codes),
    )

  def add_scales(self, scale: float, rngs: nnx.Rngs) -> None:
    """Makes poses Gaussian, with this initial standard deviation.

    Args:
      scale: in the unit of poses, > 0.
      rngs: its `params` stream initialises the parameters.
    """
    self.log_scales = _EachMLP(*self.sizes, 6, **_constant(scale), rngs=rngs)
    self.log_scales.dtype = self.poses.dtype


class CapsuleGuide(nnx.Module):
  """The recognition of all layers, from an image upwards."""

  def __init__(
    self,
    encoders: Sequence[PartEncoder | ObjectEncoder],
    *,
    temperature: float = 0.5,
  ):
    """Combines encoders.

    Args:
      encoders: from images to parts, then from each layer to the next.
      temperature: tau of the relaxed presences.
    """
    self.encoders = nnx.List(encoders)
    self.temperature = temperature

  def __call__(
    self,
    images: Float[Array, "B H W C"],
    key: Key[Array, ""] | None = None,
    *,
    temperature: Temperature | None = None,
  ) -> tuple[Posteriors, Layers]:
    """Infers the distribution of each layer, given a sample of the one below.

    Args:
      images: in [0, 1].
      key: random key of the samples; None for medians.
      temperature: temperature of relaxed presences; None for the guide's own.

    Returns:
      Posteriors from the parts up, and the layers sampled from them.
    """
    if temperature is None:
      temperature = self.temperature
    posteriors, samples = [], []
    below: Any = images  # then the capsules of each layer
    for number, encoder in enumerate(self.encoders):
      posterior = encoder(below)
      if key is None:
        below = posterior.median(temperature)
      else:
        layer_key = jax.random.fold_in(key, number)
        below = posterior.sample(layer_key, temperature)
      posteriors.append(posterior)
      samples.append(below)
    return tuple(posteriors), tuple(samples)

  @property
  def has_scales(self) -> bool:
    """Whether poses are Gaussian in all layers, not point estimates."""
    return all(x.log_scales is not None for x in self.encoders)

  def add_scales(self, *, scale: float = 0.02, rngs: nnx.Rngs) -> None:
    """Replaces point estimates of poses by Gaussians with these means.

    Args:
      scale: initial standard deviation of the Gaussians, for all images.
      rngs: its `params` stream initialises the parameters.

    Raises:
      ValueError: if `scale` is not above 0.
    """
    checks.positive(scale=scale)
    for encoder in self.encoders:
      encoder.add_scales(scale, rngs)


def log_posterior(
  posteriors: Posteriors, sampled: Layers, *, temperature: Temperature
) -> Float[Array, " B"]:
  """Computes log q of all layers, each given the one below, in nats.

  Args:
    posteriors: q of each layer, from the parts up.
    sampled: the layers, from the parts up.
    temperature: tau > 0 of the relaxed presences.
  """
  pairs = zip(posteriors, sampled, strict=True)
  return functools.reduce(
    jnp.add, (q.log_density(layer, temperature) for q, layer in pairs)
  )


def elbo(
  capsules: GenerativeCapsules,
  guide: CapsuleGuide,
  images: Float[Array, "B H W C"],
  key: Key[Array, ""],
  *,
  temperature: Temperature | None = None,
) -> Float[Array, " B"]:
  """Estimates the objective by one sample of each image (eq. 8), in nats.

  E_q[log p(x, t, A) - log q(t, A | x)] with the selections summed out. With
  Gaussian poses it is the ELBO, a bound on log p(x). With point estimates of
  poses it is not: log q of a pose counts as 0 instead of infinity, so that the
  objective only bounds max_A log p(x, A), a density with respect to poses. It
  depends on the unit of poses (it grows by 6 log c for each capsule if poses
  are expressed in numbers c times as small) and grows without limit as scales
  of poses decrease. Use it to compare models with the same scales and numbers
  of capsules, not to choose floors or priors of scales or numbers of capsules.

  Args:
    capsules: the model.
    guide: q.
    images: x, in [0, 1].
    key: random key of the sample.
    temperature: temperature of relaxed presences in model and guide; None for
      their own.
  """
  posteriors, samples = guide(images, key, temperature=temperature)
  joint = capsules.log_joint(samples, images, temperature=temperature)
  if temperature is None:
    temperature = guide.temperature
  return joint - log_posterior(posteriors, samples, temperature=temperature)


class AmortisedCapsules(nnx.Module):
  """A generative model and its guide, trained together."""

  def __init__(self, capsules: GenerativeCapsules, guide: CapsuleGuide):
    """Combines a model and its guide.

    Args:
      capsules: the generative model.
      guide: its recognition, for the same layers.
    """
    self.capsules = capsules
    self.guide = guide

  def activities(
    self, images: Float[Array, "B H W C"]
  ) -> list[Float[Array, "B I"]]:
    """Presences of each layer from the parts up, without noise.

    Args:
      images: in [0, 1].

    Returns:
      [B I] in [0, 1] for each layer.

    Raises:
      TypeError: as the call of `PartEncoder`.
      ValueError: as the call of `PartEncoder`.
    """
    _, layers = self.guide(images)
    return [jax.nn.sigmoid(layer.logits) for layer in layers]

  def reconstruct(
    self, images: Float[Array, "B H W C"]
  ) -> Float[Array, "B H W C"]:
    """Mean images given the parts, without noise.

    Args:
      images: in [0, 1].

    Raises:
      TypeError: as the call of `PartEncoder`.
      ValueError: as the call of `PartEncoder`.
    """
    _, layers = self.guide(images)
    return self.capsules.render(layers[0])

  def elbo(
    self,
    key: Key[Array, ""],
    images: Float[Array, "B H W C"],
    *,
    temperature: Temperature | None = None,
  ) -> Float[Array, " B"]:
    """The objective of `elbo`: an ELBO only with Gaussian poses.

    Args:
      key: random key of the sample.
      images: in [0, 1].
      temperature: as for the function `elbo`.

    Returns:
      The objective in nats.

    Raises:
      TypeError: as the call of `PartEncoder`.
      ValueError: as the call of `PartEncoder`.
    """
    return elbo(self.capsules, self.guide, images, key, temperature=temperature)


class _EachMLP(nnx.Module):
  """MLPs with one hidden layer, a separate one for each capsule."""

  def __init__(
    self,
    num_capsules,
    inputs,
    hidden,
    outputs,
    *,
    kernel_init=nnx.initializers.lecun_normal(batch_axis=0),
    bias_init=nnx.initializers.zeros,
    rngs,
  ):
    init = nnx.initializers.lecun_normal(batch_axis=0)
    shape = (num_capsules, inputs, hidden)
    self.hidden_kernel = nnx.Param(init(rngs.params(), shape, jnp.float32))
    self.hidden_bias = nnx.Param(jnp.zeros((num_capsules, hidden), jnp.float32))
    shape = (num_capsules, hidden, outputs)
    self.output_kernel = nnx.Param(
      kernel_init(rngs.params(), shape, jnp.float32)
    )
    self.output_bias = nnx.Param(
      bias_init(rngs.params(), shape[::2], jnp.float32)
    )
    self.dtype: jax.typing.DTypeLike | None = None

  def __call__(self, codes):
    product = functools.partial(numerics.einsum, dtype=self.dtype)
    x = product("bkf,kfh->bkh", codes, self.hidden_kernel[...])
    x = jax.nn.elu(broadcasting.add_bias(x, self.hidden_bias[...]))
    x = product("bkh,kho->bko", x, self.output_kernel[...])
    return broadcasting.add_bias(x, self.output_bias[...])


def _constant(scale):
  """Initialisers that make an output equal log `scale` for any input."""
  return {
    "kernel_init": nnx.initializers.zeros,
    "bias_init": nnx.initializers.constant(math.log(scale)),
  }
