"""Flags and functions of training that both Boltzmann machines share.

Li and Zhu (2019), Capsule generative models.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from absl import flags

from capjax.energy import rbm
from capjax.specs import Spec

from ..training import contrastive_divergence, train_step
from . import rates, runs

# Iterations of mean field in the measures of a model that is trained without
# mean field; the presets that use it have the same number.
_MEASURED = 20
CAPSULE_SIZE = flags.DEFINE_integer(
  "capsule_size", 16, "Number of hidden units in a capsule.", lower_bound=1
)
VISIBLE = flags.DEFINE_enum(
  "visible",
  "bernoulli",
  list(rbm.FAMILIES),
  "Distribution of the visible units.",
)
HIDDEN = flags.DEFINE_enum(
  "hidden", "bernoulli", list(rbm.FAMILIES), "Distribution of the hidden units."
)
_MEAN_FIELD = flags.DEFINE_integer(
  "mean_field_iterations",
  10,
  "Iterations of mean field that estimate the expectations under the data; "
  "0 uses the exact posterior.",
  lower_bound=0,
  upper_bound=10_000,
)
_NUM_SWEEPS = flags.DEFINE_integer(
  "num_sweeps",
  20,
  "Sweeps of Gibbs sampling in each update, k in the paper.",
  lower_bound=1,
  upper_bound=10_000,
)
_SWEEP = flags.DEFINE_enum(
  "sweep",
  "gibbs",
  ["gibbs", "block"],
  "How a sweep samples switches: gibbs, given the old hidden units, as in "
  "the paper; or block, together with the hidden units.",
)
_NUM_CHAINS = flags.DEFINE_integer(
  "num_chains",
  100,
  "Number of persistent chains; 0 starts new chains from the data in each "
  "update.",
  lower_bound=0,
)
_BINARY = flags.DEFINE_bool(
  "binary",
  False,
  "Sample each pixel as 0 or 1, with its intensity as the probability of 1."
  " Without it the intensities are used unchanged.",
)
_SLOWER_AT = flags.DEFINE_list(
  "slower_at",
  [],
  "Steps at which --decay_rate is multiplied by --slower_by, up to a limit "
  "of 1.",
)
_SLOWER_BY = flags.DEFINE_float(
  "slower_by",
  1.02,
  "Factor by which --decay_rate grows at each step of --slower_at.",
  lower_bound=1.0,
)
_MAX_ERROR = flags.DEFINE_float(
  "max_error",
  0.5,
  "Largest mean reconstruction error of a pixel. Above it training has "
  "diverged: it returns to the older of the two saved states and restarts "
  "the chains.",
  lower_bound=0.0,
)
flags.register_validator(
  _SLOWER_AT,
  lambda steps: all(step.isdecimal() for step in steps),
  message="give whole numbers, as in 3600,6000",
)
flags.set_default(runs.BATCH_SIZE, 100)
flags.set_default(rates.LEARNING_RATE, 0.01)
flags.set_default(rates.DECAY_RATE, 0.95)
flags.set_default(rates.DECAY_STEPS, 120)


def refuse_useless_flags() -> None:
  """Raises a ValueError if a flag is set that the other flags make useless."""
  runs.refuse("a Boltzmann machine", ["stop_accuracy"])
  if not _SLOWER_AT.value:
    runs.refuse("without --slower_at, training", ["slower_by"])
  if VISIBLE.value == "gaussian":
    runs.refuse("--visible=gaussian", ["binary"])


def sizes_and_families() -> dict[str, Any]:
  """The constructor arguments that both machines share."""
  return {
    "capsule_size": CAPSULE_SIZE.value,
    "visible": VISIBLE.value,
    "hidden": HIDDEN.value,
  }


def describe_machine(
  visible_shape: Sequence[int], num_capsules: int, **options: Any
) -> Spec:
  """The capsule RBM that the flags describe, with its chains."""
  arguments = dict(
    visible_shape=tuple(visible_shape),
    num_capsules=num_capsules,
    num_chains=_NUM_CHAINS.value,
  )
  return Spec(rbm.CapsuleRBM, arguments | sizes_and_families() | options)


def num_iterations() -> int | None:
  """Iterations of mean field; None for the exact posterior."""
  return _MEAN_FIELD.value or None


def loss(
  model: rbm.CapsuleRBM,
  images: jax.Array,
  labels: jax.Array,
  key: jax.Array,
  step: jax.Array,
) -> tuple[jax.Array, train_step.Metrics]:
  """The loss of a capsule RBM and its metrics."""
  del labels, step
  value, learned = rbm.contrastive_loss(
    model,
    images,
    key,
    num_iterations=num_iterations(),
    num_sweeps=_NUM_SWEEPS.value,
    block=_SWEEP.value == "block",
  )
  # The update owns this copy of the model; its chains go into the next state.
  model.go_on_from(learned.chains)
  return value, {"reconstruction_error": jnp.mean(learned.errors)}


def measure(
  model: rbm.CapsuleRBM, images: jax.Array, labels: jax.Array
) -> train_step.Metrics:
  """Reconstruction errors, free energies, and numbers of active capsules."""
  del labels
  capsules = model.infer(images, num_iterations=num_iterations())
  return {
    **reconstruction_errors(
      images,
      lambda count: model.reconstruct(
        model.infer(images, num_iterations=count)
      ),
    ),
    "free_energy": model.free_energy(images),
    "active_capsules": jnp.mean(capsules.switches, axis=1),
  }


def reconstruction_errors(
  images: jax.Array, redraw: Callable[[int | None], jax.Array]
) -> train_step.Metrics:
  """The mean absolute errors [B] of reconstructions, for both inferences.

  The two errors are not comparable: reconstructions by mean field have larger
  errors.

  Args:
    images: [B ...].
    redraw: `num_iterations -> images`, the reconstructions by mean field; with
      None, by the exact posterior.

  Returns:
    `reconstruction_error_mean_field` and `reconstruction_error_exact`; and as
    `reconstruction_error` the one whose inference the training uses.
  """
  counts = {"mean_field": num_iterations() or _MEASURED, "exact": None}
  errors = {}
  for name, count in counts.items():
    off = jnp.abs(redraw(count).reshape(images.shape) - images)
    errors[name] = jnp.mean(off, axis=range(1, images.ndim))
  trained = "mean_field" if num_iterations() else "exact"
  return {
    "reconstruction_error": errors[trained],
    **{f"reconstruction_error_{name}": x for name, x in errors.items()},
  }


def sample(
  key: jax.Array, index: jax.Array, images: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Makes one example: intensities, or pixels sampled as 0 or 1."""
  image = train_step.as_intensities(images[index])
  if _BINARY.value:
    image = jax.random.bernoulli(key, image).astype(image.dtype)
  return image, labels[index]


def make_optimizer(rate: float | None = None) -> optax.GradientTransformation:
  """Gradient descent that keeps the precisions of Gaussian units positive.

  Args:
    rate: the learning rate at the start; None for --learning_rate.
  """
  schedule = contrastive_divergence.falling_rate(
    rates.LEARNING_RATE.value if rate is None else rate,
    factor=rates.DECAY_RATE.value,
    every=rates.DECAY_STEPS.value,
    slower_at=[int(step) for step in _SLOWER_AT.value],
    slower_by=_SLOWER_BY.value,
  )
  gaussian = [
    name
    for name, family in (("visible", VISIBLE), ("hidden", HIDDEN))
    if family.value == "gaussian"
  ]
  return optax.chain(
    optax.sgd(schedule), contrastive_divergence.keep_proper(gaussian)
  )


def diverged(metrics: dict[str, float]) -> bool:
  """Whether training has diverged: the reconstruction error is too large."""
  return metrics["reconstruction_error"] > _MAX_ERROR.value


# Fields that the `Task`s of all these machines share.
COMMON = {
  "sample": sample,
  "sample_test": sample,
  "chosen_by": None,
  "diverged": diverged,
  "restart": contrastive_divergence.restart,
}
