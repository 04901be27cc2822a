"""The folder of a run: flags, metrics, provenance, and how a run is stopped."""

import contextlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import statistics
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import tensorboardX
from absl import flags, logging

from capjax import data, specs
from experiments.flags import limits
from experiments.run import atomic_files, older_flags
from experiments.run import provenance as machine

WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder that the run writes to and resumes from."
)
DATASET = flags.DEFINE_enum("dataset", "digits", data.NAMES, "Data set.")
DATA_DIR = flags.DEFINE_string(
  "data_dir", None, "Folder with one folder for each data set."
)
SEED = flags.DEFINE_integer(
  "seed",
  0,
  "Draws parameters, batch order and augmentation.",
  lower_bound=0,
)
NUM_STEPS = flags.DEFINE_integer(
  "num_steps", 1000, "Updates in all.", lower_bound=1
)
BATCH_SIZE = flags.DEFINE_integer(
  "batch_size", 128, "Examples an update.", lower_bound=1
)
NUM_VALIDATION = flags.DEFINE_integer(
  "num_validation",
  None,
  "Training examples, the first ones, kept to choose the checkpoint by; by "
  "default a sixth (10,000 of MNIST). 0 trains on all of them and reports the "
  "last checkpoint.",
  lower_bound=0,
)
LOG_EVERY = flags.DEFINE_integer(
  "log_every", 20, "Steps between lines of metrics.", lower_bound=1
)
EVAL_EVERY = flags.DEFINE_integer(
  "eval_every", None, "Steps between validations; default: an epoch.",
  lower_bound=1,
)  # fmt: skip
CHECKPOINT_EVERY = flags.DEFINE_integer(
  "checkpoint_every",
  None,
  "Steps between checkpoints beside those at validations.",
  lower_bound=1,
)
CHECKPOINT_MINUTES = flags.DEFINE_float(
  "checkpoint_minutes",
  10.0,
  "A state is also saved at the first line of metrics after so many minutes "
  "without; 0 for none. Not in training that may restart from the states that "
  "are saved, whose numbers would depend on the time.",
  lower_bound=0.0,
)
STOP_ACCURACY = flags.DEFINE_float(
  "stop_accuracy",
  None,
  "Training ends at the first validation that reaches this accuracy, so that "
  "models are compared at the same one.",
  lower_bound=0.0,
  upper_bound=1.0,
)
AVERAGE_DECAY = flags.DEFINE_float(
  "average_decay",
  0.0,
  "Of an exponential moving average of the weights over steps, which is then "
  "validated, reported and evaluated in the place of the newest weights; those "
  "are scored beside it, as raw. 0 for none.",
)
flags.register_validator(
  AVERAGE_DECAY,
  lambda decay: 0 <= decay < 1,
  message="give 0 for no average, or a decay below 1 such as 0.999",
)
DETERMINISTIC = flags.DEFINE_bool(
  "deterministic", True, "Same numbers from the same seed on GPUs too."
)
COMPILATION_CACHE = flags.DEFINE_string(
  "compilation_cache",
  "~/.cache/capjax/xla",
  "Folder of compiled programs, kept between runs; empty for none.",
)

# Flags that say where and how fast, not what is computed.
_FREE_FLAGS = {"workdir", "data_dir", "compilation_cache", "checkpoint_minutes"}
# Those that name the folder of another run: records keep its last part.
_OTHER_RUNS = {"start_from"}

TRAIN_AGAIN = "give the training command again, which writes it anew"
# Of a run whose provenance was lost.
_UNKNOWN = {
  "commit": "unknown", "dirty": None, "versions": {}, "device": "unknown",
}  # fmt: skip


def refuse(what: str, names: Sequence[str]) -> None:
  """Raises a ValueError if any of the flags is set: `what` ignores them."""
  given = [name for name in names if not _is_default(name)]
  if given:
    raise ValueError(f"{what} has no use for --{', --'.join(given)}")


def flag_name(word: str) -> str:
  """The flag that a word of a command line sets: `seed` of `--seed=1`.

  `--noNAME` names the boolean flag NAME.
  """
  name = word.lstrip("-").partition("=")[0]
  positive = name.removeprefix("no")
  if name in flags.FLAGS or positive not in flags.FLAGS:
    return name
  return positive if flags.FLAGS[positive].boolean else name


