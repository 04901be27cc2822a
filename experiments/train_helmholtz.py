r"""Trains a capsule Helmholtz machine: layer by layer, then by wake-sleep.

  python -m experiments.train_helmholtz --workdir=runs/helmholtz \
    --data_dir=DIR --flagfile=experiments/presets/helmholtz/helmholtz_mnist.cfg

Each layer's capsule RBM has a folder of its own, layer_1 and so on.

Li and Zhu (2019), Capsule generative models, sections 2.2 and 3.2.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags
from flax import nnx

from capjax import data
from capjax.energy import helmholtz, rbm, wake_sleep
from capjax.specs import Spec

from . import launch
from .flags import boltzmann, limits, runs
from .run import directory
from .training import memory, train_step
from .training import task as tasks
from .training.task import Task

_NUM_CAPSULES = flags.DEFINE_list(
  "num_capsules",
  ["40", "40"],
  "Number of capsules in each layer, from the lowest.",
)
_PRETRAIN_STEPS = flags.DEFINE_integer(
  "pretrain_steps",
  6000,
  "Number of updates of each layer's capsule RBM; 0 starts with wake-sleep "
  "training.",
  lower_bound=0,
)
_PRETRAIN_RATE = flags.DEFINE_float(
  "pretrain_learning_rate",
  0.02,
  "Learning rate of pretraining, at the start.",
  lower_bound=0.0,
)
limits.require_counts(_NUM_CAPSULES, example="40,40")
flags.set_default(runs.NUM_STEPS, 6000)


def describe(image_shape: Sequence[int], num_classes: int) -> Spec:
  """The model that the flags describe."""
  del num_classes
  arguments = dict(
    visible_shape=tuple(image_shape), num_capsules=_num_capsules()
  )
  return Spec(helmholtz.CapsuleHM, arguments | boltzmann.sizes_and_families())


def begin(
  model: helmholtz.CapsuleHM, train: data.Dataset, validation: data.Dataset
) -> float:
  """Trains a capsule RBM for each layer, and copies their parameters.

  Returns:
    The seconds spent.
  """
  images = train_step.as_intensities(jnp.asarray(train.images))
  model.visible[...] = rbm.independent_units(boltzmann.VISIBLE.value, images)
  if not _PRETRAIN_STEPS.value:
    print("no pretraining: wake-sleep starts from random weights", flush=True)
    return 0.0
  machines, total = [], 0.0
  count = len(_num_capsules())
  for number in range(count):
    print(f"capsule RBM of layer {number + 1} of {count}", flush=True)
    run = directory.Run(f"{runs.WORKDIR.value}/layer_{number + 1}")
    task = _layer_task(machines, model.visible[...])
    config = runs.loop_config(_PRETRAIN_STEPS.value)
    memory.check(task, train, config, remedy=limits.flags_of_size)
    run.lock(runs.invocation())
    run.note("model", _layer_record(machines, train))
    _, seconds = launch.fit(task, run, train, validation, config)
    total += seconds
    _, stack, _ = tasks.restore_model(run, task, train, config)
    machines = list(stack.machines)
  print("wake-sleep training of all layers", flush=True)
  wake_sleep.start_from(model, machines)
  return total


def loss(
  model: helmholtz.CapsuleHM,
  images: jax.Array,
  labels: jax.Array,
  key: jax.Array,
  step: jax.Array,
) -> tuple[jax.Array, train_step.Metrics]:
  """The loss of a batch and its metrics."""
  del labels, step
  value, errors = wake_sleep.wake_sleep_loss(
    model, images, key, num_iterations=boltzmann.num_iterations()
  )
  return value, {"reconstruction_error": jnp.mean(errors)}


def measure(
  model: helmholtz.CapsuleHM, images: jax.Array, labels: jax.Array
) -> train_step.Metrics:
  """Reconstruction errors, and numbers of active capsules."""
  del labels
  layers = model.infer(images, num_iterations=boltzmann.num_iterations())

  def redraw(count):
    lowest, *_ = model.infer(images, num_iterations=count)
    return model.reconstruct(lowest)

  return {
    **boltzmann.reconstruction_errors(images, redraw),
    **{
      f"active_capsules_{number + 1}": jnp.mean(layer.switches, axis=1)
      for number, layer in enumerate(layers)
    },
  }


def _num_capsules() -> list[int]:
  return [int(count) for count in _NUM_CAPSULES.value]


def _describe_layer(
  below: Sequence[rbm.CapsuleRBM], image_shape: Sequence[int]
) -> Spec:
  """The capsule RBM on top of others, or on images."""
  families = {}
  if below:
    families = {"visible": boltzmann.HIDDEN.value}
    image_shape = below[-1].hidden[...].shape[1:]
  return boltzmann.describe_machine(
    image_shape, _num_capsules()[len(below)], **families
  )


def _layer_record(
  below: Sequence[rbm.CapsuleRBM], dataset: data.Dataset
) -> dict[str, Any]:
  """The spec of the RBM that a layer's run trains, without the layers below."""
  shape = dataset.images.shape[1:]
  return tasks.spec_record(_describe_layer(below, shape), dataset)


def _layer_task(below: Sequence[rbm.CapsuleRBM], pixels: jax.Array) -> Task:
  """The task of a capsule RBM on top of others, or on images.

  On images, `pixels` are the biases of the visible units.
  """
  number = len(below)
  common = dict(boltzmann.COMMON)
  if below:
    del common["diverged"]  # it limits errors of pixels, not of units below

  def make_stack(image_shape, rngs):
    del rngs  # the layer has its own seed
    # Copies, since training donates its buffers.
    machines = jax.tree.map(jnp.copy, list(below))
    seed = nnx.Rngs(runs.SEED.value + number)
    top = _describe_layer(below, image_shape).make(seed)
    if not below:
      top.visible[...] = jnp.copy(pixels)
    return wake_sleep.Stack([*machines, top])

  def of_top(function):
    def call(stack, images, *arguments):
      iterations = boltzmann.num_iterations()
      seen = stack.below_top(images, num_iterations=iterations)
      return function(stack.top, seen, *arguments)

    return call

  return Task(
    lambda shape, _: Spec(make_stack, {"image_shape": shape}),
    of_top(boltzmann.loss),
    of_top(boltzmann.measure),
    make_optimizer=lambda: boltzmann.make_optimizer(_PRETRAIN_RATE.value),
    suites=lambda stack: [],
    after_training=(),
    **common,
  )


TASK = Task(
  describe,
  loss,
  measure,
  make_optimizer=boltzmann.make_optimizer,
  suites=lambda model: ["errors", "dreams", "spectra", "bound"],
  after_training=("errors", "dreams", "spectra"),
  begin=begin,
  **boltzmann.COMMON,
)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  with runs.clear_errors():
    boltzmann.refuse_useless_flags()
    if not _PRETRAIN_STEPS.value:
      runs.refuse(
        "without pretraining, train_helmholtz",
        ["pretrain_learning_rate", "num_sweeps", "sweep", "num_chains"],
      )
  launch.train(TASK)


if __name__ == "__main__":
  flags.mark_flag_as_required("workdir")
  limits.run(main)
