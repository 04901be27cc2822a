"""Files that are whole or absent, and locks on them."""

import errno
import json
import os
import pathlib
from typing import IO, Any

from absl import logging

try:
  import fcntl
except ImportError:  # a system without such locks
  fcntl = None

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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


def first_line(error: BaseException) -> str:
  """The first line of what an error says; its kind where it says nothing."""
  return (str(error).strip() or type(error).__name__).partition("\n")[0]


def not_written(path: pathlib.Path, error: BaseException) -> OSError:
  """An error that says in one sentence which file was not written, and why."""
  if is_full(error):
    return OSError(
      f"no space left to write {path}; free some and give the same command "
      "again: what was saved before is kept, and it resumes from there"
    )
  return OSError(f"cannot write {path}: {first_line(error)}")


def require_space(folder: pathlib.Path, size: int) -> None:
  """Raises an OSError where so many bytes do not fit into a folder."""
  if not hasattr(os, "posix_fallocate"):
    return
  path = folder / "space"
  try:
    with path.open("wb") as file:
      os.posix_fallocate(file.fileno(), 0, size)
  finally:
    path.unlink(missing_ok=True)


def is_full(error: BaseException) -> bool:
  """Whether a file system, a quota or a limit refused to take more."""
  number = getattr(error, "errno", None)
  words = map(os.strerror, _FULL)
  return number in _FULL or any(word in str(error) for word in words)


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
