"""What is printed while something long is under way."""

import time

_EVERY = 10.0  # seconds


class Progress:
  """Prints how far something is, every ten seconds at most."""

  def __init__(self, what: str = "measured", unit: str = "examples"):
    self._what, self._unit = what, unit
    self._last = time.monotonic()

  def __call__(self, done: int, total: int) -> None:
    """Notes that `done` of `total` are done, and prints it if it is time."""
    now = time.monotonic()
    if now - self._last < _EVERY:
      return
    self._last = now
    print(f"{self._what} {done:,} of {total:,} {self._unit}", flush=True)
