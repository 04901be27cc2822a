"""Flags as a command line sets them."""

import contextlib

from absl import flags
from absl.testing import flagsaver


@contextlib.contextmanager
def given(*words):
  """The flags of a command line, until the end of the block."""
  with flagsaver.flagsaver():
    flags.FLAGS(["binary", *words])
    yield
