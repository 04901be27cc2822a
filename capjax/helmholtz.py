"""The capsule Helmholtz machine and how it learns (Li and Zhu, 2019, 2.2)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from capjax import boltzmann
from kernels import energy


class Bound(NamedTuple):
  """Lower bounds on the log-likelihood of images.

  Attributes:
    elbo: [B], the mean over samples of log p(x, h, z) - log q(h, z | x).
    importance: [B], the log of the mean of their exponentials, which is tighter
      (Burda, Grosse, Salakhutdinov, 2016).
  """

  elbo: Float[Array, " B"]
  importance: Float[Array, " B"]


class Layer(nnx.Module):
  """A layer of capsules: its biases, and weights to what is below it.

  One serves each direction: the generative layer knows the biases of its
  capsules and how they drive what is below, the recognition layer the biases
  with which they are inferred, and how they are driven.
  """

  def __init__(
    self,
    below: Sequence[int],
    num_capsules: int,
    capsule_size: int,
    *,
    family: str,
    rngs: nnx.Rngs,
  ):
    shape = (*below, num_capsules, capsule_size)
    self.hidden = nnx.Param(boltzmann.standard(family, shape[-2:]))
    self.switches = nnx.Param(jnp.zeros(num_capsules))
    self.weights = nnx.Param(0.001 * jax.random.normal(rngs.params(), shape))

  @property
  def bias(self) -> energy.Bias:
    """Of the capsules, as the kernels take it."""
    return energy.Bias(self.hidden[...], self.switches[...])


class CapsuleHM(nnx.Module):
  """Layers of capsules, each driven by the layer above; x below them all.

  p(x | h1, z1) prod_l p(h_l, z_l | h_{l+1}, z_{l+1}) p(h_L, z_L) (eq. 13), with
  a recognition model of the same form from below. Within a layer the capsules
  are independent given those above, so that every factor is normalised exactly
  (our addition: the paper holds annealed importance sampling to be needed).

  Differs from paper: no Omega, which the authors' scripts leave out too; mean
  field starts from the biases of the switches without noise.
  """

  def __init__(
    self,
    visible_shape: Sequence[int] = (28, 28, 1),
    *,
    num_capsules: Sequence[int] = (40, 40),
    capsule_size: int = 16,
    visible: str = "bernoulli",
    hidden: str = "bernoulli",
    rngs: nnx.Rngs,
  ):
    """Draws the parameters.

    Args:
      visible_shape: of an image.
      num_capsules: of each layer, from the lowest.
      capsule_size: hidden units of a capsule.
      visible: family of the pixels, one of `boltzmann.FAMILIES`.
      hidden: family of the hidden units.
      rngs: its `params` stream draws the parameters.

    Raises:
      ValueError: if a family is unknown, or there is no layer.
    """
    if not num_capsules:
      raise ValueError("num_capsules is empty; give one number for each layer.")
    self.families = boltzmann.family(visible), boltzmann.family(hidden)
    self.visible_shape = tuple(visible_shape)
    size = math.prod(visible_shape)
    self.visible = nnx.Param(boltzmann.standard(visible, (size,)))
    below = [(size,), *((count, capsule_size) for count in num_capsules)]
    self.generative, self.recognition = (
      nnx.List(
        Layer(shape, count, capsule_size, family=hidden, rngs=rngs)
        for shape, count in zip(below, num_capsules, strict=False)
      )
      for _ in range(2)
    )

  def infer(
    self, images: Float[Array, "B ..."], *, num_iterations: int | None = None
  ) -> list[energy.Capsules]:
    """The wake phase: expectations of each layer given the one below.

    Args:
      images: in the units of the visible family.
      num_iterations: of mean field, as in the paper; None for what is exact
        given the expectations below.

    Returns:
      The layers from the lowest, with a leading batch axis.
    """
    expect = self._expect(num_iterations)

    def one(x):
      layers = []
      for layer in self.recognition:
        drive = _upwards(layers[-1] if layers else x, layer)
        layers.append(expect(layer.bias, drive))
      return layers

    return jax.vmap(one)(images.reshape(len(images), -1))

  def dream(
    self,
    key: Key[Array, ""],
    top: energy.Capsules,
    *,
    num_iterations: int | None = None,
  ) -> tuple[Float[Array, "B ..."], list[energy.Capsules]]:
    """The sleep phase: from the top expectations downwards, then an image.

    Args:
      key: of the image's pixels.
      top: of the highest layer, with a leading batch axis; in the tied
        algorithm those of the wake phase.
      num_iterations: of mean field; None for what is exact given those above.

    Returns:
      Images drawn, and the layers from the lowest.
    """
    expect = self._expect(num_iterations)

    def one(key, top):
      layers = [top]
      for lower, upper in _pairs_downwards(self.generative):
        drive = energy.drive_between(layers[0], upper.weights[...], None)
        layers.insert(0, expect(lower.bias, drive))
      natural = self._visible_parameters(layers[0])
      return self.families[0].sample(key, natural), layers

    keys = jax.random.split(key, len(top.switches))
    images, layers = jax.vmap(one)(keys, top)
    return images.reshape(-1, *self.visible_shape), layers

  def sample(
    self, key: Key[Array, ""], top: energy.Capsules | None, *, count: int = 1
  ) -> Float[Array, "B ..."]:
    """Draws images, every layer exactly given the one above.

    Args:
      key: of the samples.
      top: of the highest layer, one for each image; None draws it from its
        prior (ancestral sampling).
      count: images, where `top` is None.

    Returns:
      Mean images given the lowest layer that was drawn.
    """

    def one(key, top):
      top_key, *keys = jax.random.split(key, 1 + len(self.generative))
      bias = self.generative[-1].bias
      if top is None:
        top = self._draw(top_key, bias, energy.no_drive(bias))
      capsules = top
      for key, (lower, upper) in zip(
        keys, _pairs_downwards(self.generative), strict=False
      ):
        drive = energy.drive_between(capsules, upper.weights[...], None)
        capsules = self._draw(key, lower.bias, drive)
      natural = self._visible_parameters(capsules)
      return self.families[0].moments(natural)[0]

    size = count if top is None else len(top.switches)
    images = jax.vmap(one)(jax.random.split(key, size), top)
    return images.reshape(-1, *self.visible_shape)

  def sample_upwards(
    self, key: Key[Array, ""], images: Float[Array, "B ..."]
  ) -> energy.Capsules:
    """Draws the highest layer, every layer exactly given the one below."""

    def one(key, below):
      for layer in self.recognition:
        key, layer_key = jax.random.split(key)
        below = self._draw(layer_key, layer.bias, _upwards(below, layer))
      return below

    keys = jax.random.split(key, len(images))
    return jax.vmap(one)(keys, images.reshape(len(images), -1))

  def reconstruct(self, capsules: energy.Capsules) -> Float[Array, "B ..."]:
    """Mean images given capsules of the lowest layer."""
    means = jax.vmap(
      lambda capsules: self.families[0].moments(
        self._visible_parameters(capsules)
      )[0]
    )(capsules)
    return means.reshape(-1, *self.visible_shape)

  def bound(
    self, key: Key[Array, ""], images: Float[Array, "B ..."], num_samples: int
  ) -> Bound:
    """Bounds on log p(x) from samples of the recognition model.

    Args:
      key: of the samples.
      images: of a Bernoulli model 0 and 1.
      num_samples: of each image.

    Returns:
      Two bounds for each image; they need no estimate of a partition function.
    """

    def weight(key, x):
      layers, log_q = [], 0.0
      for layer in self.recognition:
        key, layer_key = jax.random.split(key)
        drive = _upwards(layers[-1] if layers else x, layer)
        layers.append(self._draw(layer_key, layer.bias, drive))
        log_q += self._log_prob(layers[-1], layer.bias, drive)
      return self._joint(x, layers) - log_q

    def one(key, x):
      keys = jax.random.split(key, num_samples)
      weights = jax.vmap(weight, (0, None))(keys, x)
      mean = jax.nn.logsumexp(weights) - math.log(num_samples)
      return Bound(jnp.mean(weights), mean)

    keys = jax.random.split(key, len(images))
    return jax.vmap(one)(keys, images.reshape(len(images), -1))

  def _joint(self, x, layers):
    """The log of p(x, h, z) of one image (eq. 13)."""
    below, _ = self.families
    natural = self._visible_parameters(layers[0])
    total = (
      jnp.sum(natural * below.statistics(x))
      + jnp.sum(below.log_base(x))
      - jnp.sum(below.log_partition(natural))
    )
    for capsules, bias, drive in self._given_above(layers):
      total += self._log_prob(capsules, bias, drive)
    return total

  def _given_above(self, layers):
    """Each layer's capsules, biases and drive; nothing drives the highest."""
    for number, layer in enumerate(self.generative):
      drive = energy.no_drive(layer.bias)
      if number + 1 < len(layers):
        weights = self.generative[number + 1].weights[...]
        drive = energy.drive_between(layers[number + 1], weights, None)
      yield layers[number], layer.bias, drive

  def _log_prob(self, capsules, bias, drive):
    hidden = self.families[1]
    score = -energy.capsule_energy(capsules, bias, drive, hidden=hidden)
    return score - energy.log_partition(bias, drive, hidden=hidden)

  def _draw(self, key, bias, drive):
    return energy.sample(key, bias, drive, hidden=self.families[1])

  def _visible_parameters(self, capsules):
    layer = self.generative[0]
    parameters = energy.Parameters(
      self.visible[...], layer.bias, layer.weights[...], None
    )
    return energy.visible_parameters(capsules, parameters)

  def _expect(self, num_iterations):
    hidden = self.families[1]

    def expect(bias, drive):
      if num_iterations is None:
        return energy.posterior(bias, drive, hidden=hidden)
      return energy.mean_field(
        jax.nn.sigmoid(bias.switches),
        bias,
        drive,
        num_iterations=num_iterations,
        hidden=hidden,
      )

    return expect


