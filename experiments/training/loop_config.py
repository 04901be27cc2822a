"""The length of training, and when it is logged, validated and saved."""

import numbers
import operator
from typing import NamedTuple

from capjax.kernels import checks

# The least that each count of a `LoopConfig` may be.
_COUNTS = {
  **dict.fromkeys(
    ("num_steps", "batch_size", "log_every", "eval_every", "checkpoint_every"),
    1,
  ),
  **dict.fromkeys(("num_micro_batches", "model_parallel"), 1),
  **dict.fromkeys(("seed", "num_validation", "profile"), 0),
}


class LoopConfig(NamedTuple):
  """The length of training, and when it is logged, validated and saved.

  Attributes:
    num_steps: total number of updates.
    batch_size: number of examples in an update.
    seed: seed of the parameters, the batches and the augmentation; below 2**31.
    num_validation: number of training examples, from the first on, that are
      kept for validation; None for a sixth, 0 for none.
    log_every: steps between lines of metrics.
    eval_every: steps between validations; None for an epoch.
    checkpoint_every: steps between saved states, in addition to those at
      validations; None for none.
    checkpoint_minutes: minutes after which a state is also saved; 0 for never.
      Not used where training can restart from saved states, since its results
      would depend on the time.
    stop_accuracy: training stops at the first validation that reaches this
      accuracy; None for never.
    average_decay: decay of the exponential moving average of the weights; 0 for
      no average.
    num_micro_batches: parts of a batch that follow each other in an update, to
      save memory.
    model_parallel: devices over which the transforms of capsules are divided.
    profile: number of updates, after those that compile, of which a trace is
      written to the folder `trace` of the run; 0 for none.
    rematerialise: whether the gradient computes again all but products of
      matrices and convolutions, to save memory.
  """

  num_steps: int
  batch_size: int = 128
  seed: int = 0
  num_validation: int | None = None
  log_every: int = 20
  eval_every: int | None = None
  checkpoint_every: int | None = None
  checkpoint_minutes: float = 10.0
  stop_accuracy: float | None = None
  average_decay: float = 0.0
  num_micro_batches: int = 1
  model_parallel: int = 1
  profile: int = 0
  rematerialise: bool = False


def check(config: LoopConfig) -> LoopConfig:
  """Checks options given in Python.

  Returns:
    The configuration, with Python's numbers in place of NumPy's.

  Raises:
    TypeError: if a count is no whole number, or another option no number.
    ValueError: if an option is out of range.
  """
  plain: dict[str, int | float | bool] = {}
  for name, value in config._asdict().items():
    if value is None and config._field_defaults.get(name, 0) is None:
      continue
    if name in _COUNTS:
      checks.counts(**{name: value}, at_least=_COUNTS[name])
      plain[name] = operator.index(value)
    elif name == "rematerialise":
      plain[name] = bool(value)
    elif isinstance(value, numbers.Real):
      plain[name] = float(value)
    else:
      raise TypeError(f"{name} is {value!r}; give a number.")
  config = config._replace(**plain)
  if config.seed >= 2**31:
    raise ValueError(f"seed is {config.seed}; give a number below 2**31.")
  if not config.checkpoint_minutes >= 0:
    raise ValueError(
      f"checkpoint_minutes is {config.checkpoint_minutes}; give minutes, or 0 "
      "for no states by time."
    )
  if not 0 <= config.average_decay < 1:
    raise ValueError(
      f"average_decay is {config.average_decay}; give 0 for no average, or a "
      "decay below 1 such as 0.999."
    )
  if config.stop_accuracy is not None and not 0 <= config.stop_accuracy <= 1:
    raise ValueError(
      f"stop_accuracy is {config.stop_accuracy}; give a share from 0 to 1."
    )
  if config.stop_accuracy is not None and config.num_validation == 0:
    raise ValueError(
      f"stop_accuracy is {config.stop_accuracy} and num_validation is 0; keep "
      "images for validation, on which the accuracy is measured."
    )
  return config
