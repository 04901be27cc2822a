r"""Trains a capsule RBM, or a plain RBM, by contrastive divergence.

  python -m experiments.train_boltzmann --workdir=runs/boltzmann \
    --data_dir=DIR --flagfile=experiments/presets/boltzmann_mnist.cfg

Li and Zhu (2019), Capsule generative models, sections 2.1 and 3.1.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
from absl import app, flags
from flax import nnx

from capjax import boltzmann, data
from experiments.common import descent, energies, program, runs, training
from experiments.common.task import Task

_NUM_CAPSULES = flags.DEFINE_integer(
  "num_capsules", 40, "Capsules of the hidden layer.", lower_bound=1
)
_CAPSULE_SIZE = flags.DEFINE_integer(
  "capsule_size", 16, "Hidden units of a capsule.", lower_bound=1
)
_VISIBLE = flags.DEFINE_enum(
  "visible", "bernoulli", list(boltzmann.FAMILIES), "Of the visible units."
)
_HIDDEN = flags.DEFINE_enum(
  "hidden", "bernoulli", list(boltzmann.FAMILIES), "Of the hidden units."
)
_INTERACTION = flags.DEFINE_bool(
  "interaction", False, "Let pixels meet the switches directly (Omega)."
)
_SWITCHES = flags.DEFINE_bool(
  "switches", True, "Capsules can be off; without, it is a plain RBM."
)
_MEAN_FIELD = flags.DEFINE_integer(
  "mean_field_iterations",
  10,
  "Of mean field, for what is expected of the capsules of the data; 0 for what "
  "is expected exactly.",
  lower_bound=0,
)
_NUM_SWEEPS = flags.DEFINE_integer(
  "num_sweeps", 20, "Of Gibbs sampling an update, k.", lower_bound=1
)
_SWEEP = flags.DEFINE_enum(
  "sweep",
  "gibbs",
  ["gibbs", "block"],
  "Switches given the old hidden units, as in the paper, or both together.",
)
_NUM_CHAINS = flags.DEFINE_integer(
  "num_chains",
  100,
  "Persistent chains; 0 starts new ones from the data at each update.",
  lower_bound=0,
)
_BINARY = flags.DEFINE_bool(
  "binary",
  False,
  "Draw each pixel as 0 or 1 with its intensity as the chance of 1; otherwise "
  "intensities are given as they are.",
)
_LEARNING_RATE = flags.DEFINE_float(
  "learning_rate", 0.01, "Of gradient descent, at the start.", lower_bound=0.0
)
_DECAY_RATE = flags.DEFINE_float(
  "decay_rate", 0.95, "Its factor every --decay_steps.", lower_bound=0.0
)
_DECAY_STEPS = flags.DEFINE_integer(
  "decay_steps", 120, "See --decay_rate.", lower_bound=1
)
_SLOWER_AT = flags.DEFINE_list(
  "slower_at", [], "Steps at which --decay_rate grows by --slower_by, up to 1."
)
_SLOWER_BY = flags.DEFINE_float(
  "slower_by", 1.02, "See --slower_at.", lower_bound=1.0
)
_MAX_ERROR = flags.DEFINE_float(
  "max_error",
  0.5,
  "With a larger reconstruction error training goes back to where it was at "
  "the last line of metrics, and the chains start anew.",
  lower_bound=0.0,
)
flags.register_validator(
  _SLOWER_AT,
  lambda steps: all(step.isdigit() for step in steps),
  message="give whole numbers, as in 3600,6000",
)
flags.set_default(runs.BATCH_SIZE, 100)
flags.set_default(runs.NUM_STEPS, 12000)


def make_model(image_shape: Sequence[int], num_classes: int) -> nnx.Module:
  """Draws the model that the flags describe."""
  del num_classes
  return boltzmann.CapsuleRBM(
    image_shape,
    num_capsules=_NUM_CAPSULES.value,
    capsule_size=_CAPSULE_SIZE.value,
    visible=_VISIBLE.value,
    hidden=_HIDDEN.value,
    interaction=_INTERACTION.value,
    switches=_SWITCHES.value,
    num_chains=_NUM_CHAINS.value,
    rngs=nnx.Rngs(runs.SEED.value),
  )


def begin(model: boltzmann.CapsuleRBM, dataset: data.Dataset) -> None:
  """Gives the pixels the biases of the training set."""
  images = training.as_intensities(jnp.asarray(dataset.images))
  model.visible[...] = boltzmann.independent_units(_VISIBLE.value, images)


def loss(
  model: boltzmann.CapsuleRBM,
  images: jax.Array,
  labels: jax.Array,
  key: jax.Array,
) -> tuple[jax.Array, training.Metrics]:
  """The loss of a batch and its metrics."""
  del labels
  value, errors = boltzmann.contrastive_loss(
    model,
    images,
    key,
    num_iterations=_MEAN_FIELD.value or None,
    num_sweeps=_NUM_SWEEPS.value,
    block=_SWEEP.value == "block",
  )
  return value, {"reconstruction_error": jnp.mean(errors)}


def measure(
  model: boltzmann.CapsuleRBM, images: jax.Array, labels: jax.Array
) -> training.Metrics:
  """The errors of reconstructions and the free energies."""
  del labels
  capsules = model.infer(images, num_iterations=_MEAN_FIELD.value or None)
  errors = jnp.abs(model.reconstruct(capsules) - images)
  return {
    "reconstruction_error": jnp.mean(errors, axis=(1, 2, 3)),
    "free_energy": model.free_energy(images),
    "active_capsules": jnp.mean(capsules.switches, axis=1),
  }


def draw(
  key: jax.Array, index: jax.Array, images: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Draws one image, as intensities or as zeros and ones."""
  image = training.as_intensities(images[index])
  if _BINARY.value:
    image = jax.random.bernoulli(key, image).astype(image.dtype)
  return image, labels[index]


def make_optimizer() -> optax.GradientTransformation:
  """Plain gradient descent that keeps Gaussian units proper."""
  rate = descent.falling_rate(
    _LEARNING_RATE.value,
    factor=_DECAY_RATE.value,
    every=_DECAY_STEPS.value,
    slower_at=[int(step) for step in _SLOWER_AT.value],
    slower_by=_SLOWER_BY.value,
  )
  gaussian = [
    name
    for name, family in (("visible", _VISIBLE), ("hidden", _HIDDEN))
    if family.value == "gaussian"
  ]
  return optax.chain(optax.sgd(rate), descent.keep_proper(gaussian))


def diverged(metrics: dict[str, float]) -> bool:
  """Whether images are reconstructed too badly to go on."""
  return metrics["reconstruction_error"] > _MAX_ERROR.value


TASK = Task(
  make_model,
  loss,
  measure,
  draw=draw,
  draw_test=draw,
  make_optimizer=make_optimizer,
  suites=lambda model: list(energies.SUITES),
  after_training=("errors", "samples", "spectra", "fields"),
  chosen_by=None,
  begin=begin,
  diverged=diverged,
  restart=descent.restart,
)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  with runs.clear_errors():
    runs.refuse("train_boltzmann", ["stop_accuracy"])
    if not _SWITCHES.value:
      runs.refuse("--noswitches", ["mean_field_iterations", "sweep"])
    if not _SLOWER_AT.value:
      runs.refuse("without --slower_at, training", ["slower_by"])
    if _VISIBLE.value == "gaussian":
      runs.refuse("--visible=gaussian", ["binary"])
  program.train(TASK)


if __name__ == "__main__":
  flags.mark_flag_as_required("workdir")
  app.run(main)
