"""Where the metrics of a run are written: lines of JSON, and TensorBoard."""

import json
import pathlib
import shutil
import uuid
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from absl import logging
from etils import epy

from . import atomic_files

with epy.lazy_imports():  # it takes a second, and --help needs none
  import tensorboardX


class Writer(Protocol):
  """Receives the metrics of a run during training."""

  def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
    """Takes the metrics of a split, such as "train", after `step` updates."""

  def close(self) -> None:
    """Writes what is not yet written."""


class TensorBoard:
  """A `Writer` of events for TensorBoard, one curve for each split and name."""

  def __init__(self, folder: pathlib.Path, step: int):
    """Continues after a step; points of later steps are hidden."""
    self._writer = tensorboardX.SummaryWriter(str(folder), purge_step=step + 1)

  def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
    for name, value in metrics.items():
      self._writer.add_scalar(f"{split}/{name}", value, step)
    self._writer.flush()

  def close(self) -> None:
    self._writer.close()


class WeightsAndBiases:
  """A `Writer` to a run of Weights & Biases, which resumes if this run does.

  The package `wandb` reads its own settings, such as WANDB_MODE=offline. It
  ignores steps before the last one that it has. That is harmless for a run that
  resumes, which repeats the same values. If a run diverged and returned to an
  earlier step, the values that were written first are kept.
  """

  def __init__(self, folder: pathlib.Path, step: int, *, project: str):
    """Continues the run of a folder.

    Raises:
      ValueError: if the package is not installed.
    """
    del step  # the package knows its last one
    try:
      import wandb
    except ImportError:
      raise ValueError(
        f"--wandb={project} needs the package wandb, which is not installed: "
        "pip install wandb"
      ) from None
    path = folder / "wandb_id"
    if not path.exists():
      atomic_files.write_whole(path, uuid.uuid4().hex)
    self._run = wandb.init(
      project=project,
      name=folder.name,
      id=path.read_text(),
      dir=str(folder),
      resume="allow",
    )

  def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
    values = {f"{split}/{name}": value for name, value in metrics.items()}
    self._run.log(values, step=step)

  def close(self) -> None:
    self._run.finish()


class Lines:
  """A `Writer` of one JSON object on each line of a file, read back later."""

  def __init__(self, path: pathlib.Path):
    self._path = path

  def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
    line = json.dumps({"step": step, "split": split, **metrics})
    atomic_files.append(self._path, line)

  def close(self) -> None:
    """Does nothing: each line is written at once."""

  def read(self) -> list[dict[str, Any]]:
    """The lines, without damaged ones."""
    return self._read()[0]

  def rewind(self, step: int, also: Collection[str], due: int) -> None:
    """Drops the metrics of steps after `step`, which will be repeated.

    Damaged lines are dropped too; the original file is then kept.

    Args:
      step: the step from which training resumes.
      also: splits whose line of `step` itself is dropped too.
      due: a warning is logged if the last line is of an earlier step than this.
    """
    lines, damaged = self._read()
    if damaged:
      aside = self._path.with_name(self._path.name + ".damaged")
      shutil.copyfile(self._path, aside)
      logging.warning(
        "%s: lines %s are damaged and left out; the whole file is kept as %s",
        self._path,
        ", ".join(map(str, damaged)),
        aside.name,
      )
    kept = [
      line
      for line in lines
      if line["step"] < step + (line["split"] not in also)
    ]
    if due > max((line["step"] for line in kept), default=0):
      logging.warning(
        "%s has no lines up to step %d, from which training resumes",
        self._path,
        step,
      )
    text = "".join(json.dumps(line) + "\n" for line in kept)
    atomic_files.write_whole(self._path, text)

  def _read(self) -> tuple[list[dict[str, Any]], list[int]]:
    return atomic_files.read_json_lines(self._path, _is_line)


def _is_line(value: Any) -> bool:
  """Whether a value can be a line of metrics.jsonl."""
  return (
    isinstance(value, dict)
    and isinstance(value.get("step"), int)
    and isinstance(value.get("split"), str)
    and all(
      isinstance(x, int | float) for name, x in value.items() if name != "split"
    )
  )
