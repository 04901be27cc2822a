"""Checkpoints: the newest states to resume from, and the best model."""

import pathlib
from collections.abc import Callable
from typing import Any

from ..run import processes
from .checkpoint_series import Series


class Checkpoints:
  """Two series of checkpoints in one folder.

  `latest` holds the training states of the last two saved steps; `best` the
  models with the two highest `score`s on validation so far, with their metrics;
  of equal scores the later step counts as higher. Two are kept so that a run
  survives one that is damaged on disk: it is skipped with a warning, and
  renamed to `STEP.damaged` when the next one is saved. Without a `score` the
  last model is the best. Reading changes no file.

  Several processes call each method together, and see the same file system.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    score: Callable[[dict[str, float]], Any] | None,
  ):
    self._latest = Series(folder / "latest")
    self._score = score or (lambda metrics: None)
    # Each is better than those before it: the newest two are the best two.
    self._best = Series(folder / "best", measured=True)

  def save(
    self, step: int, state: Any, window: dict[str, float] | None = None
  ) -> None:
    """Saves a training state; a step that is already there is kept.

    Args:
      step: the number of updates.
      state: a pytree.
      window: sums of metrics since the last line of metrics; None without any.

    Raises:
      OSError: if it cannot be written; what was saved before is kept.
    """
    self._latest.save(step, state, window)

  def window(self, step: int) -> dict[str, float]:
    """The sums of metrics that were saved with the state of a step."""
    return self._latest.metrics(step, missing={})

  def drop_all(self) -> None:
    """Deletes all states and models."""
    for series in (self._latest, self._best):
      series.delete_after(-1)

  def drop_best(self, step: int) -> None:
    """Deletes the best model if it is that of this step."""
    if self.best_step() == step:
      self._best.delete_after(step - 1)

  def drop_best_after(self, step: int) -> None:
    """Deletes models of later steps, for a run that now ends at this step.

    There are some if a damaged state made the run repeat steps.
    """
    self._best.delete_after(step)

  def save_best(self, step: int, model: Any, metrics: dict[str, float]) -> None:
    """Saves the model to report with its metrics, if it is the best so far.

    Raises:
      OSError: as `save`.
    """
    metrics = {**metrics, "step": step}
    if self._is_best(metrics):
      self._best.save(step, model, metrics)

  def last_step(self) -> int | None:
    """The step of the newest training state; None where there is none."""
    return max(self._latest.steps(), default=None)

  def restore(self, template: Any) -> Any | None:
    """Reads the newest whole training state.

    Args:
      template: a state of the same structure, shapes and placement.

    Returns:
      The state; None where none was ever saved.

    Raises:
      ValueError: if there are checkpoints, but none can be read.
    """
    restored = self._latest.restore(template)
    return restored and restored[1]

  def step_back(self, template: Any, change: Callable[[Any], Any]) -> Any:
    """Returns to the older of the saved states, and changes it.

    Everything saved later is deleted. A process that is killed meanwhile leaves
    a state to resume from: the changed one, or one from which training reaches
    this call again.

    Args:
      template: as for `restore`.
      change: `state -> state`; its result is saved in place of the state.

    Returns:
      The changed state.

    Raises:
      OSError: as `save`.
    """
    *earlier, newest = self._latest.steps()
    order = [*reversed(earlier), newest]
    step, state = self._latest.restore(template, order)
    state = change(state)
    written = self._latest.write(step, state)
    # Later models are deleted first: they belong to no state that is kept.
    self._best.delete_after(step)
    self._latest.delete_after(step)
    self._latest.replace(step, written)
    return state

  def restore_best(self, template: Any) -> tuple[int, Any, dict] | None:
    """Reads the step, the model and the metrics of the best checkpoint.

    Args:
      template: a model of the same structure, shapes and placement.

    Returns:
      None where no model was ever saved.

    Raises:
      ValueError: if there are checkpoints, but none can be read.
    """
    restored = self._best.restore(template)
    return restored and (*restored, self._metrics(restored[0]))

  def best_metrics(self) -> dict[str, float] | None:
    """The metrics of the best checkpoint; None where there is none."""
    steps = self._best.steps()
    return self._metrics(steps[-1]) if steps else None

  def best_step(self) -> int | None:
    """The step of the best checkpoint; None where there is none."""
    return max(self._best.steps(), default=None)

  @processes.shared
  def _is_best(self, metrics: dict[str, float]) -> bool:
    steps = self._best.steps()
    return not steps or self._rank(metrics) > self._rank(
      self._best.metrics(steps[-1])
    )

  def _rank(self, metrics: dict[str, float]) -> tuple[Any, float]:
    return self._score(metrics), metrics["step"]

  def _metrics(self, step: int) -> dict[str, float]:
    metrics = self._best.metrics(step)
    metrics.pop("step", None)
    return metrics
