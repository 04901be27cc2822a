"""Checkpoints: the newest states to go on from, and the best model to report.

Orbax writes each one whole or not at all.
"""

import operator
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging


class Checkpoints:
  """Two series of checkpoints in one folder.

  `latest` holds the training states of the last two saved steps; `best` the
  models with the two highest `score`s on validation so far, with their metrics;
  of equal scores the later step counts as higher. Two, so that one damaged on
  disk does not end the run: it is renamed, to `STEP.damaged`. Without a `score`
  the last model is the best.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    score: Callable[[dict[str, float]], Any] | None,
  ):
    self._latest = _Series(folder / "latest", max_to_keep=2)
    self._score = score or (lambda metrics: None)
    # Each is better than those before it: the newest two are the best two.
    self._best = _Series(
      folder / "best", max_to_keep=2, best_fn=operator.itemgetter("step")
    )

  def save(self, step: int, state: Any) -> None:
    """Saves a training state; a step that is already there is kept."""
    self._latest.save(step, state)

  def save_best(self, step: int, model: Any, metrics: dict[str, float]) -> None:
    """Saves the model to report with its metrics, if it is the best so far."""
    metrics = {**metrics, "step": step}
    steps = self._best.steps()
    if not steps or self._rank(metrics) > self._rank(
      self._best.metrics(steps[-1])
    ):
      self._best.save(step, model, metrics)

  def has_state(self) -> bool:
    """Whether there is a training state to go on from."""
    return bool(self._latest.steps())

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
    """Goes back to the older of the saved states and changes it there.

    Whatever was saved later is forgotten.

    Args:
      template: as for `restore`.
      change: of the state; the changed one is saved in its place.

    Returns:
      The changed state.
    """
    *earlier, newest = self._latest.steps()
    if earlier:
      self._latest.delete(newest)
    step, state = self._latest.restore(template)
    state = change(state)
    self._latest.delete(step)
    self._latest.save(step, state)
    for later in self._best.steps():
      if later > step:
        self._best.delete(later)
    return state

  def restore_best(self, template: Any) -> tuple[int, Any, dict] | None:
    """Reads the step, the model and the metrics of the best checkpoint."""
    restored = self._best.restore(template)
    return restored and (*restored, self._metrics(restored[0]))

  def best_metrics(self) -> dict[str, float] | None:
    """The metrics of the best checkpoint; None where there is none."""
    steps = self._best.steps()
    return self._metrics(steps[-1]) if steps else None

  def best_step(self) -> int | None:
    """The step of the best checkpoint; None where there is none."""
    return max(self._best.steps(), default=None)

  def _rank(self, metrics: dict[str, float]) -> tuple[Any, float]:
    return self._score(metrics), metrics["step"]

  def _metrics(self, step: int) -> dict[str, float]:
    metrics = self._best.metrics(step)
    metrics.pop("step", None)
    return metrics


class _Series:
  """Checkpoints of one kind, newest last."""

  def __init__(self, folder: pathlib.Path, **options: Any):
    self._folder = folder.absolute()
    self._manager = ocp.CheckpointManager(
      self._folder,
      options=ocp.CheckpointManagerOptions(
        **options,
        # The state is donated to the next step: it must be on disk before.
        enable_async_checkpointing=False,
      ),
    )

  def steps(self) -> list[int]:
    return sorted(self._manager.all_steps())

  def metrics(self, step: int) -> dict[str, float]:
    return self._manager.metrics(step)

  def delete(self, step: int) -> None:
    self._manager.delete(step)

  def save(self, step: int, tree: Any, metrics: dict | None = None) -> None:
    if step in self.steps():
      return
    arguments = ocp.args.StandardSave(_named_leaves(tree))
    if not self._manager.save(step, args=arguments, metrics=metrics):
      raise ValueError(
        f"step {step} was not saved in {self._folder}, which holds step "
        f"{self.steps()[-1]}; go on in another --workdir"
      )

  def restore(self, template: Any) -> tuple[int, Any] | None:
    names = _named_leaves(template)
    damaged = []
    for step in reversed(self.steps()):
      try:
        leaves = self._manager.restore(
          step, args=ocp.args.StandardRestore(names)
        )
      # Orbax and TensorStore raise many kinds of errors for damaged files.
      except Exception as error:
        logging.warning(
          "cannot read checkpoint %s (%s); trying the one before",
          self._folder / str(step),
          (str(error) or type(error).__name__).partition("\n")[0],
        )
        damaged.append(step)
        continue
      # Training comes to the damaged steps again, and must be free to save.
      self._put_aside(damaged)
      structure = jax.tree.structure(template)
      return step, jax.tree.unflatten(structure, [leaves[n] for n in names])
    if damaged:
      raise ValueError(
        f"no checkpoint in {self._folder} can be read: they are damaged, or of "
        "another model. Start anew in another --workdir"
      )
    return None

  def _put_aside(self, steps: list[int]) -> None:
    for step in steps:
      aside = self._folder / f"{step}.damaged"
      shutil.rmtree(aside, ignore_errors=True)  # the same step, damaged before
      (self._folder / str(step)).rename(aside)
    self._manager.reload()


def _named_leaves(tree: Any) -> dict[str, Any]:
  leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
  return {
    jax.tree_util.keystr(path): np.asarray(x) if np.isscalar(x) else x
    for path, x in leaves
  }
