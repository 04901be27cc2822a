"""Metrics summed over the steps between two lines of metrics.jsonl."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import allocator, train_step

# Seconds that one call should take; signals are handled between calls. Each
# call allocates temporary memory anew: a tenth of a second for a large model.
_CALL = 3.0
_STEPS = "window_steps"


class Diverged(FloatingPointError):
  """Training has diverged, and cannot return to an earlier state."""


class Window:
  """The sums of metrics since the last line of metrics.jsonl.

  They do not depend on how the steps are divided among calls, or among
  processes that are stopped and resumed.

  Attributes:
    num_steps: number of steps that are summed.
    first: seconds that the first call took, which compiles; None before it.
  """

  def __init__(
    self, zeros: Mapping[str, np.ndarray], record: Mapping[str, float]
  ):
    """Begins with the sums of `record`, which may be empty."""
    self._zeros = dict(zeros)
    self.clear()
    if record.keys() == {_STEPS, *zeros}:
      self.num_steps = int(record[_STEPS])
      self._totals = {
        name: np.asarray(record[name], x.dtype) for name, x in zeros.items()
      }
    self.first: float | None = None
    self._pace = math.inf  # seconds a step takes

  def clear(self) -> None:
    """Sets all sums to 0."""
    self._totals, self.num_steps = dict(self._zeros), 0
    self._timed, self._seconds = 0, 0.0
    self._compiled = 0, 0.0

  def add(
    self,
    update: train_step.Update,
    state: train_step.TrainState,
    images: Any,
    labels: Any,
    count: int,
  ) -> train_step.TrainState:
    """Does `count` updates, adds their metrics, returns the new state."""
    began = time.monotonic()
    if self.first is None:
      # Return memory that was freed before, and compile before the updates, so
      # that the peaks of these three do not add up.
      allocator.trim()
      state, _ = update.add(state, self._totals, images, labels, 0)
      allocator.trim()
    state, totals = update.add(state, self._totals, images, labels, count)
    self._totals = {name: np.asarray(x) for name, x in totals.items()}
    seconds = time.monotonic() - began
    self._pace = seconds / count
    self.num_steps += count
    if self.first is None:
      self.first = seconds
      self._compiled = count, seconds
    else:
      self._timed += count
      self._seconds += seconds
    return state

  def most_steps(self) -> int:
    """How many steps the next call may do, to end within `_CALL` seconds."""
    return max(1, int(min(_CALL / self._pace, 1e6)))

  def rate(self) -> float:
    """Steps in a second, of those that this process did.

    The first call, which compiles, counts only where there is no other.
    """
    timed = self._timed, self._seconds
    count, seconds = timed if self._seconds else self._compiled
    return count / seconds if seconds else 0.0

  def means(self) -> dict[str, float]:
    """The means over the steps; empty without steps."""
    if not self.num_steps:
      return {}
    count = np.float32(self.num_steps)
    return {name: float(x / count) for name, x in self._totals.items()}

  def record(self) -> dict[str, float] | None:
    """The sums as JSON, for a process that resumes; None at 0 steps."""
    if not self.num_steps:
      return None
    sums = {name: float(x) for name, x in self._totals.items()}
    return {_STEPS: self.num_steps, **sums}


def fault(
  metrics: Mapping[str, float],
  model: Any,
  diverged: Callable[[dict[str, float]], bool],
) -> str | None:
  """The reason why training cannot continue; None where it can."""
  if not all(math.isfinite(x) for x in metrics.values()):
    return "the loss became infinite or NaN"
  if not train_step.all_finite(model):
    return "the parameters became infinite or NaN"
  return "training diverged" if diverged(dict(metrics)) else None
