"""How a record differs from the one that a run was started with."""

from collections.abc import Mapping
from typing import Any

_LONGEST = 60  # characters of a value that is shown
_SETS = ("train", "test")  # whose fingerprints are recorded


def between(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
  """One phrase for each value that differs, such as `num_types was 4, is 2`.

  Nested records are compared value by value; a value that one of them lacks is
  shown as unset. A value that the old record itself lacks is newer than the
  record, and is not compared. For fingerprints the phrase says only that they
  differ.

  Args:
    old: the record of the run.
    new: the record to compare it with.
  """
  told = []
  for name, now in new.items():
    before = old.get(name, now)
    if before == now:
      continue
    if isinstance(before, Mapping) and isinstance(now, Mapping):
      missing = dict.fromkeys([*before, *now], "unset")
      told += between({**missing, **before}, {**missing, **now})
    elif name in _SETS:
      told.append(f"the {name} images or labels differ")
    elif isinstance(before, list) and isinstance(now, list):
      told.append(_of_lists(name, before, now))
    else:
      told.append(f"{name} was {_short(before)}, is {_short(now)}")
  return told


def _of_lists(name: str, before: list[Any], now: list[Any]) -> str:
  """The first entry that differs, or the numbers of entries."""
  if len(before) != len(now):
    return f"{name} had {len(before)} entries, has {len(now)}"
  number = next(n for n, x in enumerate(before) if x != now[n])
  one, other = _short(before[number]), _short(now[number])
  return f"{name}[{number}] was {one}, is {other}"


def _short(value: Any) -> str:
  text = str(value)
  return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
