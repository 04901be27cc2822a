"""Flags of the learning rate that all optimisers share."""

from absl import flags

LEARNING_RATE = flags.DEFINE_float(
  "learning_rate",
  1e-3,
  "Learning rate of the optimiser at the start.",
  lower_bound=0.0,
)
DECAY_RATE = flags.DEFINE_float(
  "decay_rate",
  0.96,
  "Factor that multiplies the learning rate every --decay_steps.",
  lower_bound=0.0,
  upper_bound=1.0,
)
DECAY_STEPS = flags.DEFINE_integer(
  "decay_steps",
  2000,
  "Number of steps in which --decay_rate applies once; without a default, a"
  " hundredth of --num_steps.",
  lower_bound=1,
)
