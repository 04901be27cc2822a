"""How a record differs from the one that a run was started with."""

from collections.abc import Mapping
from typing import Any

_LONGEST = 60  # characters of a value that is shown
_DIGEST = 64  # characters of a SHA-256


def between(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
  """One phrase for each value that differs, such as `num_types was 4, is 2`.

  Values of records within the records are compared one by one; a fingerprint
  is only said to differ. What the old record lacks is newer than it, and not
  compared.

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
    elif isinstance(now, str) and len(now) == _DIGEST:
      told.append(f"the {name} images or labels differ")
    else:
      told.append(f"{name} was {_short(before)}, is {_short(now)}")
  return told


def _short(value: Any) -> str:
  text = str(value)
  return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
