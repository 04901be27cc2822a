"""What the code did before it had a flag.

Records and runs can be older than a flag. Where its default is not what was
done before, this table says what was; whatever reads the flags of a record or
of a run's folder adds what is `missing`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class _Before(NamedTuple):
  """The value that says what was done, and of which runs."""

  value: Any
  applies: Callable[[Mapping[str, Any]], bool]


_BEFORE = {
  # The primary capsules of CapsNet were made without the factor 1 / num_types.
  "primary_scale": _Before(1.0, lambda flags: flags.get("model") == "capsnet"),
  # Sparsity of constellations had a gradient.
  "sparsity": _Before(
    "soft", lambda flags: flags.get("dataset") == "constellations"
  ),
}


def missing(flags: Mapping[str, Any]) -> dict[str, Any]:
  """The flags of the table that a run did not have, and what it did.

  Args:
    flags: all that the run had, by name, those that were unset too.
  """
  return {
    name: before.value
    for name, before in _BEFORE.items()
    if name not in flags and before.applies(flags)
  }


def words(flags: Mapping[str, Any]) -> list[str]:
  """The same, as words of a command line."""
  return [f"--{name}={value}" for name, value in missing(flags).items()]
