"""Signals that ask a program to save and stop."""

import signal
import sys
import types


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
