"""Pauses the garbage collector while packages are imported."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
  """Pauses garbage collection; later collections skip the imported objects.

  JAX and Flax make hundreds of thousands of permanent objects. Searching them
  for garbage takes a sixth of the time of their import, and as long again at
  the first full collection.
  """
  was_enabled = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if was_enabled:
      gc.freeze()
      gc.enable()
