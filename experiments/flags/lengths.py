"""The flags whose meaning depends on the length of training."""

from collections.abc import Callable
from typing import Any

from absl import flags

# By name, `value -> whether what the flag sets depends on --num_steps`.
_SCALED: dict[str, Callable[[Any], bool]] = {
  "schedule": lambda value: value == "cosine",
  "final_rate_fraction": lambda value: value is not None,
  "decay_steps": lambda value: (
    value is None
    and not _is("schedule", "cosine")
    and _is("final_rate_fraction", None)
  ),
  "final_temperature": lambda value: value is not None,
  "margin_steps": lambda value: (
    value is None and _is("loss", "spread") and not _is("model", "baseline")
  ),
}


def _is(name: str, value: str | None) -> bool:
  """Whether this command has a flag with this value."""
  return name in flags.FLAGS and flags.FLAGS[name].value == value


def depending() -> list[str]:
  """The flags of this command whose effect depends on --num_steps."""
  given = flags.FLAGS
  return [
    f"--{name} by default" if given[name].value is None
    else f"--{name}={given[name].value}"
    for name, is_scaled in _SCALED.items()
    if name in given and is_scaled(given[name].value)
  ]  # fmt: skip
