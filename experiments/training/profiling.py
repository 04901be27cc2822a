"""A trace of a few updates, for Perfetto or TensorBoard."""

import pathlib
from collections.abc import Callable

import jax


class Trace:
  """One trace of a number of updates, which may take several calls.

  As a context manager, it also ends the trace after an error or a signal.
  """

  def __init__(
    self, folder: pathlib.Path, num_steps: int, say: Callable[[str], None]
  ):
    """Prepares a trace.

    Args:
      folder: where it is written.
      num_steps: number of updates; 0 for no trace.
      say: prints a line.
    """
    self._folder, self._num_steps, self._say = folder, num_steps, say
    self._left, self._is_running = num_steps, False

  def __enter__(self) -> "Trace":
    return self

  def __exit__(self, *_: object) -> None:
    if self._is_running:
      self._stop()

  def begin(self, count: int) -> int:
    """Starts the trace, if there is one to start, before a call.

    Args:
      count: number of updates that the call would do.

    Returns:
      How many of them it may do, so that the trace ends with it.
    """
    if not self._left:
      return count
    if not self._is_running:
      jax.profiler.start_trace(str(self._folder), create_perfetto_trace=True)
      self._is_running = True
    return min(count, self._left)

  def end(self, count: int) -> None:
    """Ends the trace, if these updates were its last."""
    if self._is_running:
      self._left -= count
      if not self._left:
        self._stop()

  def _stop(self) -> None:
    jax.profiler.stop_trace()
    self._is_running = False
    done = self._num_steps - self._left
    self._left = 0
    self._say(f"trace of {done} updates in {self._folder}")
