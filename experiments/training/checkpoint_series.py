"""Checkpoints of one kind in a folder, each whole or absent, with checksums.

In the folder, STEP is a checkpoint; STEP.partial is being written; STEP.deleted
is being deleted; STEP.replaced is the former STEP, until the new one is in
place; STEP.damaged was found damaged, and is kept for inspection.

With several processes, each writes its share of the arrays. Process 0 does
everything else, and sends the outcome to the others.
"""

import contextlib
import hashlib
import json
import pathlib
import shutil
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epy

from ..run import atomic_files, processes

with epy.lazy_imports():  # these take seconds, and --help needs none
  import orbax.checkpoint as ocp

_ARRAYS = "default"
_METRICS = "metrics/metrics"
_CHECKSUMS = "checksums.json"
_NUM_KEPT = 2
_OTHER = "they are of another model or optimiser"
_BLOCK = 4096  # bytes that the smallest file takes


class Series:
  """Checkpoints of one kind, of which the newest two are kept.

  In a measured series each checkpoint has metrics; in others it may have them.
  """

  def __init__(self, folder: pathlib.Path, *, measured: bool = False):
    self._folder = folder.absolute()
    self._measured = measured
    # Not in the background: the state must be on disk before the next step,
    # which overwrites its buffers.
    self._orbax = _checkpointer()
    self._faults: dict[int, str | None] = {}  # by step

  @processes.shared
  def steps(self) -> list[int]:
    """The steps of checkpoints without a fault, the newest last."""
    for step in self._numbered():
      if step not in self._faults:
        self._note(step, self._fault(step))
    return [step for step in self._numbered() if not self._faults[step]]

  @processes.shared
  def metrics(self, step: int, missing: Any = None) -> dict[str, float]:
    """The metrics of a step; `missing` where there are none."""
    path = self._path(step) / _METRICS
    if missing is not None and not path.exists():
      return missing
    return json.loads(path.read_text())

  def save(self, step: int, tree: Any, metrics: dict | None = None) -> None:
    """Saves a checkpoint, unless there is one of that step."""
    if self._wants(step):
      self._keep(step, self.write(step, tree, metrics))

  @processes.shared
  def _wants(self, step: int) -> bool:
    steps = self.steps()
    if step in steps:
      return False
    if steps and step < steps[-1] and not self._measured:
      raise ValueError(
        f"step {step} was not saved in {self._folder}, which holds step "
        f"{steps[-1]}; continue in another workdir"
      )
    return True

  @processes.shared
  def _keep(self, step: int, written: pathlib.Path) -> None:
    """Makes a written checkpoint valid, and deletes old ones."""
    self._put_damaged_aside()
    written.rename(self._folder / str(step))
    self._faults[step] = None
    # Later ones exist if the run resumed from before them; this one is better.
    self.delete_after(step)
    for old in self.steps()[:-_NUM_KEPT]:
      self._delete(old)

  def write(
    self, step: int, tree: Any, metrics: dict | None = None
  ) -> pathlib.Path:
    """Writes a checkpoint that is not yet valid; returns its folder."""
    partial = self._folder / f"{step}.partial"
    try:
      leaves = _named_leaves(tree)
      size = sum(x.nbytes for x in leaves.values())
      # Without space, Orbax would fail in many threads, with long messages.
      self._make_room(partial, size + _BLOCK * (2 * len(leaves) + 24))
      with _quiet():
        self._orbax.save(partial / _ARRAYS, args=ocp.args.StandardSave(leaves))
      self._seal(partial, metrics)
    # Orbax and TensorStore raise many kinds of errors, with long messages.
    except Exception as error:
      if processes.is_first():
        shutil.rmtree(partial, ignore_errors=True)
      raise atomic_files.not_written(self._folder / str(step), error) from error
    return partial

  @processes.shared
  def _make_room(self, partial: pathlib.Path, size: int) -> None:
    self._clear()
    partial.mkdir(parents=True)
    atomic_files.require_space(partial, size)

  @processes.shared
  def _seal(self, partial: pathlib.Path, metrics: dict | None) -> None:
    """Adds the metrics and the checksums."""
    if metrics is not None:
      (partial / _METRICS).parent.mkdir()
      (partial / _METRICS).write_text(json.dumps(metrics))
    atomic_files.write_json(partial / _CHECKSUMS, _checksums(partial))

  @processes.shared
  def replace(self, step: int, written: pathlib.Path) -> None:
    """Replaces the checkpoint of a step by the one that was written."""
    path, old = self._folder / str(step), self._folder / f"{step}.replaced"
    if path.exists():  # otherwise it is `old` already
      path.rename(old)
    written.rename(path)
    self._faults[step] = None
    self._clear()

  @processes.shared
  def delete_after(self, step: int) -> None:
    """Deletes the checkpoints of later steps."""
    for later in self._numbered():
      if later > step:
        self._delete(later)

  def restore(
    self, template: Any, order: Iterable[int] | None = None
  ) -> tuple[int, Any] | None:
    """The first readable checkpoint in `order`; by default the newest first."""
    names = _named_leaves(template)
    for step in order or reversed(self.steps()):
      path = processes.by_first(self._path, step)
      fault = ""
      try:
        with _quiet():
          found = self._orbax.metadata(path / _ARRAYS).item_metadata
          if set(found) != set(names):
            raise ValueError(_OTHER)
          leaves = self._orbax.restore(
            path / _ARRAYS, args=ocp.args.StandardRestore(names)
          )
      # Orbax raises many kinds of errors here too.
      except Exception as error:
        fault = atomic_files.first_line(error)
      (failed,) = processes.highest(bool(fault))
      if failed:
        self._note(step, fault or "another process cannot read it")
        continue
      if _recorded_checksums(path) is None:
        logging.warning("%s has no checksums: it is used unverified", path)
      structure = jax.tree.structure(template)
      return step, jax.tree.unflatten(structure, [leaves[n] for n in names])
    self._require_no_fault()
    return None

  @processes.shared
  def _require_no_fault(self) -> None:
    """Raises a ValueError if there are checkpoints, all of them damaged."""
    if not self._faults:
      return
    if set(self._faults.values()) == {_OTHER}:
      raise ValueError(
        f"the checkpoints in {self._folder} hold other arrays: {_OTHER}. Use "
        "the model and the optimiser that the run began with, or train in "
        "another workdir"
      )
    faults = "; ".join(
      f"{step}: {fault}" for step, fault in sorted(self._faults.items())
    )
    raise ValueError(
      f"no checkpoint in {self._folder} can be read ({faults}): they are "
      "damaged, or of another model or optimiser. Use the model and the "
      "optimiser that the run began with, restore the files from a copy, or "
      "train again in another workdir"
    )

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
    # Rename it first: an interrupted deletion must not leave a damaged one.
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


def _checkpointer() -> Any:
  """Orbax's checkpointer, for the processes that work together."""
  options = {}
  if processes.count() < jax.process_count():
    options["multiprocessing_options"] = ocp.options.MultiprocessingOptions(
      active_processes={jax.process_index()}, barrier_sync_key_prefix="alone"
    )
  handler = ocp.StandardCheckpointHandler(**options)
  return ocp.Checkpointer(handler, **options)


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
  """The recorded checksums; None if there are none, or they are damaged."""
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
