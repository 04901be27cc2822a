"""Training of capsule Helmholtz machines (Li and Zhu, 2019, section 2.2).

First layer by layer as capsule RBMs, then as a whole by the wake-sleep
algorithm.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from capjax import layers
from capjax.energy import rbm
from capjax.energy.helmholtz import CapsuleHM
from capjax.kernels import checks, energy


class Stack(nnx.Module):
  """Capsule RBMs, each over the active units z h of the one below.

  Only the highest RBM learns, by a loss on the output of `below_top`; the
  gradient of the others is 0. The visible biases of each RBM but the lowest are
  fixed to the hidden biases of the RBM below; this modifies the RBMs passed in.
  """

  def __init__(self, machines: Sequence[rbm.CapsuleRBM]):
    """Stacks machines.

    Args:
      machines: from the lowest; each has as many visible units as the one below
        has hidden units, of the same family.

    Raises:
      ValueError: if a machine does not fit the one below.
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
          f"machine {number + 1} has visible units of another number or family "
          f"than the hidden units of machine {number}; give machines that fit."
        )
      upper.visible = layers.Fixed(natural)
    self.machines = nnx.List(machines)

  @property
  def top(self) -> rbm.CapsuleRBM:
    """The highest machine, which learns."""
    return self.machines[-1]

  @property
  def fantasy(self) -> rbm.Fantasy | None:
    """The persistent chains of the highest machine."""
    return self.top.fantasy

  def below_top(
    self, images: Float[Array, "B ..."], *, num_iterations: int | None = None
  ) -> Float[Array, "B ..."]:
    """The visible units of the highest machine for images.

    Args:
      images: in the units of the lowest machine.
      num_iterations: iterations of mean field; None for the exact posterior.

    Returns:
      Expected active units of the machine below it, or the images if there is
      none.
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
  learn to predict each layer from the one above. Sleep: an image is generated
  from the same top layer, and the recognition parameters learn to infer the
  layers that generated it. Each layer is compared with its mean field given the
  neighbouring layer (the paper), or with exact expectations. The recognition
  model that is trained this way infers each layer from the expectations of the
  layer below, not from samples of it; `CapsuleHM.bound` bounds the likelihood
  by either.

  Args:
    model: the machine, whose generative and recognition parameters both learn.
    images: the data.
    key: samples the images of the sleep phase.
    num_iterations: iterations of mean field; None for exact expectations.

  Returns:
    The loss, whose value has no meaning, and the mean absolute error of each
    image's reconstruction from its lowest layer.
  """
  graph, values = nnx.split(model)
  frozen = nnx.merge(graph, jax.lax.stop_gradient(values))
  awake = frozen.infer(images, num_iterations=num_iterations)
  reconstructed = frozen.reconstruct(awake[0]).reshape(images.shape)
  error = jnp.abs(reconstructed - images)
  dreamt, asleep = frozen.dream(key, awake[-1], num_iterations=num_iterations)
  hidden = model.families[1]

  def contrast(capsules, bias, drive):
    """Energy minus that of the expectations; the gradient is that of -log p."""
    given = jax.lax.stop_gradient((bias, drive))
    expected = frozen.expect(*given, num_iterations)
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
  """Sets generative and recognition parameters from capsule RBMs, by layer.

  Args:
    model: the machine.
    machines: from the lowest, which was trained on images, the others on the
      active units z h of the capsules below. The recognition weights start as
      the transpose of the generative weights.

  Raises:
    ValueError: if there is not one machine for each layer, or one of them has
      Omega, no switches, or other families or numbers of units.
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
    layer = model.generative[number]
    count, wanted = machine.weights[...].size, layer.weights[...].size
    checks.same_shape(
      layer.hidden[...].shape,
      **{f"the hidden units of machine {number}": machine.hidden[...]},
    )
    if count != wanted:
      raise ValueError(
        f"machine {number} has {count} weights; give one of the size of layer "
        f"{number}, which has {wanted}."
      )
  model.visible[...] = jnp.copy(machines[0].visible[...])
  for number, machine in enumerate(machines):
    assert machine.switches is not None  # as checked above
    for layer in (model.generative[number], model.recognition[number]):
      # Copies: shared buffers cannot be donated in training.
      layer.hidden[...] = jnp.copy(machine.hidden[...])
      layer.switches[...] = jnp.copy(machine.switches[...])
      shape = layer.weights[...].shape
      layer.weights[...] = jnp.copy(machine.weights[...]).reshape(shape)
