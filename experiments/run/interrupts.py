"""Signals that ask a program to save and stop."""

import signal
import sys
import types


class Interrupted(Exception):
  """What is under way is given up, since the program was asked to stop."""


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

  def check(self, *_: object) -> None:
    """Raises `Interrupted` if a signal came."""
    if self.received is not None:
      raise Interrupted

  def __exit__(self, *_: object) -> None:
    for number, handler in self._old.items():
      signal.signal(number, handler)

  def _note(self, number: int, frame: types.FrameType | None) -> None:
    del frame
    if self.received is not None:
      sys.exit(128 + number)
    self.received = number
