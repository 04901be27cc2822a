"""How a capsule Helmholtz machine learns (Li and Zhu, 2019, section 2.2).

Layer by layer as capsule RBMs, and then as a whole by wake and sleep.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from capjax import layers
from capjax.energy import rbm
from capjax.energy.helmholtz import CapsuleHM
from kernels import energy


class Stack(nnx.Module):
  """Capsule RBMs, each over the active units z h of the one below.

  Only the highest learns, by a loss on what `below_top` gives: the gradient of
  the others is 0. Its visible biases stay those that the layer below learnt for
  its hidden units; the machine that is handed in is changed so.
  """

  def __init__(self, machines: Sequence[rbm.CapsuleRBM]):
    """Puts machines on top of each other.

    Args:
      machines: from the lowest; each other one has as many visible units as the
        one below has hidden ones, of the same family.

    Raises:
      ValueError: if one does not fit on the one below.
    """
    for number, (lower, upper) in enumerate(
      zip(machines[:-1], machines[1:], strict=True)
    ):
      natural = lower.hidden[...].reshape(len(lower.hidden[...]), -1)
      if (
        upper.visible[...].shape != natural.shape
        or upper.families[0] is not lower.families[1]
      ):
        raise ValueError(
          f"machine {number + 1} has visible units of other number or family "
          f"than the hidden units of machine {number}."
        )
      upper.visible = layers.Fixed(natural)
    self.machines = nnx.List(machines)

  @property
  def top(self) -> rbm.CapsuleRBM:
    """The machine that learns."""
    return self.machines[-1]

  @property
  def fantasy(self) -> rbm.Fantasy | None:
    """The chains of the machine that learns."""
    return self.top.fantasy

  def below_top(
    self, images: Float[Array, "B ..."], *, num_iterations: int | None = None
  ) -> Float[Array, "B ..."]:
    """What the highest machine sees of images.

    Args:
      images: in the units of the lowest machine.
      num_iterations: of mean field; None for the exact posterior.

    Returns:
      Expected active units of the machine below it, or the images themselves.
    """
    for machine in self.machines[:-1]:
      images = machine.infer(images, num_iterations=num_iterations).active
    return jax.lax.stop_gradient(images)


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
  other one (the paper), or with what is exact. The recognition model that so
  learns infers each layer from the expectations of the layer below, not from
  samples of it: `CapsuleHM.bound` bounds the likelihood by either.

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
  redrawn = still.reconstruct(awake[0]).reshape(images.shape)
  error = jnp.abs(redrawn - images)
  dreamt, asleep = still.dream(key, awake[-1], num_iterations=num_iterations)
  hidden = model.families[1]

  def contrast(capsules, bias, drive):
    """Energy less that of what is expected: a gradient of -log p."""
    given = jax.lax.stop_gradient((bias, drive))
    expected = still.expect(*given, num_iterations)
    return energy.capsule_energy(
      capsules, bias, drive, hidden=hidden
    ) - energy.capsule_energy(expected, bias, drive, hidden=hidden)

  def wake(x, layers):
    below = model.families[0]
    natural = model.visible_parameters(layers[0])
    loss = jnp.sum(below.log_partition(natural))
    loss -= jnp.sum(natural * below.statistics(x))
    for layer in model.given_above(layers):
      loss += contrast(*layer)
    return loss

  def sleep(x, layers):
    below = [x, *layers[:-1]]
    return sum(
      contrast(capsules, layer.bias, layer.driven_by(seen))
      for capsules, layer, seen in zip(
        layers, model.recognition, below, strict=True
      )
    )

  flat = images.reshape(len(images), -1), dreamt.reshape(len(images), -1)
  loss = jnp.mean(jax.vmap(wake)(flat[0], awake))
  loss += jnp.mean(jax.vmap(sleep)(flat[1], asleep))
  return loss, jnp.mean(error, axis=range(1, error.ndim))


def start_from(model: CapsuleHM, machines: Sequence[rbm.CapsuleRBM]) -> None:
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
  model.visible[...] = jnp.copy(machines[0].visible[...])
  for number, machine in enumerate(machines):
    for layer in (model.generative[number], model.recognition[number]):
      # Copies: buffers that are shared cannot be given away in training.
      layer.hidden[...] = jnp.copy(machine.hidden[...])
      layer.switches[...] = jnp.copy(machine.switches[...])
      shape = layer.weights[...].shape
      layer.weights[...] = jnp.copy(machine.weights[...]).reshape(shape)
