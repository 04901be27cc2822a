"""The garbage collector, which rests while packages are imported."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
  """Collects no garbage meanwhile, nor later among what was imported.

  JAX and Flax make hundreds of thousands of objects that stay; looking for
  garbage among them takes a sixth of the time of their import, and as long
  again at the first full collection.
  """
  was_enabled = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if was_enabled:
      gc.freeze()
      gc.enable()
