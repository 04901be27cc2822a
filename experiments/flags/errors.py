"""Errors in the user's input, as sentences without a traceback."""

import contextlib
import signal
import sys
from collections.abc import Iterator

from absl import flags, logging

from ..run import atomic_files
from ..training import windows


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
  """Ends the program with the message of an error in the user's input.

  `--verbosity=1` shows where it was raised.
  """
  try:
    yield
  except (ValueError, OSError, windows.Diverged, flags.Error) as error:
    logging.debug("the error was raised here", exc_info=True)
    if atomic_files.is_full(error):
      path = getattr(
        error, "filename", None
      ) or flags.FLAGS.flag_values_dict().get("workdir")
      error = atomic_files.not_written(path, error)
    sys.exit(f"{type(error).__name__}: {error}")
  except KeyboardInterrupt:
    sys.exit(128 + signal.SIGINT)
