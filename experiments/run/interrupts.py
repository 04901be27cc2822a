"""Signals that ask a program to save and stop."""

import signal
import sys
import threading
import types

from . import processes


class Interrupted(Exception):
  """Raised to stop the current work after a signal to end the program."""


class Interrupts:
  """Turns SIGTERM and Ctrl-C into a request to save and stop.

  A signal to one of several processes stops all, at the same step. A second
  signal ends the program at once. Python delivers signals to the main thread
  only: in another thread this class receives none.

  Attributes:
    received: the signal that all processes know of; None without one.
  """

  def __init__(self):
    self.received: int | None = None
    self._noted = 0

  def __enter__(self) -> "Interrupts":
    is_main = threading.current_thread() is threading.main_thread()
    self._old = {
      number: signal.signal(number, self._note)
      for number in (signal.SIGTERM, signal.SIGINT)
      if is_main
    }
    return self

  def share(self, *numbers: int) -> list[int]:
    """Tells all processes of a signal; all must call this together.

    Args:
      *numbers: other numbers to share in the same call.

    Returns:
      The highest of each number over the processes.
    """
    received, *numbers = processes.highest(self._noted, *numbers)
    self.received = received or None
    return numbers

  def stop(self) -> None:
    """Raises `Interrupted` if all processes know of a signal."""
    if self.received is not None:
      raise Interrupted

  def check(self, *_: object) -> None:
    """Raises `Interrupted` if a signal came; all must call this together."""
    self.share()
    self.stop()

  def __exit__(self, *_: object) -> None:
    for number, handler in self._old.items():
      signal.signal(number, handler)

  def _note(self, number: int, frame: types.FrameType | None) -> None:
    del frame
    if self._noted:
      sys.exit(128 + number)
    self._noted = number
