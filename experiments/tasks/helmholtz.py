"""The capsule Helmholtz machine: layer by layer, then by wake-sleep.

Li and Zhu (2019), Capsule generative models, sections 2.2 and 3.2.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from capjax import data
from capjax.energy import helmholtz, rbm, wake_sleep
from capjax.specs import Spec

from ..training import task as tasks
from ..training import train_step
from ..training.task import Task, described
from . import boltzmann

# (layer, from 1; task; record of the RBM; training set; validation set) ->
# (trained stack, seconds)
FitLayer = Callable[
  [int, Task, dict[str, Any], data.Dataset, data.Dataset],
  tuple[wake_sleep.Stack, float],
]


class Pretraining(NamedTuple):
  """How a capsule RBM is trained for each layer before wake-sleep training.

  Attributes:
    fit: trains the RBM of one layer, on top of those below; see `FitLayer`.
    optimizer: the optimiser of its parameters.
    num_sweeps: as for `boltzmann.make_task`.
    block: as for `boltzmann.make_task`.
    num_chains: number of persistent chains; 0 starts new chains from the data
      in each update.
    seed: of the first layer's initial parameters; each layer adds 1.
  """

  fit: FitLayer
  optimizer: optax.GradientTransformation
  num_sweeps: int = 20
  block: bool = False
  num_chains: int = 100
  seed: int = 0


@described(helmholtz.CapsuleHM)
def make_task(
  model: Spec,
  optimizer: optax.GradientTransformation,
  *,
  num_iterations: int | None = 10,
  binary: bool = False,
  max_error: float = 0.5,
  pretraining: Pretraining | None = None,
) -> Task:
  """Training of a Helmholtz machine on images.

  Args:
    model: the machine, without `image_shape`, which follows from the data.
    optimizer: the optimiser of the parameters in wake-sleep training.
    num_iterations: as for `boltzmann.make_task`.
    binary: as for `boltzmann.make_task`.
    max_error: as for `boltzmann.make_task`.
    pretraining: of the layers; None for none.
  """

  def describe(image_shape, num_classes):
    del num_classes
    return model.with_arguments(image_shape=tuple(image_shape))

  def begin(machine, train, validation):
    boltzmann.set_pixel_biases(machine, model.argument("visible"), train)
    if pretraining is None:
      print("no pretraining: wake-sleep starts from random weights", flush=True)
      return 0.0
    below, total = [], 0.0
    count = len(model.argument("num_capsules"))
    for number in range(1, count + 1):
      print(f"capsule RBM of layer {number} of {count}", flush=True)
      task = make_layer_task(model, below, machine.visible[...], pretraining)
      # Of the layer's own RBM, without those below.
      spec = _describe_layer(model, below, train.images.shape[1:], pretraining)
      stack, seconds = pretraining.fit(
        number, task, tasks.spec_record(spec, train), train, validation
      )
      below = list(stack.machines)
      total += seconds
    print("wake-sleep training of all layers", flush=True)
    wake_sleep.start_from(machine, below)
    return total

  make_layer_task = functools.partial(
    _make_layer_task,
    num_iterations=num_iterations,
    binary=binary,
    max_error=max_error,
  )
  return Task(
    describe,
    functools.partial(loss, num_iterations=num_iterations),
    functools.partial(measure, num_iterations=num_iterations),
    optimizer=optimizer,
    suites=lambda model: [
      "errors",
      "dreams",
      "spectra",
      "bound",
      "out_of_distribution",
    ],
    after_training=("errors", "dreams", "spectra"),
    begin=begin,
    diverged=functools.partial(boltzmann.diverged, max_error=max_error),
    **boltzmann.shared(binary),
  )


def loss(
  model: helmholtz.CapsuleHM,
  images: jax.Array,
  labels: jax.Array,
  key: jax.Array,
  step: jax.Array,
  *,
  num_iterations: int | None,
) -> tuple[jax.Array, train_step.Metrics]:
  """The loss of a batch, whose gradient is that of wake-sleep training.

  With `num_iterations` bound, it is a `train_step.Loss`.

  Args:
    model: the Helmholtz machine.
    images: [B H W C] in [0, 1].
    labels: not used.
    key: samples the states of both phases.
    step: not used.
    num_iterations: as for `make_task`.
  """
  del labels, step
  value, errors = wake_sleep.wake_sleep_loss(
    model, images, key, num_iterations=num_iterations
  )
  return value, {"reconstruction_error": jnp.mean(errors)}


def measure(
  model: helmholtz.CapsuleHM,
  images: jax.Array,
  labels: jax.Array,
  *,
  num_iterations: int | None,
) -> train_step.Metrics:
  """Reconstruction errors, and shares of active capsules of each layer.

  Args:
    model: the Helmholtz machine.
    images: [B H W C] in [0, 1].
    labels: not used.
    num_iterations: as for `make_task`.

  Returns:
    Measures [B].
  """
  del labels
  layers = model.infer(images, num_iterations=num_iterations)

  def reconstruct(count):
    lowest, *_ = model.infer(images, num_iterations=count)
    return model.reconstruct(lowest)

  return {
    **boltzmann.reconstruction_errors(
      images, reconstruct, num_iterations=num_iterations
    ),
    **{
      f"active_capsules_{number + 1}": jnp.mean(layer.switches, axis=1)
      for number, layer in enumerate(layers)
    },
  }


def _describe_layer(
  model: Spec,
  below: Sequence[rbm.CapsuleRBM],
  image_shape: Sequence[int],
  pretraining: Pretraining,
) -> Spec:
  """The capsule RBM on top of others, or on images."""
  families = {name: model.argument(name) for name in ("visible", "hidden")}
  if below:
    families["visible"] = families["hidden"]
    image_shape = below[-1].hidden[...].shape[1:]
  arguments = dict(
    image_shape=tuple(image_shape),
    num_capsules=model.argument("num_capsules")[len(below)],
    num_chains=pretraining.num_chains,
    capsule_size=model.argument("capsule_size"),
  )
  return Spec(rbm.CapsuleRBM, arguments | families)


def _make_layer_task(
  model: Spec,
  below: Sequence[rbm.CapsuleRBM],
  pixels: jax.Array,
  pretraining: Pretraining,
  *,
  num_iterations: int | None,
  binary: bool,
  max_error: float,
) -> Task:
  """The task of a capsule RBM on top of others, or on images.

  On images, `pixels` are the biases of the visible units.
  """

  def make_stack(image_shape, rngs):
    del rngs  # the layer has its own seed
    # Copies, since training donates its buffers.
    machines = jax.tree.map(jnp.copy, list(below))
    seed = nnx.Rngs(pretraining.seed + len(below))
    top = _describe_layer(model, below, image_shape, pretraining).make(seed)
    if not below:
      top.visible[...] = jnp.copy(pixels)
    return wake_sleep.Stack([*machines, top])

  def of_top(function, **options):
    function = functools.partial(
      function, num_iterations=num_iterations, **options
    )

    def call(stack, images, *arguments):
      seen = stack.below_top(images, num_iterations=num_iterations)
      return function(stack.top, seen, *arguments)

    return call

  sweeps = {"num_sweeps": pretraining.num_sweeps, "block": pretraining.block}
  task = Task(
    lambda shape, _: Spec(make_stack, {"image_shape": shape}),
    of_top(boltzmann.loss, **sweeps),
    of_top(boltzmann.measure),
    optimizer=pretraining.optimizer,
    suites=lambda stack: [],
    after_training=(),
    **boltzmann.shared(binary),
  )
  if below:
    return task  # `max_error` is for errors of pixels, not of hidden units
  diverged = functools.partial(boltzmann.diverged, max_error=max_error)
  return task._replace(diverged=diverged)