def wake_sleep_loss(
  model: CapsuleHM,
  images: Float[Array, "B ..."],
  key: Key[Array, ""],
  *,
  num_iterations: int | None,
) -> tuple[Float[Array, ""], Float[Array, " B"]]:
  """A loss whose gradient is that of the tied wake-sleep algorithm.

  Wake: the capsules are inferred from the image, and the generative parameters
  learn to predict each layer from the one above. Sleep: from the same top layer
  the machine dreams an image, and the recognition parameters learn to infer the
  layers it came from. Each layer is compared with its mean field given the
  other one (the paper), or with what is exact.

  Args:
    model: of which both kinds of parameters learn.
    images: the data.
    key: of the dreamt images.
    num_iterations: of mean field; None for what is exact.

  Returns:
    The loss, whose value means nothing, and the mean absolute error of each
    image's reconstruction from its lowest layer.
  """
  graph, values = nnx.split(model)
  still = nnx.merge(graph, jax.lax.stop_gradient(values))
  awake = still.infer(images, num_iterations=num_iterations)
  error = jnp.abs(still.reconstruct(awake[0]) - images)
  dreamt, asleep = still.dream(key, awake[-1], num_iterations=num_iterations)

  expect = still._expect(num_iterations)
  hidden = model.families[1]

  def contrast(capsules, bias, drive):
    """Energy less that of what is expected: a gradient of -log p."""
    expected = expect(*jax.lax.stop_gradient((bias, drive)))
    return energy.capsule_energy(
      capsules, bias, drive, hidden=hidden
    ) - energy.capsule_energy(expected, bias, drive, hidden=hidden)

  def wake(x, layers):
    below = model.families[0]
    natural = model._visible_parameters(layers[0])
    loss = jnp.sum(below.log_partition(natural))
    loss -= jnp.sum(natural * below.statistics(x))
    for layer in model._given_above(layers):
      loss += contrast(*layer)
    return loss

  def sleep(x, layers):
    loss = 0.0
    for number, layer in enumerate(model.recognition):
      below = layers[number - 1] if number else x
      loss += contrast(layers[number], layer.bias, _upwards(below, layer))
    return loss

  flat = images.reshape(len(images), -1), dreamt.reshape(len(images), -1)
  loss = jnp.mean(jax.vmap(wake)(flat[0], awake))
  loss += jnp.mean(jax.vmap(sleep)(flat[1], asleep))
  return loss, jnp.mean(error, axis=range(1, error.ndim))


