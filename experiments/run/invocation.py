"""The command that a run is made by, apart from the machine it runs on."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from experiments.run import older_flags

# Flags that say where and how fast, not what is computed.
FREE_FLAGS = frozenset(
  {"workdir", "data_dir", "compilation_cache", "checkpoint_minutes"}
)


class Invocation(NamedTuple):
  """A command, as far as it takes to tell its run and to repeat it.

  Attributes:
    experiment: the binary, such as `train_capsnet`.
    command: the command line, without folders that differ between machines.
    preset: the name of its flagfile; None without one.
    dataset: its name.
    seed: of parameters, batches and augmentation.
    flags: the value of each flag, JSON's kinds, without `FREE_FLAGS`.
    words: the word that sets a flag, `--name=value`, of each that is set.
    defaults: names of the flags that are at their defaults.
  """

  experiment: str
  command: str = ""
  preset: str | None = None
  dataset: str = ""
  seed: int = 0
  flags: Mapping[str, Any] = {}
  words: Mapping[str, str] = {}
  defaults: frozenset[str] = frozenset()

  def flag_name(self, word: str) -> str:
    """The flag that a word of a command line sets: `seed` of `--seed=1`.

    `--noNAME` names the boolean flag NAME.
    """
    name = word.lstrip("-").partition("=")[0]
    positive = name.removeprefix("no")
    known = self.knows(positive) and not self.knows(name)
    return positive if known else name

  def knows(self, name: str) -> bool:
    """Whether the binary has a flag."""
    return name in self.flags or name in self.words or name in FREE_FLAGS

  def differences(
    self, recorded: Mapping[str, Any], others: Iterable[str] = ()
  ) -> list[str]:
    """The flags whose values are not those of a record, one phrase each.

    Args:
      recorded: the value of each flag.
      others: names of flags that count as recorded at their defaults where
        `recorded` does not hold them, since the code had none of that name.
    """
    now = json.loads(json.dumps(dict(self.flags)))
    recorded = {**recorded, **older_flags.missing(recorded)}
    return [
      f"--{name} was {recorded.get(name, 'unset')}, is {now.get(name, 'unset')}"
      for name in sorted({*recorded, *others})
      if recorded.get(name) != now.get(name)
      and (name in recorded or name not in self.defaults)
    ]
