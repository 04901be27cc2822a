"""The garbage collector, which rests while packages are imported."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
  """Collects no garbage meanwhile.

  JAX and Flax make hundreds of thousands of objects that stay; looking for
  garbage among them takes a sixth of the time of their import.
  """
  was_enabled = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if was_enabled:
      gc.enable()
