"""The command that makes a run, independent of the machine."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from . import older_flags

# Flags about the processes and CPU devices of a run, which are not recorded.
PROCESS_FLAGS = frozenset(
  {
    "distributed",
    "coordinator_address",
    "num_processes",
    "process_id",
    "cpu_devices",
  }
)

# Flags that affect where and how fast a run computes, but not its results.
FREE_FLAGS = PROCESS_FLAGS | frozenset(
  {
    "workdir",
    "data_dir",
    "compilation_cache",
    "checkpoint_minutes",
    "figure_format",
    "profile",
    "wandb",
    "model_parallel",
    "stream",
    "preset",  # the flagfile stands for it
  }  # fmt: skip
)


def flag_name(word: str, is_flag: Callable[[str], bool]) -> str:
  """The flag that a word of a command line sets: `seed` of `--seed=1`.

  `--noNAME` names the boolean flag NAME; absl refuses it for other flags.

  Args:
    word: of a command line that absl has parsed, or of flags.cfg.
    is_flag: whether there is a flag of a name.
  """
  name = word.lstrip("-").partition("=")[0]
  positive = name.removeprefix("no")
  return positive if is_flag(positive) and not is_flag(name) else name


class Invocation(NamedTuple):
  """A command, with all that is needed to identify and to repeat its run.

  Attributes:
    experiment: the binary, such as `train_capsnet`.
    command: the command line, without folders that differ between machines.
    preset: the name of its flagfile; None without one.
    dataset: the name of the data set.
    seed: the seed of parameters, batches and augmentation.
    flags: the value of each flag, as JSON, without `FREE_FLAGS`.
    words: by name, the word `--name=value` of each flag that is set.
    defaults: names of the flags that have their default values.
    is_call: whether the flags are options of a call of a function.
  """

  experiment: str
  command: str = ""
  preset: str | None = None
  dataset: str = ""
  seed: int = 0
  flags: Mapping[str, Any] = {}
  words: Mapping[str, str] = {}
  defaults: frozenset[str] = frozenset()
  is_call: bool = False

  def flag_name(self, word: str) -> str:
    """The flag of the binary that a word sets; see `flag_name`."""
    return flag_name(word, self.knows)

  def option(self, name: str) -> str:
    """How a message names a flag: `--seed`, or `seed` in a call."""
    return name if self.is_call else f"--{name}"

  def knows(self, name: str) -> bool:
    """Whether the binary has a flag of this name."""
    return name in self.flags or name in self.words or name in FREE_FLAGS

  def differences(
    self, recorded: Mapping[str, Any], others: Iterable[str] = ()
  ) -> list[str]:
    """The flags whose values differ from a record, with one phrase for each.

    Args:
      recorded: the value of each flag.
      others: names of flags that, if missing in `recorded`, count as recorded
        at their defaults, since the code had no such flag.
    """
    now = json.loads(json.dumps(dict(self.flags)))
    recorded = {**recorded, **older_flags.missing(recorded)}
    return [
      f"--{name} was {recorded.get(name, 'unset')}, is {now.get(name, 'unset')}"
      for name in sorted({*recorded, *others})
      if recorded.get(name) != now.get(name)
      and (name in recorded or name not in self.defaults)
    ]
