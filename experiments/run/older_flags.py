"""The behaviour of the code before it had a flag.

Records and runs can be older than a flag. Where the flag's default differs from
the former behaviour, this table has the value for the former behaviour. Readers
of records and of runs' folders add the flags that are `missing`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class _Before(NamedTuple):
  """The flag's value for the former behaviour, and the runs that it is for."""

  value: Any
  applies: Callable[[Mapping[str, Any]], bool]


_BEFORE = {
  # The primary capsules of CapsNet did not have the factor 1 / num_types.
  "primary_scale": _Before(1.0, lambda flags: flags.get("model") == "capsnet"),
  # Sparsity of constellations had a gradient.
  "sparsity": _Before(
    "soft", lambda flags: flags.get("dataset") == "constellations"
  ),
}


def missing(flags: Mapping[str, Any]) -> dict[str, Any]:
  """The flags of the table that are newer than a run, with their values.

  Args:
    flags: all flags of the run, by name, including unset ones.
  """
  return {
    name: before.value
    for name, before in _BEFORE.items()
    if name not in flags and before.applies(flags)
  }


def words(flags: Mapping[str, Any]) -> list[str]:
  """The missing flags as words of a command line."""
  return [f"--{name}={value}" for name, value in missing(flags).items()]
