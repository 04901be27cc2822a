"""Sets flags as a command line does."""

import contextlib

from absl import flags
from absl.testing import flagsaver


@contextlib.contextmanager
def given(*words):
  """Sets the flags of a command line until the end of the `with` block."""
  with flagsaver.flagsaver():
    flags.FLAGS(["binary", *words])
    yield