def start_from(
  model: CapsuleHM, machines: Sequence[boltzmann.CapsuleRBM]
) -> None:
  """Sets both kinds of parameters to those of capsule RBMs, layer by layer.

  Args:
    model: the machine.
    machines: the lowest was trained on images, each other one on the active
      units z h of the capsules below it. Recognition starts as the transpose of
      generation.

  Raises:
    ValueError: if there is not one machine for each layer, or one of them has
      Omega, no switches, or other families of units.
  """
  if len(machines) != len(model.generative):
    raise ValueError(
      f"{len(machines)} machines for {len(model.generative)} layers; give one "
      "for each."
    )
  families = [model.families, *[(model.families[1],) * 2] * len(machines)]
  for number, machine in enumerate(machines):
    if machine.interaction is not None or machine.switches is None:
      raise ValueError(f"machine {number} has Omega, or has no switches.")
    if machine.families != families[number]:
      raise ValueError(f"machine {number} has other families of units.")
  model.visible[...] = machines[0].visible[...]
  for number, machine in enumerate(machines):
    for layer in (model.generative[number], model.recognition[number]):
      layer.hidden[...] = machine.hidden[...]
      layer.switches[...] = machine.switches[...]
      layer.weights[...] = machine.weights[...].reshape(
        layer.weights[...].shape
      )


def _upwards(below, layer):
  """The drive of a layer's capsules from an image or the capsules below."""
  weights = layer.weights[...]
  if not isinstance(below, energy.Capsules):
    parameters = energy.Parameters(below[None], layer.bias, weights, None)
    return energy.drive_from_below(below, parameters)
  turned = weights.transpose(2, 3, 0, 1)
  return energy.drive_between(below, turned, None)


def _pairs_downwards(layers):
  """(lower, upper) neighbours from the top."""
  return zip(layers[-2::-1], layers[:0:-1], strict=True)
