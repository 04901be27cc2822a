"""Flags that both Boltzmann machines share.

Li and Zhu (2019), Capsule generative models.
"""

from typing import Any

import optax
from absl import flags

from capjax.energy import units

from ..training import contrastive_divergence
from . import arithmetic, limits, rates, runs

_CAPSULE_SIZE = flags.DEFINE_integer(
  "capsule_size", 16, "Number of hidden units in a capsule.", lower_bound=1
)
_VISIBLE = flags.DEFINE_enum(
  "visible",
  "bernoulli",
  list(units.FAMILIES),
  "Distribution of the visible units.",
)
_HIDDEN = flags.DEFINE_enum(
  "hidden",
  "bernoulli",
  list(units.FAMILIES),
  "Distribution of the hidden units.",
)
_MEAN_FIELD = flags.DEFINE_integer(
  "mean_field_iterations",
  10,
  "Iterations of mean field that estimate the expectations under the data; "
  "0 uses the exact posterior.",
  lower_bound=0,
  upper_bound=10_000,
)
NUM_SWEEPS = flags.DEFINE_integer(
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
NUM_CHAINS = flags.DEFINE_integer(
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
  "the chains, up to 20 times in a run.",
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
  limits.refuse("a Boltzmann machine", ["stop_accuracy"])
  arithmetic.refuse_bfloat16(
    "its gradient is the difference of two expectations that nearly cancel, "
    "and rounded weights would bias one of them"
  )
  if not _SLOWER_AT.value:
    limits.refuse("without --slower_at, training", ["slower_by"])
  if _VISIBLE.value == "gaussian":
    limits.refuse("--visible=gaussian", ["binary"])


def sizes_and_families() -> dict[str, Any]:
  """The constructor arguments that both machines share."""
  return {
    "capsule_size": _CAPSULE_SIZE.value,
    "visible": _VISIBLE.value,
    "hidden": _HIDDEN.value,
  }


def task_options() -> dict[str, Any]:
  """The arguments of `make_task` that both machines share."""
  return {
    "num_iterations": _MEAN_FIELD.value or None,
    "binary": _BINARY.value,
    "max_error": _MAX_ERROR.value,
  }


def block() -> bool:
  """Whether a sweep samples switches together with the hidden units."""
  return _SWEEP.value == "block"


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
    for name, family in (("visible", _VISIBLE), ("hidden", _HIDDEN))
    if family.value == "gaussian"
  ]
  return optax.chain(
    optax.sgd(schedule), contrastive_divergence.keep_proper(gaussian)
  )
