"""The capsule RBM (Li and Zhu, 2019, section 2.1)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from capjax import layers
from capjax.energy import units
from capjax.kernels import checks, energy

# Standard deviation of the noise on the initial logits of mean field, as in the
# authors' code.
_START_NOISE = 0.1


class PersistentChains(NamedTuple):
  """The states of persistent chains: samples of the model.

  Attributes:
    hidden: [N K J], h.
    switches: [N K], z.
    age: sweeps since the chains were started from data; 0 if they are still to
      be started. A floating-point number, so that `jax.grad` accepts the module
      that holds it.
  """

  hidden: Float[Array, "N K J"]
  switches: Float[Array, "N K"]
  age: Float[Array, ""]


class Fantasy(nnx.Variable):
  """Holds `PersistentChains`; not trained."""


class CapsuleRBM(nnx.Module):
  """A layer of stochastic capsules over visible units.

  Without switches it is a plain RBM with K x J hidden units. Defaults are the
  paper's sizes for MNIST.
  """

  def __init__(
    self,
    image_shape: Sequence[int] = (28, 28, 1),
    *,
    num_capsules: int = 40,
    capsule_size: int = 16,
    visible: str = "bernoulli",
    hidden: str = "bernoulli",
    interaction: bool = False,
    switches: bool = True,
    num_chains: int = 0,
    rngs: nnx.Rngs,
  ):
    """Initialises W with standard deviation 0.001, and Omega with 0.

    Biases of visible and hidden units are those of `units.standard`; those of
    switches are 0.

    Args:
      image_shape: shape of an image, or of the active units of capsules
        below.
      num_capsules: K.
      capsule_size: J, hidden units of a capsule.
      visible: family of the visible units, one of `units.FAMILIES`.
      hidden: family of the hidden units.
      interaction: adds Omega between visible units and switches; the authors'
        scripts have it for Fashion-MNIST only.
      switches: False for a plain RBM.
      num_chains: persistent chains, kept in the model for
        `contrastive.contrastive_loss`.
      rngs: its `params` stream initialises the parameters.

    Raises:
      ValueError: if a family is unknown, a size below 1, the number of chains
        below 0, or `interaction` is set without switches.

    Differs from the authors' scripts: Gaussian models there start with W = 0
    and b1 sampled from N(0, 1).
    """
    checks.rngs(rngs)
    checks.sequences(image_shape=image_shape)
    checks.counts(num_capsules=num_capsules, capsule_size=capsule_size)
    checks.counts(at_least=0, num_chains=num_chains)
    if interaction and not switches:
      raise ValueError("interaction needs switches; give switches=True.")
    self.image_shape = tuple(image_shape)
    self.families = units.family(visible), units.family(hidden)
    size = math.prod(image_shape)
    shape = (size, num_capsules, capsule_size)
    normal = jax.random.normal(rngs.params(), shape, jnp.float32)
    self.visible: nnx.Variable = nnx.Param(units.standard(visible, (size,)))
    self.hidden = nnx.Param(units.standard(hidden, shape[1:]))
    self.weights = nnx.Param(0.001 * normal)
    self.switches = (
      nnx.Param(jnp.zeros(num_capsules, jnp.float32)) if switches else None
    )
    self.interaction = (
      nnx.Param(jnp.zeros(shape[:2], jnp.float32)) if interaction else None
    )
    self.fantasy = (
      Fantasy(
        PersistentChains(
          jnp.zeros((num_chains, *shape[1:]), jnp.float32),
          jnp.zeros((num_chains, num_capsules), jnp.float32),
          jnp.float32(0),
        )
      )
      if num_chains
      else None
    )

  @property
  def parameters(self) -> energy.Parameters:
    """The parameters, as the kernels take them."""
    bias = energy.Bias(self.hidden[...], _value(self.switches))
    visible = self.visible[...]
    if isinstance(self.visible, layers.Fixed):  # fixed by the machine below
      visible = jax.lax.stop_gradient(visible)
    return energy.Parameters(
      visible, bias, self.weights[...], _value(self.interaction)
    )

  def drive(self, images: Float[Array, "B ..."]) -> energy.Drive:
    """The drive of the capsules by images: [B K J] and [B K].

    Args:
      images: in the units of the visible family.

    Raises:
      TypeError: if the images hold integers.
      ValueError: if the images have another shape, or, where values are known
        (not under jit), they are not finite or, for Bernoulli units, outside
        of [0, 1].
    """
    return jax.vmap(lambda x: energy.drive_from_below(x, self.parameters))(
      self._visible(images)
    )

  def _visible(self, images):
    return units.visible(images, self.image_shape, self.families[0])

  def infer(
    self,
    images: Float[Array, "B ..."],
    *,
    num_iterations: int | None = None,
    key: Key[Array, ""] | None = None,
  ) -> energy.Capsules:
    """Expectations of the capsules given images.

    Args:
      images: in the units of the visible family; intensities in [0, 1] count as
        probabilities of Bernoulli units.
      num_iterations: iterations of mean field; None for the exact posterior,
        which a model without switches always takes.
      key: samples noise of standard deviation 0.1, which is added to the
        initial log odds c_k of the switches in mean field, as in the authors'
        code; None for no noise.

    Returns:
      Capsules with a leading batch axis.

    Raises:
      TypeError: as `drive`, or, with switches, if `num_iterations` is no whole
        number.
      ValueError: as `drive`, or, with switches, if `num_iterations` is below 0.
    """
    hidden = self.families[1]
    drive = self.drive(images)
    bias = self.parameters.bias
    if num_iterations is None or bias.switches is None:
      return jax.vmap(
        lambda drive: energy.posterior(bias, drive, hidden=hidden)
      )(drive)
    logits = jnp.broadcast_to(bias.switches, drive.switches.shape)
    if key is not None:
      logits += _START_NOISE * jax.random.normal(
        key, logits.shape, logits.dtype
      )
    return jax.vmap(
      lambda start, drive: energy.mean_field(
        start, bias, drive, num_iterations=num_iterations, hidden=hidden
      )
    )(jax.nn.sigmoid(logits), drive)

  def activities(
    self, images: Float[Array, "B ..."]
  ) -> list[Float[Array, "B K"]]:
    """Probabilities of the switches; without them, means of hidden units.

    Args:
      images: as for `infer`.

    Returns:
      One array [B K] in [0, 1]; without switches [B K*J], the means of all
      hidden units in the units of their family.

    Raises:
      TypeError: as `drive`.
      ValueError: as `drive`.
    """
    capsules = self.infer(images)
    if self.switches is None:
      return [capsules.active.reshape(len(images), -1)]
    return [capsules.switches]

  def reconstruct(self, capsules: energy.Capsules) -> Float[Array, "B ..."]:
    """Mean images given capsules with a leading batch axis.

    Args:
      capsules: h and z, or expectations of them, with a leading batch axis.

    Returns:
      Means in the units of the visible family; in [0, 1] for Bernoulli units.
    """
    natural = self._visible_parameters(capsules)
    return units.mean_images(natural, self.image_shape, self.families[0])

  def free_energy(self, images: Float[Array, "B ..."]) -> Float[Array, " B"]:
    """The free energy F(x) of each image: log p(x) = -F(x) - log Z.

    Args:
      images: as for `infer`.

    Returns:
      F(x) in nats.

    Raises:
      TypeError: as `drive`.
      ValueError: as `drive`.
    """
    return jax.vmap(
      lambda x: energy.free_energy(x, self.parameters, families=self.families)
    )(self._visible(images))

  def capsules(self, fantasies: PersistentChains) -> energy.Capsules:
    """The states of the chains as capsules with a leading axis.

    Args:
      fantasies: the states of N chains.

    Returns:
      Capsules with a leading axis N.
    """
    return jax.vmap(
      lambda hidden, switches: energy.state(
        hidden, switches, hidden=self.families[1]
      )
    )(fantasies.hidden, fantasies.switches)

  def energies(
    self, images: Float[Array, "B ..."], capsules: energy.Capsules
  ) -> Float[Array, " B"]:
    """The energy E(x, h, z) of each image with its capsules.

    Args:
      images: as for `infer`.
      capsules: the capsules of each image, with a leading batch axis.

    Returns:
      E(x, h, z) in nats.

    Raises:
      TypeError: as `drive`.
      ValueError: as `drive`, or if the capsules have other shapes than those of
        the model.
    """
    return jax.vmap(
      lambda x, capsules: energy.energy(
        x, capsules, self.parameters, families=self.families
      )
    )(self._visible(images), capsules)

  def sample_capsules(
    self, key: Key[Array, ""], images: Float[Array, "B ..."]
  ) -> energy.Capsules:
    """Samples the capsules of images from their exact posterior.

    Args:
      key: random key of the samples.
      images: as for `infer`.

    Returns:
      One sample for each image, with a leading batch axis; switches are 0 or 1.

    Raises:
      TypeError: as `drive`.
      ValueError: as `drive`.
    """
    return jax.vmap(
      lambda key, drive: energy.sample(
        key, self.parameters.bias, drive, hidden=self.families[1]
      )
    )(jax.random.split(key, len(images)), self.drive(images))

  def sample_hidden(
    self,
    key: Key[Array, ""],
    images: Float[Array, "B ..."],
    switches: Float[Array, "B K"],
  ) -> energy.Capsules:
    """Samples the hidden units of images, given the switches.

    Args:
      key: random key of the samples.
      images: as for `infer`.
      switches: z of each image; 0 or 1.

    Returns:
      One sample of h for each image, together with the given switches.

    Raises:
      TypeError: as `drive`.
      ValueError: as `drive`, or if the switches are not [B K].
    """
    return jax.vmap(
      lambda key, drive, switches: energy.sample_hidden(
        key,
        switches,
        self.parameters.bias,
        drive,
        hidden=self.families[1],
      )
    )(jax.random.split(key, len(images)), self.drive(images), switches)

  def sample_images(
    self, key: Key[Array, ""], capsules: energy.Capsules
  ) -> Float[Array, "B ..."]:
    """Samples images given capsules with a leading batch axis.

    Args:
      key: random key of the samples.
      capsules: h and z, with a leading batch axis.

    Returns:
      Values in the units of the visible family; 0 or 1 for Bernoulli units.
    """
    natural = self._visible_parameters(capsules)
    keys = jax.random.split(key, len(natural))
    images = jax.vmap(self.families[0].sample)(keys, natural)
    return images.reshape(-1, *self.image_shape)

  def sweep(
    self,
    key: Key[Array, ""],
    capsules: energy.Capsules,
    *,
    block: bool = False,
  ) -> tuple[energy.Capsules, Float[Array, "B ..."]]:
    """One sweep of Gibbs sampling: x given the capsules, then capsules given x.

    Args:
      key: random key of the sweep.
      capsules: the state of each chain.
      block: samples z and h jointly from their exact posterior; otherwise z
        given the old h and then h given z, as in the paper.

    Returns:
      The new capsules, and the images from which they were sampled.
    """
    image_key, capsule_key = jax.random.split(key)
    images = self.sample_images(image_key, capsules)
    if block:
      return self.sample_capsules(capsule_key, images), images
    capsules = jax.vmap(
      lambda key, capsules, drive: energy.gibbs(
        key, capsules, self.parameters.bias, drive, hidden=self.families[1]
      )
    )(jax.random.split(capsule_key, len(images)), capsules, self.drive(images))
    return capsules, images

  def set_chains(self, chains: PersistentChains | None) -> None:
    """Stores the chains that a loss returned; does nothing if they are None.

    Args:
      chains: of `num_chains` states, or None.

    Raises:
      ValueError: if the model was made without persistent chains, or its chains
        have other shapes.
    """
    if chains is None:
      return
    if self.fantasy is None:
      raise ValueError(
        "this model has no persistent chains; make it with num_chains above 0."
      )
    held = self.fantasy.get_value()
    own, new = (jax.tree.map(jnp.shape, x) for x in (held, chains))
    if own != new:
      raise ValueError(
        f"chains are {new}; give those of a loss of this model, {own}."
      )
    self.fantasy.set_value(chains)

  def _visible_parameters(self, capsules):
    return jax.vmap(
      lambda capsules: energy.visible_parameters(capsules, self.parameters)
    )(capsules)


def _value(variable):
  return None if variable is None else variable[...]