def configure() -> None:
  """Applies the flags that JAX must know before it starts, and quiets Orbax."""
  if not flags.FLAGS["verbosity"].present:
    logging.set_verbosity(logging.WARNING)
  if DETERMINISTIC.value:
    options = os.environ.get("XLA_FLAGS", "")
    if "xla_gpu_deterministic_ops" not in options:
      options += " --xla_gpu_deterministic_ops=true"
      os.environ["XLA_FLAGS"] = options.strip()
  if COMPILATION_CACHE.value:
    folder = str(pathlib.Path(COMPILATION_CACHE.value).expanduser())
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
  """Ends the program with the message of an error in what the user gave.

  `--verbosity=1` shows where it was raised.
  """
  try:
    yield
  except (ValueError, OSError, flags.Error) as error:
    logging.debug("the error was raised here", exc_info=True)
    if atomic_files.is_full(error):
      path = getattr(error, "filename", None) or WORKDIR.value
      error = atomic_files.not_written(path, error)
    sys.exit(f"{type(error).__name__}: {error}")
  except KeyboardInterrupt:
    sys.exit(128 + signal.SIGINT)


class Run:
  """What one run writes to its folder, apart from checkpoints and figures."""

  def __init__(self, workdir: str):
    if not workdir:
      raise ValueError("a run's folder has no name; give one, as --workdir=DIR")
    self.workdir = pathlib.Path(workdir).expanduser()
    self._writer = None
    self._lock = None

  def claim(self) -> None:
    """Makes the folder and notes the flags, or goes on in it.

    No other process can claim it until this object is gone, or its process, in
    whichever way it ends. A flag that the code did not have when the run was
    begun counts as at its default then, or as `newer` says.

    Where flags.cfg or provenance.json is missing or damaged, it is written anew
    by what the other says, with a warning; what was there is put aside.

    Raises:
      ValueError: if the folder holds a run with other flags, or nothing that
        tells its flags, or another process trains in it.
    """
    self.workdir.mkdir(parents=True, exist_ok=True)
    self._lock = atomic_files.locked(self.workdir / "lock")
    new = {
      flag.name: flag.serialize()
      for flag in limits.experiment_flags()
      if flag.value is not None
    }
    if (
      self.has_begun()
      or (self.workdir / "checkpoints").exists()
      or any(self.workdir.glob("*/checkpoints"))  # of what comes before it
    ):
      self._check_flags(new)
    else:
      self._write_flags(new)
      atomic_files.write_json(self.workdir / "provenance.json", provenance())

  def has_begun(self) -> bool:
    """Whether training has left numbers here."""
    lines = self.workdir / "metrics.jsonl"
    return (self.workdir / "summary.json").exists() or (
      lines.exists() and lines.stat().st_size > 0
    )

  def flags(self) -> dict[str, Any]:
    """The flags that the run was begun with, by name."""
    path = self.workdir / "provenance.json"
    return atomic_files.read_json(path, names=["flags"], remedy=TRAIN_AGAIN)[
      "flags"
    ]

  def flag_lines(self, remedy: str = TRAIN_AGAIN) -> list[str]:
    """The words that set the run's flags.

    Args:
      remedy: what to do where flags.cfg is not whole.

    Raises:
      ValueError: if flags.cfg is missing or damaged.
    """
    path = self.workdir / "flags.cfg"
    known = {flag.name for flag in limits.experiment_flags()}
    try:
      text = path.read_text()
    except FileNotFoundError:
      raise ValueError(f"{path} is missing; {remedy}") from None
    except ValueError as error:
      fault = atomic_files.first_line(error)
      raise ValueError(f"{path} is damaged ({fault}); {remedy}") from None
    if not text.endswith("\n"):
      raise ValueError(f"{path} is cut off; {remedy}")
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
      if not line.startswith("--") or flag_name(line) not in known:
        raise ValueError(
          f"{path}, line {number}: {line[:40]!r} sets no flag of this run; "
          f"{remedy}"
        )
    return lines

  def _check_flags(self, new: Mapping[str, str]) -> None:
    """Compares the flags with those of the run, of which two files tell."""
    remedy = "put it back, or give another --workdir"
    start, lost, fault, changed = None, None, None, []
    try:
      start = self._provenance(remedy)
    except ValueError as error:
      lost = str(error)
    try:
      old = {flag_name(line): line for line in self.flag_lines(remedy)}
    except ValueError as error:
      fault = str(error)  # the error itself would keep the lock, by its frames
    else:
      older = older_flags.words(start["flags"]) if start else []
      old |= {flag_name(word): word for word in older}
      changed = [
        f"{old.get(name, name + ' unset')} is now {new.get(name, 'unset')}"
        for name in sorted((old.keys() | new.keys()) - _FREE_FLAGS)
        if old.get(name) != new.get(name)
        and (name in old or not _is_default(name))
      ]
    if fault and lost:
      raise ValueError(f"{fault} ({lost})")
    told = differences(start["flags"], _flag_values()) if start else []
    if not changed and not fault:
      if start is None or told:
        path = self._put_aside("provenance.json")
        atomic_files.write_json(
          path,
          {**provenance(), **(start or _UNKNOWN)} | {"flags": _flag_values()},
        )
    elif start and not told:
      self._put_aside("flags.cfg")
      self._write_flags(new)
    else:
      raise ValueError(
        f"{self.workdir} holds a run with other flags: "
        f"{'; '.join(changed or told)}. Give the old flags to resume it, or "
        "another --workdir"
      )

  def _provenance(self, remedy: str) -> dict[str, Any]:
    names = provenance().keys()
    path = self.workdir / "provenance.json"
    return atomic_files.read_json(path, names=names, remedy=remedy)

  def _write_flags(self, lines: Mapping[str, str]) -> None:
    text = "".join(f"{line}\n" for line in lines.values())
    atomic_files.write_whole(self.workdir / "flags.cfg", text)

  def _put_aside(self, name: str) -> pathlib.Path:
    """Makes room for a file that is missing or damaged, and says so."""
    path = self.workdir / name
    if path.exists():
      logging.warning(
        "%s is damaged: it is written anew, and kept as %s",
        path,
        atomic_files.put_aside(path).name,
      )
    else:
      logging.warning("%s is missing: it is written anew", path)
    return path

  def note(self, name: str, record: Mapping[str, Any]) -> None:
    """Writes NAME.json, of what the run is made of, when it is begun.

    Raises:
      ValueError: if the run was begun with another.
    """
    path = self.workdir / f"{name}.json"
    if not path.exists() or not self.metrics():
      atomic_files.write_json(path, record)
      return
    old = atomic_files.read_json(path)
    if "class" in old:
      old["class"] = specs.current_path(old["class"])
    changed = [x for x in record if old.get(x) != record[x]]
    if changed:
      raise ValueError(
        f"{path}: the run was begun with another {name} "
        f"({', '.join(changed)}). Give it the old {name}, or another --workdir"
      )

  def rewind(self, step: int) -> None:
    """Drops metrics of steps after `step`, which are about to come again.

    A file with damaged lines is put aside before they are left out.
    """
    lines, damaged = self._metrics()
    if damaged:
      path = self.workdir / "metrics.jsonl"
      aside = path.with_name(path.name + ".damaged")
      shutil.copyfile(path, aside)
      logging.warning(
        "%s: lines %s are damaged and left out; the whole file is kept as %s",
        path,
        ", ".join(map(str, damaged)),
        aside.name,
      )
    kept = [line for line in lines if line["step"] <= step]
    if step > max((line["step"] for line in kept), default=0):
      logging.warning(
        "%s has no lines up to step %d, from which training resumes",
        self.workdir / "metrics.jsonl",
        step,
      )
    text = "".join(json.dumps(line) + "\n" for line in kept)
    atomic_files.write_whole(self.workdir / "metrics.jsonl", text)
    if self._writer is not None:
      self._writer.close()
    self._writer = tensorboardX.SummaryWriter(
      str(self.workdir), purge_step=step + 1
    )

  def log(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
    """Adds a line to metrics.jsonl and points to TensorBoard's curves."""
    line = json.dumps({"step": step, "split": split, **metrics})
    atomic_files.append(self.workdir / "metrics.jsonl", line)
    for name, value in metrics.items():
      self._writer.add_scalar(f"{split}/{name}", value, step)
    self._writer.flush()

  def close(self) -> None:
    """Closes the files of TensorBoard."""
    self._writer.close()

  def metrics(self) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, without damaged ones."""
    return self._metrics()[0]

  def _metrics(self) -> tuple[list[dict[str, Any]], list[int]]:
    return atomic_files.read_json_lines(
      self.workdir / "metrics.jsonl", _is_line
    )

  def images_per_second(self) -> float | None:
    """The median rate of the updates so far, whose first calls also compile.

    None where no line of metrics.jsonl tells one.
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
    return folder / f"{name}.png"

  def write_summary(self, summary: Mapping[str, Any]) -> None:
    """Writes summary.json, which says that the run is complete.

    It has the provenance of the run's start; whatever of commit, versions and
    device was otherwise at its end is told beside it.

    Raises:
      ValueError: if provenance.json is missing or damaged.
    """
    start, end = self._provenance(TRAIN_AGAIN), provenance()
    later = {
      f"{name}_at_end": end[name]
      for name in ("commit", "dirty", "versions", "device")
      if end[name] != start[name]
    }
    sure = {name: end[name] for name in ("experiment", "dataset", "seed")}
    atomic_files.write_json(
      self.workdir / "summary.json", {**start, **sure, **later, **summary}
    )

  def read_summary(self) -> dict[str, Any]:
    """Reads summary.json.

    Raises:
      ValueError: if there is none, because no run was completed here, or it is
        damaged.
    """
    path = self.workdir / "summary.json"
    if not path.exists():
      raise ValueError(f"{path} is missing: no run was completed there")
    return atomic_files.read_json(
      path, names=("experiment", "flags", "metrics"), remedy=TRAIN_AGAIN
    )

  def read_evaluation(self, suite: str) -> dict[str, Any]:
    """Reads the record of a suite.

    Raises:
      ValueError: if the run was not evaluated by that suite, or the file that
        holds the record is damaged.
    """
    path = self.workdir / "evaluation.json"
    remedy = f"evaluate {self.workdir} with --suite={suite}"
    records = (
      atomic_files.read_json(path, remedy=remedy) if path.exists() else {}
    )
    if suite not in records:
      raise ValueError(f"{path} has no {suite}: {remedy} first")
    return records[suite]

  def write_evaluation(self, suite: str, record: Mapping[str, Any]) -> None:
    """Puts the record of a suite into evaluation.json, beside the others.

    A damaged file is put aside.
    """
    path, records = self.workdir / "evaluation.json", {}
    if path.exists():
      try:
        records = atomic_files.read_json(path, remedy="")
      except ValueError:
        self._put_aside(path.name)
    atomic_files.write_json(path, {**records, suite: record})


class Interrupts:
  """Turns SIGTERM and Ctrl-C into a request to save and stop.

  A second signal ends the program at once.
  """

  def __init__(self):
    self.received: int | None = None

  def __enter__(self) -> "Interrupts":
    self._old = {
      number: signal.signal(number, self._note)
      for number in (signal.SIGTERM, signal.SIGINT)
    }
    return self

  def __exit__(self, *_: object) -> None:
    for number, handler in self._old.items():
      signal.signal(number, handler)

  def _note(self, number: int, frame: types.FrameType | None) -> None:
    del frame
    if self.received is not None:
      sys.exit(128 + number)
    self.received = number


def provenance() -> dict[str, Any]:
  """What it takes to repeat this run: command, commit, flags, versions.

  `dirty` is None where git cannot say.
  """
  return {
    "experiment": pathlib.Path(sys.argv[0]).stem,
    "dataset": DATASET.value,
    "preset": _preset(),
    "command": _command(),
    "commit": machine.commit() or "unknown",
    "dirty": machine.is_dirty(),
    "flags": _flag_values(),
    "seed": SEED.value,
    "versions": machine.versions(),
    "device": machine.device(),
  }


def differences(
  recorded: Mapping[str, Any], others: Iterable[str]
) -> list[str]:
  """What flags are now, where that is not what was recorded, in words.

  Args:
    recorded: the value of each.
    others: names of flags that were at their defaults if they are not there,
      for the code may not have had them then.
  """
  now = json.loads(json.dumps(_flag_values()))
  recorded = {**recorded, **older_flags.missing(recorded)}
  return [
    f"--{name} was {recorded.get(name, 'unset')}, is {now.get(name, 'unset')}"
    for name in sorted({*recorded, *others})
    if recorded.get(name) != now.get(name)
    and (name in recorded or not _is_default(name))
  ]


def _flag_values() -> dict[str, Any]:
  return {
    flag.name: _recorded(flag.name, flag.value)
    for flag in limits.experiment_flags()
    if flag.name not in _FREE_FLAGS
  }


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


def _is_default(name: str) -> bool:
  return flags.FLAGS[name].value == flags.FLAGS[name].default


def _arguments() -> list[str]:
  """The command line with every flag as one word, `--name=value`."""
  words, arguments = iter(sys.argv[1:]), []
  for word in words:
    name = flag_name(word)
    takes_value = name == "flagfile" or (
      name in flags.FLAGS and not flags.FLAGS[name].boolean
    )
    if takes_value and "=" not in word:
      word = f"{word}={next(words, '')}"
    arguments.append("--" + word.lstrip("-"))
  return arguments


def _command() -> str:
  """The command line, without folders that differ from machine to machine."""
  arguments = []
  for argument in _arguments():
    name = flag_name(argument)
    if name in _OTHER_RUNS:
      value = argument.partition("=")[2]
      argument = f"--{name}={_recorded(name, value)}"
    if name not in _FREE_FLAGS:
      arguments.append(argument)
  if DATA_DIR.value:
    arguments.append("--data_dir=DATA")
  module = f"experiments.{pathlib.Path(sys.argv[0]).stem}"
  return shlex.join(["python", "-m", module, "--workdir=DIR", *arguments])


def _recorded(name: str, value: Any) -> Any:
  return pathlib.Path(value).name if name in _OTHER_RUNS and value else value


def _preset() -> str | None:
  for argument in _arguments():
    if flag_name(argument) == "flagfile":
      return pathlib.Path(argument.partition("=")[2]).stem
  return None
