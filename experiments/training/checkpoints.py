"""Checkpoints: the newest states to resume from, and the best model to report.

Each checkpoint is whole or absent, and has checksums of its files. In the
folder of a series, STEP is a checkpoint; STEP.partial is being written;
STEP.deleted is being deleted; STEP.replaced is the former STEP, until the new
one is in place;
STEP.damaged was found damaged, and is kept for inspection.
"""

import contextlib
import hashlib
import json
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epy

from ..run import atomic_files

with epy.lazy_imports():  # these take seconds, and --help needs none
  import orbax.checkpoint as ocp

_ARRAYS = "default"
_METRICS = "metrics/metrics"
_CHECKSUMS = "checksums.json"
_NUM_KEPT = 2
_BLOCK = 4096  # bytes that the smallest file takes


class Checkpoints:
  """Two series of checkpoints in one folder.

  `latest` holds the training states of the last two saved steps; `best` the
  models with the two highest `score`s on validation so far, with their metrics;
  of equal scores the later step counts as higher. Two are kept so that a run
  survives one that is damaged on disk: it is skipped with a warning, and
  renamed to `STEP.damaged` when the next one is saved. Without a `score` the
  last model is the best. Reading changes no file.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    score: Callable[[dict[str, float]], Any] | None,
  ):
    self._latest = _Series(folder / "latest")
    self._score = score or (lambda metrics: None)
    # Each is better than those before it: the newest two are the best two.
    self._best = _Series(folder / "best", measured=True)

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

  def drop_best(self, step: int) -> None:
    """Deletes the best model if it is that of this step."""
    if self.best_step() == step:
      self._best.delete_after(step - 1)

  def save_best(self, step: int, model: Any, metrics: dict[str, float]) -> None:
    """Saves the model to report with its metrics, if it is the best so far.

    Raises:
      OSError: as `save`.
    """
    metrics = {**metrics, "step": step}
    steps = self._best.steps()
    if not steps or self._rank(metrics) > self._rank(
      self._best.metrics(steps[-1])
    ):
      self._best.save(step, model, metrics)

  def last_step(self) -> int | None:
    """The step of the newest training state; None where there is none."""
    return max(self._latest.steps(), default=None)

  def has_state(self) -> bool:
    """Whether there is a training state to resume from."""
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

  def _rank(self, metrics: dict[str, float]) -> tuple[Any, float]:
    return self._score(metrics), metrics["step"]

  def _metrics(self, step: int) -> dict[str, float]:
    metrics = self._best.metrics(step)
    metrics.pop("step", None)
    return metrics


class _Series:
  """Checkpoints of one kind, of which the newest two are kept.

  Those of a measured series have metrics, others may have.
  """

  def __init__(self, folder: pathlib.Path, *, measured: bool = False):
    self._folder = folder.absolute()
    self._measured = measured
    # Not in the background: the state is donated to the next step, and must be
    # on disk before.
    self._orbax = ocp.Checkpointer(ocp.StandardCheckpointHandler())
    self._faults: dict[int, str | None] = {}  # by step

  def steps(self) -> list[int]:
    """The steps of checkpoints without a fault, the newest last."""
    for step in self._numbered():
      if step not in self._faults:
        self._note(step, self._fault(step))
    return [step for step in self._numbered() if not self._faults[step]]

  def metrics(self, step: int, missing: Any = None) -> dict[str, float]:
    path = self._path(step) / _METRICS
    if missing is not None and not path.exists():
      return missing
    return json.loads(path.read_text())

  def save(self, step: int, tree: Any, metrics: dict | None = None) -> None:
    steps = self.steps()
    if step in steps:
      return
    if steps and step < steps[-1] and not self._measured:
      raise ValueError(
        f"step {step} was not saved in {self._folder}, which holds step "
        f"{steps[-1]}; continue in another --workdir"
      )
    written = self.write(step, tree, metrics)
    self._put_damaged_aside()
    written.rename(self._folder / str(step))
    self._faults[step] = None
    # For a run that resumed from before the best one, and now does better.
    self.delete_after(step)
    for old in self.steps()[:-_NUM_KEPT]:
      self._delete(old)

  def write(
    self, step: int, tree: Any, metrics: dict | None = None
  ) -> pathlib.Path:
    """Writes a checkpoint that is not yet valid; returns its folder."""
    self._clear()
    partial = self._folder / f"{step}.partial"
    try:
      partial.mkdir(parents=True)
      leaves = _named_leaves(tree)
      size = sum(x.nbytes for x in leaves.values())
      # Orbax fails for want of space in many threads, each with pages to say.
      atomic_files.require_space(
        partial, size + _BLOCK * (2 * len(leaves) + 24)
      )
      with _quiet():
        self._orbax.save(partial / _ARRAYS, args=ocp.args.StandardSave(leaves))
      if metrics is not None:
        (partial / _METRICS).parent.mkdir()
        (partial / _METRICS).write_text(json.dumps(metrics))
      atomic_files.write_json(partial / _CHECKSUMS, _checksums(partial))
    # Orbax and TensorStore raise many kinds of errors, pages long.
    except Exception as error:
      shutil.rmtree(partial, ignore_errors=True)
      raise atomic_files.not_written(self._folder / str(step), error) from error
    return partial

  def replace(self, step: int, written: pathlib.Path) -> None:
    """Replaces the checkpoint of a step by the one that was written."""
    path, old = self._folder / str(step), self._folder / f"{step}.replaced"
    if path.exists():  # otherwise it is `old` already
      path.rename(old)
    written.rename(path)
    self._faults[step] = None
    self._clear()

  def delete_after(self, step: int) -> None:
    for later in self._numbered():
      if later > step:
        self._delete(later)

  def restore(
    self, template: Any, order: Iterable[int] | None = None
  ) -> tuple[int, Any] | None:
    """The first readable checkpoint in `order`; by default the newest first."""
    names = _named_leaves(template)
    for step in order or reversed(self.steps()):
      path = self._path(step)
      try:
        with _quiet():
          leaves = self._orbax.restore(
            path / _ARRAYS, args=ocp.args.StandardRestore(names)
          )
      # Orbax raises many kinds of errors here too.
      except Exception as error:
        self._note(step, atomic_files.first_line(error))
        continue
      if _recorded_checksums(path) is None:
        logging.warning("%s has no checksums: it is used unverified", path)
      structure = jax.tree.structure(template)
      return step, jax.tree.unflatten(structure, [leaves[n] for n in names])
    if self._faults:
      faults = "; ".join(
        f"{step}: {fault}" for step, fault in sorted(self._faults.items())
      )
      raise ValueError(
        f"no checkpoint in {self._folder} can be read ({faults}): they are "
        "damaged, or of another model. Restore them from a copy, or train "
        "again in another --workdir"
      )
    return None

  def _numbered(self) -> list[int]:
    paths = self._folder.iterdir() if self._folder.exists() else ()
    names = {path.name.removesuffix(".replaced") for path in paths}
    return sorted(int(name) for name in names if name.isdecimal())

  def _path(self, step: int) -> pathlib.Path:
    path = self._folder / str(step)
    return path if path.exists() else self._folder / f"{step}.replaced"

  def _fault(self, step: int) -> str | None:
    """The fault of a checkpoint, from its files; None without one."""
    path = self._path(step)
    if not (path / _ARRAYS).is_dir():
      return f"it has no folder {_ARRAYS}"
    try:
      changed = _changed(path)
      if changed:
        return f"{changed[0]} is not as it was saved"
      if self._measured:
        metrics = self.metrics(step)
        if not all(isinstance(x, int | float) for x in metrics.values()):
          return f"{_METRICS} is damaged"
    except (OSError, ValueError, AttributeError) as error:
      return atomic_files.first_line(error)
    return None

  def _note(self, step: int, fault: str | None) -> None:
    self._faults[step] = fault
    if fault:
      logging.warning(
        "cannot read checkpoint %s (%s); trying the one before",
        self._path(step),
        fault,
      )

  def _delete(self, step: int) -> None:
    # Renamed first, for a deletion cut short must not leave a damaged one.
    deleted = self._folder / f"{step}.deleted"
    self._path(step).rename(deleted)
    self._faults.pop(step, None)
    shutil.rmtree(deleted)

  def _put_damaged_aside(self) -> None:
    """Renames damaged checkpoints; training will save these steps again."""
    for step in [step for step, fault in self._faults.items() if fault]:
      aside = self._folder / f"{step}.damaged"
      shutil.rmtree(aside, ignore_errors=True)  # the same step, damaged before
      self._path(step).rename(aside)
      del self._faults[step]

  def _clear(self) -> None:
    """Removes partial checkpoints that a killed process has left."""
    for path in self._folder.glob("*"):
      replaced = path.suffix == ".replaced" and path.with_suffix("").exists()
      if path.suffix in (".partial", ".deleted") or replaced:
        shutil.rmtree(path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Stops Orbax from logging, at length, the errors that it raises."""
  verbosity = logging.get_verbosity()
  if verbosity < logging.INFO:
    logging.set_verbosity(logging.FATAL)
  try:
    yield
  finally:
    logging.set_verbosity(verbosity)


def _changed(path: pathlib.Path) -> list[str]:
  """The files that are missing, or not as they were saved."""
  recorded = _recorded_checksums(path) or {}
  now = _checksums(path) if recorded else {}
  return [name for name in recorded if recorded[name] != now.get(name)]


def _recorded_checksums(path: pathlib.Path) -> dict[str, str] | None:
  """None where there are none, or they are damaged themselves."""
  try:
    recorded = json.loads((path / _CHECKSUMS).read_text())
  except (OSError, ValueError):
    return None
  return recorded if isinstance(recorded, dict) else None


def _checksums(folder: pathlib.Path) -> dict[str, str]:
  """SHA-256 of each file, by its path from the folder."""
  digests = {}
  for path in sorted(folder.rglob("*")):
    name = path.relative_to(folder).as_posix()
    if path.is_file() and name != _CHECKSUMS:
      with path.open("rb") as file:
        digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
  return digests


def _named_leaves(tree: Any) -> dict[str, Any]:
  leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
  return {
    jax.tree_util.keystr(path): np.asarray(x) if np.isscalar(x) else x
    for path, x in leaves
  }
