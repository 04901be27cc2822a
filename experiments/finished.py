"""Reopens a finished run: sets its flags and makes its task."""

import functools
import importlib
import pathlib
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from absl import flags

from capjax import weights

from . import fitting
from .flags import datasets, runs
from .run import directory, older_flags
from .run.recorded_flags import TRAIN_AGAIN, of_any_machine, read_words
from .tasks import recorded
from .training.task import Task


def reopen(run: directory.Run) -> tuple[dict[str, Any], Callable[[], Task]]:
  """Sets the flags of a finished run, followed by those of this command.

  Args:
    run: the run.

  Returns:
    The summary of the run, and a function that makes its task: that of the
    training binary; for a run that `fitting.fit` made, from its record.

  Raises:
    ValueError: if no run was completed there, its files are damaged, or this
      command sets a flag of the run.
  """
  summary = run.read_summary()
  on_arrays = summary["experiment"] == fitting.EXPERIMENT
  if on_arrays and not datasets.DATASET.present:
    raise ValueError(
      f"the run in {run.workdir} was trained on arrays; give them as "
      "--dataset=FILE.npz"
    )
  make_task = (
    functools.partial(recorded.task_of, _card(run), summary["task"])
    if on_arrays
    else _binary(run, summary["experiment"]).make_task
  )
  words = (word for word in sys.argv[1:] if word.startswith("-"))
  given = {runs.flag_name(word) for word in words}
  foreign = given & (summary["flags"].keys() | {"flagfile"})
  if foreign:
    remedy = "leave it out here"
    if "dataset" in foreign:
      remedy += "; for other images there are capjax predict and capjax.load"
    raise ValueError(
      f"--{', --'.join(sorted(foreign))}: the run in {run.workdir} has its "
      f"own value; {remedy}"
    )
  _take_flags(run, summary["flags"])
  return summary, make_task


def _card(run: directory.Run) -> dict[str, Any]:
  """The card of the run's model."""
  return weights.read(weights.find(run.workdir))[0]


def _binary(run: directory.Run, name: str) -> types.ModuleType:
  """The module of the training binary that made a run.

  Raises:
    ValueError: if the name is not that of a training binary.
  """
  folder = pathlib.Path(__file__).parent
  known = sorted(path.stem for path in folder.glob("train_*.py"))
  if name not in known:
    raise ValueError(
      f"{run.workdir / 'summary.json'} names the experiment {name!r}, which is "
      f"none of {', '.join(known)}; {TRAIN_AGAIN}"
    )
  return importlib.import_module(f"{__package__}.{name}")


def _take_flags(run: directory.Run, recorded: Mapping[str, Any]) -> None:
  """Sets the flags of a run, followed by those of this command.

  The run's compilation cache is not used, since it holds native code.

  Raises:
    ValueError: if flags.cfg is damaged, or differs from summary.json.
  """
  path = run.workdir / "flags.cfg"
  words = of_any_machine(read_words(run.workdir, runs.invocation()))
  try:
    older = older_flags.words(recorded)
    flags.FLAGS([sys.argv[0], *words, *older, *sys.argv[1:]])
  except flags.Error as error:
    raise ValueError(f"{path}: {error}; {TRAIN_AGAIN}") from error
  changed = runs.invocation().differences(recorded, map(runs.flag_name, words))
  if changed:
    raise ValueError(
      f"{path} and summary.json differ ({'; '.join(changed)}); {TRAIN_AGAIN}"
    )
