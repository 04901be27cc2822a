"""The capsule Helmholtz machine (Li and Zhu, 2019, section 2.2)."""

import math
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from capjax import losses
from capjax.energy import units
from capjax.kernels import checks, energy


class Layer(nnx.Module):
  """A layer of capsules: its biases, and the weights to the layer below.

  The generative and the recognition model have a layer each: the generative
  layer holds the biases of the capsules and the weights with which they drive
  the layer below; the recognition layer holds the biases and weights by which
  they are inferred from the layer below.
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
    """Initialises W with standard deviation 0.001.

    Biases of hidden units are those of `units.standard`; those of switches
    are 0.

    Args:
      below: sizes of the layer below, (M,) of visible units or (K, J) of
        capsules.
      num_capsules: capsules of this layer.
      capsule_size: hidden units of a capsule.
      family: family of the hidden units, one of `units.FAMILIES`.
      rngs: its `params` stream initialises the weights.

    Raises:
      ValueError: if the family is unknown.
    """
    shape = (*below, num_capsules, capsule_size)
    self.hidden = nnx.Param(units.standard(family, shape[-2:]))
    self.switches = nnx.Param(jnp.zeros(num_capsules, jnp.float32))
    normal = jax.random.normal(rngs.params(), shape, jnp.float32)
    self.weights = nnx.Param(0.001 * normal)

  @property
  def bias(self) -> energy.Bias:
    """The bias of the capsules, as the kernels take it."""
    return energy.Bias(self.hidden[...], self.switches[...])

  def driven_by(
    self, below: Float[Array, " M"] | energy.Capsules
  ) -> energy.Drive:
    """The drive of this layer by an image or by the capsules below.

    Args:
      below: one image as visible units, or the capsules below of one image.
    """
    weights = self.weights[...]
    if not isinstance(below, energy.Capsules):
      parameters = energy.Parameters(below[None], self.bias, weights, None)
      return energy.drive_from_below(below, parameters)
    turned = weights.transpose(2, 3, 0, 1)
    return energy.drive_between(below, turned, None)

  def drives(self, capsules: energy.Capsules) -> energy.Drive:
    """The drive of the layer below by the capsules of this layer.

    Args:
      capsules: of one image.

    Raises:
      ValueError: if this is the lowest layer, above visible units.
    """
    return energy.drive_between(capsules, self.weights[...], None)


class CapsuleHM(nnx.Module):
  """Layers of capsules, each driven by the layer above; the lowest drives x.

  p(x | h1, z1) prod_l p(h_l, z_l | h_{l+1}, z_{l+1}) p(h_L, z_L) (eq. 13), with
  a recognition model of the same form from below. Within a layer the capsules
  are independent given those above, so that every factor is normalised exactly
  (our addition: the paper considers annealed importance sampling necessary).

  Differs from paper: no Omega, which the authors' scripts leave out too; mean
  field starts from the biases of the switches without noise.
  """

  def __init__(
    self,
    image_shape: Sequence[int] = (28, 28, 1),
    *,
    num_capsules: Sequence[int] = (40, 40),
    capsule_size: int = 16,
    visible: str = "bernoulli",
    hidden: str = "bernoulli",
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      image_shape: shape of an image.
      num_capsules: capsules of each layer, from the lowest.
      capsule_size: hidden units of a capsule.
      visible: family of the pixels, one of `units.FAMILIES`.
      hidden: family of the hidden units.
      rngs: its `params` stream initialises the parameters.

    Raises:
      ValueError: if a family is unknown, there is no layer, or a size is below
        1.
    """
    checks.rngs(rngs)
    checks.sequences(image_shape=image_shape, num_capsules=num_capsules)
    if not len(num_capsules):
      raise ValueError("num_capsules is empty; give one number for each layer.")
    checks.counts(capsule_size=capsule_size)
    self.families = units.family(visible), units.family(hidden)
    self.image_shape = tuple(image_shape)
    size = math.prod(image_shape)
    self.visible = nnx.Param(units.standard(visible, (size,)))
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
      num_iterations: iterations of mean field, as in the paper; None for exact
        expectations given those below.

    Returns:
      The layers from the lowest, with a leading batch axis.

    Raises:
      TypeError: if the images hold integers.
      ValueError: if the images have another shape, or, where values are known
        (not under jit), they are not finite or, for Bernoulli units, outside
        of [0, 1].
    """

    def one(x):
      layers = []
      for layer in self.recognition:
        drive = layer.driven_by(layers[-1] if layers else x)
        layers.append(self.expect(layer.bias, drive, num_iterations))
      return layers

    return jax.vmap(one)(self._visible(images))

  def _visible(self, images):
    return units.visible(images, self.image_shape, self.families[0])

  def dream(
    self,
    key: Key[Array, ""],
    top: energy.Capsules,
    *,
    num_iterations: int | None = None,
  ) -> tuple[Float[Array, "B ..."], list[energy.Capsules]]:
    """The sleep phase: expectations from the top layer down, then an image.

    Args:
      key: samples the pixels of the images.
      top: capsules of the highest layer, with a leading batch axis; in the tied
        algorithm those of the wake phase.
      num_iterations: iterations of mean field; None for exact expectations
        given those above.

    Returns:
      Sampled images, and the layers from the lowest.
    """

    def one(key, top):
      layers = [top]
      for lower, upper in _pairs_downwards(self.generative):
        drive = upper.drives(layers[0])
        layers.insert(0, self.expect(lower.bias, drive, num_iterations))
      natural = self.visible_parameters(layers[0])
      return self.families[0].sample(key, natural), layers

    keys = jax.random.split(key, len(top.switches))
    images, layers = jax.vmap(one)(keys, top)
    return images.reshape(-1, *self.image_shape), layers

  def sample_top(self, key: Key[Array, ""], count: int) -> energy.Capsules:
    """Samples the highest layer from its prior.

    Args:
      key: random key of the samples.
      count: number of samples, B.

    Returns:
      Capsules with a leading axis B; switches are 0 or 1.
    """
    bias = self.generative[-1].bias
    drive = energy.no_drive(bias)
    return jax.vmap(lambda key: self._sample(key, bias, drive))(
      jax.random.split(key, count)
    )

  def sample_downwards(
    self, key: Key[Array, ""], top: energy.Capsules
  ) -> energy.Capsules:
    """Samples each layer given the one above; returns the lowest layer.

    Args:
      key: random key of the samples.
      top: capsules of the highest layer, with a leading batch axis.
    """

    def one(key, capsules):
      for lower, upper in _pairs_downwards(self.generative):
        key, layer_key = jax.random.split(key)
        capsules = self._sample(layer_key, lower.bias, upper.drives(capsules))
      return capsules

    return jax.vmap(one)(jax.random.split(key, len(top.switches)), top)

  def sample_images(
    self, key: Key[Array, ""], capsules: energy.Capsules
  ) -> Float[Array, "B ..."]:
    """Samples images given capsules of the lowest layer.

    Args:
      key: random key of the samples.
      capsules: of the lowest layer, with a leading batch axis.

    Returns:
      Values in the units of the visible family; 0 or 1 for Bernoulli units.
    """
    natural = jax.vmap(self.visible_parameters)(capsules)
    keys = jax.random.split(key, len(natural))
    images = jax.vmap(self.families[0].sample)(keys, natural)
    return images.reshape(-1, *self.image_shape)

  def sample_upwards(
    self, key: Key[Array, ""], images: Float[Array, "B ..."]
  ) -> energy.Capsules:
    """Samples each layer given the one below; returns the highest layer.

    Args:
      key: random key of the samples.
      images: as for `infer`.

    Returns:
      Capsules with a leading batch axis; switches are 0 or 1.

    Raises:
      TypeError: as `infer`.
      ValueError: as `infer`.
    """

    def one(key, below):
      for layer in self.recognition:
        key, layer_key = jax.random.split(key)
        below = self._sample(layer_key, layer.bias, layer.driven_by(below))
      return below

    below = self._visible(images)
    return jax.vmap(one)(jax.random.split(key, len(below)), below)

  def reconstruct(self, capsules: energy.Capsules) -> Float[Array, "B ..."]:
    """Mean images given capsules of the lowest layer.

    Args:
      capsules: of the lowest layer, with a leading batch axis.

    Returns:
      Means in the units of the visible family; in [0, 1] for Bernoulli units.
    """
    natural = jax.vmap(self.visible_parameters)(capsules)
    return units.mean_images(natural, self.image_shape, self.families[0])

  def activities(
    self, images: Float[Array, "B ..."]
  ) -> list[Float[Array, "B K"]]:
    """Exact probabilities of the switches of each layer, given those below.

    Args:
      images: as for `infer`.

    Returns:
      [B K] in [0, 1] for each layer, from the lowest.

    Raises:
      TypeError: as `infer`.
      ValueError: as `infer`.
    """
    return [capsules.switches for capsules in self.infer(images)]

  def bound(
    self,
    key: Key[Array, ""],
    images: Float[Array, "B ..."],
    num_samples: int,
    *,
    from_expectations: bool = False,
    num_iterations: int | None = None,
  ) -> losses.Bound:
    """Bounds on log p(x) from samples of the recognition model.

    The weights define two recognition models, and each gives valid bounds. In
    the first, each layer is driven by a sample of the layer below. In the
    second, each layer is driven by the expectations of the layer below, as in
    `infer`, so that layers are independent given x; wake-sleep trains this one.

    Args:
      key: random key of the samples.
      images: 0 and 1 for a Bernoulli model.
      num_samples: samples for each image.
      from_expectations: uses the second recognition model.
      num_iterations: iterations of mean field for these expectations; None for
        exact expectations given those below.

    Returns:
      Two bounds for each image; they need no estimate of a partition function.

    Raises:
      TypeError: as `infer`.
      ValueError: as `infer`, or if `num_iterations` is given without
        `from_expectations`.
    """
    if num_iterations is not None and not from_expectations:
      raise ValueError(
        f"num_iterations is {num_iterations}, but samples need none; "
        "give it with from_expectations=True."
      )

    def weight(key, x, expected):
      sampled, log_q = [], 0.0
      for number, layer in enumerate(self.recognition):
        key, layer_key = jax.random.split(key)
        below = [x, *(expected if from_expectations else sampled)][number]
        drive = layer.driven_by(below)
        sampled.append(self._sample(layer_key, layer.bias, drive))
        log_q += self._log_prob(sampled[-1], layer.bias, drive)
      return self._joint(x, sampled) - log_q

    def one(key, x, expected):
      keys = jax.random.split(key, num_samples)
      weights = jax.vmap(weight, (0, None, None))(keys, x, expected)
      return losses.likelihood_bound(weights)

    expected = self.infer(images, num_iterations=num_iterations)
    keys = jax.random.split(key, len(images))
    return jax.vmap(one)(keys, images.reshape(len(images), -1), expected)

  def visible_parameters(
    self, capsules: energy.Capsules
  ) -> Float[Array, "R M"]:
    """Natural parameters of the pixels of one image, given its lowest layer.

    Args:
      capsules: of the lowest layer, without a batch axis.
    """
    layer = self.generative[0]
    parameters = energy.Parameters(
      self.visible[...], layer.bias, layer.weights[...], None
    )
    return energy.visible_parameters(capsules, parameters)

  def given_above(
    self, layers: Sequence[energy.Capsules]
  ) -> Iterator[tuple[energy.Capsules, energy.Bias, energy.Drive]]:
    """Each layer of one image, with its generative bias and drive from above.

    The drive of the highest layer is zero.

    Args:
      layers: the capsules of each layer, from the lowest.
    """
    above = [
      layer.drives(capsules)
      for layer, capsules in zip(self.generative[1:], layers[1:], strict=True)
    ]
    biases = [layer.bias for layer in self.generative]
    above.append(energy.no_drive(biases[-1]))
    return zip(layers, biases, above, strict=True)

  def expect(
    self, bias: energy.Bias, drive: energy.Drive, num_iterations: int | None
  ) -> energy.Capsules:
    """Expected capsules: by mean field, or exact if iterations are None.

    Args:
      bias: of one layer.
      drive: of this layer, for one image.
      num_iterations: iterations of mean field, >= 0; None for exact
        expectations.
    """
    hidden = self.families[1]
    if num_iterations is None:
      return energy.posterior(bias, drive, hidden=hidden)
    assert bias.switches is not None  # every layer has switches
    start = jax.nn.sigmoid(bias.switches)
    return energy.mean_field(
      start, bias, drive, num_iterations=num_iterations, hidden=hidden
    )

  def _joint(self, x, layers):
    """The log of p(x, h, z) of one image (eq. 13)."""
    below, _ = self.families
    natural = self.visible_parameters(layers[0])
    total = (
      jnp.sum(natural * below.statistics(x))
      + jnp.sum(below.log_base(x))
      - jnp.sum(below.log_partition(natural))
    )
    for capsules, bias, drive in self.given_above(layers):
      total += self._log_prob(capsules, bias, drive)
    return total

  def _log_prob(self, capsules, bias, drive):
    hidden = self.families[1]
    score = -energy.capsule_energy(capsules, bias, drive, hidden=hidden)
    return score - energy.log_partition(bias, drive, hidden=hidden)

  def _sample(self, key, bias, drive):
    return energy.sample(key, bias, drive, hidden=self.families[1])


def _pairs_downwards(layers):
  """(lower, upper) neighbours from the top."""
  return zip(layers[-2::-1], layers[:0:-1], strict=True)
