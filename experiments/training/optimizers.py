"""The optimiser, with the schedule of the learning rate that flags describe."""

import jax.numpy as jnp
import optax
from absl import flags

from experiments.flags import limits, rates
from experiments.run import directory

_OPTIMIZER = flags.DEFINE_enum(
  "optimizer",
  "adam",
  ["adam", "rmsprop"],
  "RMSProp is that of TensorFlow 1, see --momentum and --epsilon.",
)
_MOMENTUM = flags.DEFINE_float(
  "momentum",
  0.9,
  "Of RMSProp, below 1.",
  lower_bound=0.0,
  upper_bound=0.9999,
)
_EPSILON = flags.DEFINE_float(
  "epsilon",
  None,
  "RMSProp adds it to the mean square, under the root; by default "
  "(10 batch_size)^-2.",
)
_SCHEDULE = flags.DEFINE_enum(
  "schedule",
  "exponential",
  ["exponential", "cosine"],
  "Of the learning rate: --decay_rate every --decay_steps, or a cosine that "
  "ends with --num_steps.",
)
_WARMUP_STEPS = flags.DEFINE_integer(
  "warmup_steps",
  0,
  "Steps in which the learning rate rises from 0.",
  lower_bound=0,
)
_FINAL_LEARNING_RATE = flags.DEFINE_float(
  "final_learning_rate",
  1e-6,
  "The learning rate falls no lower.",
  lower_bound=0.0,
)
_FINAL_RATE_FRACTION = flags.DEFINE_float(
  "final_rate_fraction",
  None,
  "Share of --learning_rate that the exponential --schedule comes to at "
  "--num_steps, whatever their number; in the place of --decay_rate and "
  "--decay_steps.",
  lower_bound=1e-9,
  upper_bound=1.0,
)
_MAX_GRADIENT = flags.DEFINE_float(
  "max_gradient",
  None,
  "Longer gradients are shortened to this norm; by default none is.",
)
limits.require_above_zero(_EPSILON, _MAX_GRADIENT)


def make_optimizer() -> optax.GradientTransformation:
  """--optimizer, behind --max_gradient if that is given."""
  if _MAX_GRADIENT.value is None:
    return _make_optimizer()
  return optax.chain(
    optax.clip_by_global_norm(_MAX_GRADIENT.value), _make_optimizer()
  )


def _make_optimizer() -> optax.GradientTransformation:
  """--optimizer with the learning rate of --schedule after --warmup_steps.

  `exponential` is that of the authors' code: max(lr * decay_rate^(step /
  decay_steps), final), continuous in the step; with --final_rate_fraction it is
  max(lr * fraction^(step / num_steps), final), of steps after the warm-up.
  `cosine` falls to the final rate at --num_steps.

  RMSProp is TensorFlow 1's: means of squares start at 1 and forget at 0.9, and
  momentum adds up steps that are already scaled by the learning rate.
  """
  if _SCHEDULE.value == "cosine":
    directory.refuse(
      "--schedule=cosine", ["decay_rate", "decay_steps", "final_rate_fraction"]
    )
  peak, warmup = rates.LEARNING_RATE.value, _WARMUP_STEPS.value
  if warmup >= directory.NUM_STEPS.value:
    raise ValueError(
      f"--warmup_steps={warmup} lets no step of --num_steps="
      f"{directory.NUM_STEPS.value} have the whole --learning_rate; give fewer"
    )
  if _FINAL_LEARNING_RATE.present and _FINAL_LEARNING_RATE.value > peak:
    raise ValueError(
      f"--final_learning_rate={_FINAL_LEARNING_RATE.value} is above "
      f"--learning_rate={peak}; give a lower one"
    )
  # The holder of --decay_steps would refuse None, a default of some binaries.
  rate = rates.DECAY_RATE.value
  every = flags.FLAGS.decay_steps or directory.NUM_STEPS.value / 100
  if _FINAL_RATE_FRACTION.value is not None:
    directory.refuse("--final_rate_fraction", ["decay_rate", "decay_steps"])
    rate = _FINAL_RATE_FRACTION.value
    every = max(1, directory.NUM_STEPS.value - warmup)
  final = min(_FINAL_LEARNING_RATE.value, peak)
  if _SCHEDULE.value == "exponential":
    # optax's takes a rate of 0 for none, and of 1 for growth.
    def schedule(step):
      return jnp.maximum(peak * rate ** (step / every), final)

  else:
    schedule = optax.cosine_decay_schedule(
      peak,
      max(1, directory.NUM_STEPS.value - warmup),
      alpha=final / (peak or 1.0),
    )
  if warmup:
    rise = optax.linear_schedule(0.0, peak, warmup)
    schedule = optax.join_schedules([rise, schedule], [warmup])
  if _OPTIMIZER.value == "adam":
    directory.refuse("--optimizer=adam", ["momentum", "epsilon"])
    return optax.adam(schedule)
  epsilon = _EPSILON.value
  if epsilon is None:
    epsilon = (10 * directory.BATCH_SIZE.value) ** -2
  return optax.rmsprop(
    schedule,
    decay=0.9,
    eps=epsilon,
    initial_scale=1.0,
    eps_in_sqrt=True,
    momentum=_MOMENTUM.value,
  )
