"""Flags of the optimiser and of the schedule of its learning rate."""

import optax
from absl import flags

from ..run import directory
from ..training import optimizers
from . import limits, rates, runs

_OPTIMIZER = flags.DEFINE_enum(
  "optimizer",
  "adam",
  ["adam", "rmsprop"],
  "Optimiser. RMSProp is that of TensorFlow 1; see --momentum and --epsilon.",
)
_MOMENTUM = flags.DEFINE_float(
  "momentum",
  0.9,
  "Momentum of RMSProp, below 1.",
  lower_bound=0.0,
  upper_bound=0.9999,
)
_EPSILON = flags.DEFINE_float(
  "epsilon",
  None,
  "Number that RMSProp adds to the mean square before taking the root; by "
  "default (10 batch_size)^-2.",
)
_SCHEDULE = flags.DEFINE_enum(
  "schedule",
  "exponential",
  ["exponential", "cosine"],
  "Schedule of the learning rate: exponential is multiplied by --decay_rate"
  " every --decay_steps; cosine ends at --num_steps.",
)
_WARMUP_STEPS = flags.DEFINE_integer(
  "warmup_steps",
  0,
  "Number of steps in which the learning rate rises from 0.",
  lower_bound=0,
)
_FINAL_LEARNING_RATE = flags.DEFINE_float(
  "final_learning_rate",
  1e-6,
  "Lower limit of the learning rate.",
  lower_bound=0.0,
)
_FINAL_RATE_FRACTION = flags.DEFINE_float(
  "final_rate_fraction",
  None,
  "Learning rate at --num_steps as a fraction of --learning_rate, for the "
  "exponential --schedule; replaces --decay_rate and --decay_steps. The rate "
  "does not fall below --final_learning_rate.",
  lower_bound=1e-9,
  upper_bound=1.0,
)
_MAX_GRADIENT = flags.DEFINE_float(
  "max_gradient",
  None,
  "Largest norm of the gradient; longer gradients are scaled to it. By "
  "default gradients are not clipped.",
)
limits.require_above_zero(_EPSILON, _MAX_GRADIENT)


def check_flags() -> None:
  """Checks that the flags of the optimiser fit together.

  Raises:
    ValueError: if a flag is given that the others make useless or contradict.
  """
  if _SCHEDULE.value == "cosine":
    limits.refuse(
      "--schedule=cosine", ["decay_rate", "decay_steps", "final_rate_fraction"]
    )
  elif _FINAL_RATE_FRACTION.value is not None:
    limits.refuse("--final_rate_fraction", ["decay_rate", "decay_steps"])
  if _OPTIMIZER.value == "adam":
    limits.refuse("--optimizer=adam", ["momentum", "epsilon"])
  peak, warmup = rates.LEARNING_RATE.value, _WARMUP_STEPS.value
  # A run that has begun may be ended within its warm-up.
  workdir = runs.WORKDIR.value
  has_begun = bool(workdir) and directory.Run(workdir).holds_a_run()
  if warmup >= runs.NUM_STEPS.value and not has_begun:
    raise ValueError(
      f"--warmup_steps={warmup} is not below --num_steps="
      f"{runs.NUM_STEPS.value}, so that no step reaches --learning_rate; give "
      "fewer"
    )
  if _FINAL_LEARNING_RATE.present and _FINAL_LEARNING_RATE.value > peak:
    raise ValueError(
      f"--final_learning_rate={_FINAL_LEARNING_RATE.value} is above "
      f"--learning_rate={peak}; give a lower one"
    )


def make_optimizer() -> optax.GradientTransformation:
  """The optimiser that the flags describe, with its schedule and clipping."""
  schedule = optimizers.make_schedule(
    runs.NUM_STEPS.value,
    peak=rates.LEARNING_RATE.value,
    kind=_SCHEDULE.value,
    warmup_steps=_WARMUP_STEPS.value,
    decay_rate=rates.DECAY_RATE.value,
    # The flag holder refuses None, which is the default of some binaries.
    decay_steps=flags.FLAGS.decay_steps,
    final=_FINAL_LEARNING_RATE.value,
    final_fraction=_FINAL_RATE_FRACTION.value,
  )
  optimizer = optax.adam(schedule)
  if _OPTIMIZER.value == "rmsprop":
    epsilon = _EPSILON.value
    if epsilon is None:
      epsilon = (10 * runs.BATCH_SIZE.value) ** -2
    optimizer = optimizers.tensorflow_rmsprop(
      schedule, epsilon=epsilon, momentum=_MOMENTUM.value
    )
  if _MAX_GRADIENT.value is None:
    return optimizer
  clip = optax.clip_by_global_norm(_MAX_GRADIENT.value)
  return optax.chain(clip, optimizer)
