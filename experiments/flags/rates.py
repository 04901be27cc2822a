"""Flags of the learning rate, of every optimiser."""

from absl import flags

LEARNING_RATE = flags.DEFINE_float(
  "learning_rate", 1e-3, "Of the optimiser, at the start.", lower_bound=0.0
)
DECAY_RATE = flags.DEFINE_float(
  "decay_rate",
  0.96,
  "Factor of the learning rate every --decay_steps.",
  lower_bound=0.0,
  upper_bound=1.0,
)
DECAY_STEPS = flags.DEFINE_integer(
  "decay_steps",
  2000,
  "See --decay_rate; where there is no default, a hundredth of --num_steps.",
  lower_bound=1,
)
