"""Messages about the progress of a long computation."""

import time

_EVERY = 10.0  # seconds


class Progress:
  """Prints the progress of a computation, every ten seconds at most."""

  def __init__(self, what: str = "measured", unit: str = "examples"):
    self._what, self._unit = what, unit
    self._last = time.monotonic()

  def __call__(self, done: int, total: int) -> None:
    """Prints that `done` of `total` are done, if ten seconds have passed."""
    now = time.monotonic()
    if now - self._last < _EVERY:
      return
    self._last = now
    print(f"{self._what} {done:,} of {total:,} {self._unit} so far", flush=True)
