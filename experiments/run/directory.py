"""The folder of a run: its flags, metrics, figures, summary, evaluations."""

import pathlib
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from capjax import specs

from . import atomic_files, changes, provenance, recorded_flags
from . import metrics as metrics_files
from .invocation import Invocation

# Names of the state of step 0: complete, being written, or being deleted.
_FIRST = ("0", "0.partial", "0.deleted")


class Run:
  """The files in the folder of a run, except checkpoints and figures."""

  def __init__(
    self,
    workdir: str,
    figure_format: str = "png",
    writers: Sequence[Callable[[pathlib.Path, int], metrics_files.Writer]] = (
      metrics_files.TensorBoard,
    ),
  ):
    """Prepares a run; creates no files yet.

    Args:
      workdir: the folder.
      figure_format: "png" or "pdf".
      writers: `(folder, step) -> writer` of metrics after a step, in addition
        to the writer of metrics.jsonl.

    Raises:
      ValueError: if the folder has no name.
    """
    if not workdir:
      raise ValueError("workdir has no name; give a folder (--workdir=DIR)")
    self.workdir = pathlib.Path(workdir).expanduser()
    self._figure_format = figure_format
    self._lines = metrics_files.Lines(self.workdir / "metrics.jsonl")
    self._make_writers = writers
    self._writers: list[metrics_files.Writer] = []
    self._lock = None
    self._invocation = None
    self.figures: list[pathlib.Path] = []  # those that `figure` named
    self._former = recorded_flags.FormerLengths([], [])

  def lock(
    self,
    invocation: Invocation,
    *,
    shortest: Callable[[], int] | None = None,
    check: Callable[[], None] = lambda: None,
  ) -> None:
    """Locks the folder, and records the command or checks that it is the same.

    No other process can lock the folder until `unlock`, or the end of the
    process. A run that has no update yet starts again, with any flags. A flag
    that is newer than the run counts as recorded at its default, or as
    `older_flags` says. A larger --num_steps lengthens the run, and
    `lengthened_from` has its former lengths. A smaller one ends it earlier,
    which `shortened_from` tells. `record_length` writes either.

    If flags.cfg or provenance.json is missing or damaged, it is restored from
    the other one, with a warning; the damaged file is kept under another name.

    Args:
      invocation: the command that trains, or resumes training.
      shortest: gives the smallest length that the run may get, such as its
        number of updates; None if it may not be shortened.
      check: raises an error if anything besides the flags differs from the run;
        called where the length is another one.

    Raises:
      ValueError: if the folder holds a run with other flags, or a run whose
        flags are lost, or if another process trains in it, or if it cannot be
        made.
    """
    folder = invocation.option("workdir")
    try:
      self.workdir.mkdir(parents=True, exist_ok=True)
      self._lock = atomic_files.locked(self.workdir / "lock")
    except OSError as error:
      raise ValueError(
        f"{self.workdir} is a file; give a folder ({folder})"
        if isinstance(error, FileExistsError)
        else f"a run cannot be kept in {self.workdir} ({error.strerror}); give "
        f"another folder ({folder})"
      ) from error
    self._invocation = invocation
    if self.holds_a_run():
      self._former = recorded_flags.resume(
        self.workdir, invocation, shortest, check
      )
    else:
      recorded_flags.begin(self.workdir, invocation)

  def command_of(
    self, experiment: str, preset: str
  ) -> recorded_flags.Command | None:
    """The flags of the run here, as words of a command that resumes it.

    Args:
      experiment: the binary.
      preset: its quick preset.

    Returns:
      None if there is no run, it is of another binary, or a file with its flags
      is damaged; and if it began with `preset` and has no update yet: it then
      starts again, with that preset.
    """
    found = recorded_flags.words_of(self.workdir, experiment)
    if found and found.preset == preset and not self.holds_a_run():
      return None
    return found

  def refuse_others(self, invocation: Invocation) -> None:
    """Checks the flags of a command as `lock` does, and writes nothing.

    Called before other checks, so that the error says that a flag differs, not
    that its value does not fit the data.

    Raises:
      ValueError: if the folder holds a run with other flags than these, apart
        from its length.
    """
    if self.holds_a_run():
      recorded_flags.refuse_others(self.workdir, invocation)

  @property
  def lengthened_from(self) -> list[int]:
    """Former lengths, oldest first, if the command of `lock` is longer."""
    return self._former.lengthened_from

  @property
  def shortened_from(self) -> list[int]:
    """Former lengths, oldest first, if the command of `lock` is shorter."""
    return self._former.shortened_from

  def record_length(self) -> None:
    """Records another length of the command of `lock`.

    Called when the run's state has been read, so that a command that cannot
    read it, as with another optimiser, changes nothing.
    """
    if self._invocation is not None:
      recorded_flags.record_length(self.workdir, self._invocation, self._former)

  def note_resumption(self) -> None:
    """Records the code and the machine that resume the run, if they changed.

    Called when the state has been read and updates are left, so that a refused
    command, or one of a finished run, leaves no mark.
    """
    if self._invocation is not None:
      provenance.note_resumption(self.workdir, self._invocation)

  def unlock(self) -> None:
    """Lets others lock the folder."""
    if self._lock is not None:
      self._lock.release()
      self._lock = None

  def has_updates(self) -> bool:
    """Whether training has written anything after the state of step 0.

    That state is saved before the update is compiled.
    """
    return _has_updates(self.workdir)

  def has_earlier_phase(self) -> bool:
    """Whether pretraining of layers has begun here."""
    return any(_has_updates(x) for x in self.workdir.glob("layer_*"))

  def holds_a_run(self) -> bool:
    """Whether training, or pretraining of layers, has begun here."""
    return self.has_updates() or self.has_earlier_phase()

  def has_begun(self) -> bool:
    """Whether training has written metrics or a summary here."""
    return _has_begun(self.workdir)

  def flags(self) -> dict[str, Any]:
    """The flags that the run was started with, by name."""
    return recorded_flags.read_provenance(self.workdir, ["flags"])["flags"]

  def note(
    self, name: str, record: Mapping[str, Any], *, fixed: bool = False
  ) -> None:
    """Writes NAME.json, such as the model or the data, when the run starts.

    Args:
      name: of the file.
      record: what it holds.
      fixed: whether a saved state depends on an existing record, which must
        then be the same; it always must if there are metrics.

    Raises:
      ValueError: if the run was started with another record of that name.
    """
    path = self.workdir / f"{name}.json"
    if path.exists() and (fixed or self.metrics()):
      self.require_same(name, record)
    else:
      atomic_files.write_json(path, record)

  def require_same(self, name: str, record: Mapping[str, Any]) -> None:
    """Compares a record with what `note` wrote under its name, if anything.

    Raises:
      ValueError: if they differ.
    """
    path = self.workdir / f"{name}.json"
    if not path.exists():
      return
    old = atomic_files.read_json(path)
    if "class" in old:
      old = specs.current(old)
    if changed := changes.between(old, record):
      other = "other data" if name == "data" else f"another {name}"
      raise ValueError(
        f"{path}: the run was started with {other} ({'; '.join(changed)}). Use "
        f"the old {name}, or another folder ({self._option('workdir')})"
      )

  def _option(self, name: str) -> str:
    return self._invocation.option(name) if self._invocation else f"--{name}"

  def drop_note(self, name: str) -> None:
    """Deletes what `note` wrote under a name, if anything."""
    (self.workdir / f"{name}.json").unlink(missing_ok=True)

  def noted(self, name: str) -> dict[str, Any]:
    """`{name: record}` of what `note` wrote; empty if it wrote nothing.

    Raises:
      ValueError: if the file is damaged.
    """
    path = self.workdir / f"{name}.json"
    return {name: atomic_files.read_json(path)} if path.exists() else {}

  def rewind(
    self, step: int, also: Collection[str] = (), due: int | None = None
  ) -> None:
    """Drops the metrics of steps after `step`, which will be repeated.

    Damaged lines are dropped too; the original file is then kept.

    Args:
      step: the step from which training resumes.
      also: splits whose line of `step` itself is dropped too.
      due: a warning is logged if the last line is of an earlier step than this;
        None for `step`.
    """
    self.close()
    self._lines.rewind(step, also, step if due is None else due)
    others = [make(self.workdir, step) for make in self._make_writers]
    self._writers = [self._lines, *others]

  def log(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
    """Gives metrics to metrics.jsonl and to the other writers."""
    for writer in self._writers:
      writer.write(step, split, metrics)

  def close(self) -> None:
    """Closes the files of metrics."""
    for writer in self._writers:
      writer.close()

  def metrics(self) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, without damaged ones."""
    return self._lines.read()

  def restarts(self) -> int:
    """How often training has returned to an earlier state."""
    return sum(line["split"] == "restart" for line in self.metrics())

  def restarts_of_phases(self) -> int:
    """`restarts` of training and of all layers that were pretrained here."""
    layers = map(Run, self.workdir.glob("layer_*"))
    return self.restarts() + sum(layer.restarts() for layer in layers)

  def images_per_second(self) -> float | None:
    """The median rate of the updates so far, which compilation hardly affects.

    None where no line of metrics.jsonl has a rate.
    """
    rates = [
      line["images_per_second"]
      for line in self.metrics()
      if line["split"] == "train" and "images_per_second" in line
    ]
    return statistics.median(rates) if rates else None

  def figure(self, name: str) -> pathlib.Path:
    """The path of a figure to be written."""
    folder = self.workdir / "figures"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.{self._figure_format}"
    self.figures += [path] if path not in self.figures else []
    return path

  def summary(self, entries: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of the run, with further entries.

    It holds the provenance at the start of the run, and, if they have changed,
    the commit, versions, device and settings of JAX at its end, and those of
    resumptions between (`provenance.note_resumption`).

    Raises:
      ValueError: if provenance.json is missing or damaged.
    """
    end = provenance.record(self._invocation)
    start = recorded_flags.read_provenance(self.workdir, provenance.REQUIRED)
    later = {
      f"{name}_at_end": end[name]
      for name in provenance.CHANGEABLE
      # Older runs do not record all of them.
      if end[name] != start.get(name, end[name])
    }
    sure = {name: end[name] for name in ("experiment", "dataset", "seed")}
    return {**start, **sure, **later, **entries}

  def is_complete(self, num_steps: int) -> bool:
    """Whether there is a summary of a run of this many updates."""
    try:
      return self.read_summary().get("num_steps") == num_steps
    except ValueError:
      return False

  def write_summary(self, summary: Mapping[str, Any]) -> None:
    """Writes the result of `summary` to summary.json; the run is then complete.

    Raises:
      OSError: if the file cannot be written.
    """
    atomic_files.write_json(self.workdir / "summary.json", summary)

  def read_summary(self) -> dict[str, Any]:
    """Reads summary.json.

    Raises:
      ValueError: if it is missing, because no run was completed here, or it
        is damaged.
    """
    path = self.workdir / "summary.json"
    if not self.workdir.exists():
      raise ValueError(
        f"{self.workdir} does not exist; give the folder of a run that is "
        "finished (capjax predict and export take names of pretrained models)"
      )
    if not path.exists():
      raise ValueError(
        f"{path} is missing: no run was completed there; give the folder of a "
        "run that is finished, or repeat its training command"
      )
    return atomic_files.read_json(
      path,
      names=("experiment", "flags", "metrics"),
      remedy=recorded_flags.TRAIN_AGAIN,
    )

  def read_evaluation(self, suite: str) -> dict[str, Any]:
    """Reads the record of a suite.

    Raises:
      ValueError: if there is no such folder, or the run was not evaluated by
        that suite, or has been trained to another length since, or the file
        that holds the record is damaged.
    """
    path = self.workdir / "evaluation.json"
    if not self.workdir.exists():
      raise ValueError(
        f"{self.workdir} does not exist; give the folder of a run"
      )
    remedy = f"evaluate {self.workdir} with --suite={suite}"
    records = (
      atomic_files.read_json(path, remedy=remedy) if path.exists() else {}
    )
    if suite not in records:
      raise ValueError(f"{path} has no {suite}: {remedy} first")
    if (self.workdir / "summary.json").exists():
      if told := outdated(self.read_summary(), records[suite]):
        raise ValueError(
          f"{suite} in {path} is outdated ({told}): {remedy} again"
        )
    return records[suite]

  def write_evaluation(self, suite: str, record: Mapping[str, Any]) -> None:
    """Adds the record of a suite to evaluation.json.

    A damaged file is renamed first. Several processes may write at once.
    """
    path, records = self.workdir / "evaluation.json", {}
    with atomic_files.turn(self.workdir / "evaluation.lock"):
      if path.exists():
        try:
          records = atomic_files.read_json(path, remedy="")
        except ValueError:
          atomic_files.warn_and_put_aside(path)
      atomic_files.write_json(path, {**records, suite: record})


def outdated(summary: Mapping[str, Any], record: Mapping[str, Any]) -> str:
  """How training has changed the run since an evaluation; empty if it has not.

  Args:
    summary: of the run now.
    record: of the evaluation.
  """
  told = (
    f"{name} was {record.get(name)}, is {summary.get(name)}"
    for name in ("num_steps", "seed")
    if record.get(name) != summary.get(name)
  )
  return ", ".join(told)


def _has_begun(workdir: pathlib.Path) -> bool:
  lines = workdir / "metrics.jsonl"
  return (workdir / "summary.json").exists() or (
    lines.exists() and lines.stat().st_size > 0
  )


def _has_updates(workdir: pathlib.Path) -> bool:
  saved = workdir.glob("checkpoints/*/*")
  return _has_begun(workdir) or any(x.name not in _FIRST for x in saved)
