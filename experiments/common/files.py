"""Files that are whole or absent, and locks on them."""

import json
import pathlib
from typing import IO, Any

from absl import logging

try:
  import fcntl
except ImportError:  # a system without such locks
  fcntl = None


def locked(path: pathlib.Path) -> IO[str]:
  """Opens a file that nobody else can open so until it is closed."""
  file = path.open("a")
  if fcntl is None:
    return file
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    raise ValueError(
      f"another process trains in {path.parent}; wait for it or give another "
      "--workdir"
    ) from None
  except OSError as error:  # some network file systems have no locks
    logging.warning("cannot lock %s (%s); train there once only", path, error)
  return file


def read_json(path: pathlib.Path) -> Any:
  """Reads a file, or raises a ValueError that says what to do."""
  try:
    return json.loads(path.read_text())
  except json.JSONDecodeError as error:
    raise ValueError(
      f"{path} is damaged ({error}); remove it and run the command again"
    ) from error


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes a file whole or not at all."""
  write_whole(path, json.dumps(value, indent=2) + "\n")


def write_whole(path: pathlib.Path, text: str) -> None:
  """Writes a file so that a crash leaves the old one or the new one."""
  partial = path.with_name(path.name + ".partial")
  partial.write_text(text)
  partial.replace(path)
