"""Files that are whole or absent after a crash, and locks on files."""

import contextlib
import errno
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import filelock
from absl import logging

from capjax import weights

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def locked(path: pathlib.Path) -> filelock.FileLock:
  """Locks a file: no other process can lock it while the result exists.

  Raises:
    ValueError: if another process holds it.
  """
  lock = filelock.FileLock(path, timeout=0)
  try:
    lock.acquire()
  except filelock.Timeout:
    raise ValueError(
      f"another process trains in {path.parent}; wait for it or give another "
      "workdir"
    ) from None
  except (OSError, NotImplementedError) as error:
    # Some network file systems have no locks.
    logging.warning(
      "cannot lock %s (%s); train there in one process only", path, error
    )
  return lock


@contextlib.contextmanager
def turn(path: pathlib.Path) -> Iterator[None]:
  """Waits while another process has locked a file, then locks it.

  Without effect on file systems that have no locks.
  """
  lock = filelock.FileLock(path)
  try:
    lock.acquire()
  except (OSError, NotImplementedError) as error:
    logging.warning(
      "cannot lock %s (%s); write there in one process only", path, error
    )
  try:
    yield
  finally:
    lock.release()


def first_line(error: BaseException) -> str:
  """The first line of an error's message; its type if there is no message."""
  return (str(error).strip() or type(error).__name__).partition("\n")[0]


def not_written(path: str | pathlib.Path, error: BaseException) -> OSError:
  """An OSError that says which file was not written, and why."""
  if is_full(error):
    return OSError(
      f"no space left to write {path}; free some space and repeat the same "
      "command; a training resumes from its last saved state"
    )
  return OSError(f"cannot write {path}: {first_line(error)}")


def require_space(folder: pathlib.Path, size: int) -> None:
  """Raises an OSError if a folder's file system has fewer free bytes."""
  if not hasattr(os, "posix_fallocate"):
    return
  path = folder / "space"
  try:
    with path.open("wb") as file:
      os.posix_fallocate(file.fileno(), 0, size)
  finally:
    path.unlink(missing_ok=True)


def is_full(error: BaseException) -> bool:
  """Whether an error means that a disk, a quota or a size limit is full."""
  number = getattr(error, "errno", None)
  words = map(os.strerror, _FULL)
  return number in _FULL or any(word in str(error) for word in words)


def read_json(
  path: pathlib.Path,
  *,
  names: Sequence[str] = (),
  remedy: str = "put an intact one back",
) -> dict[str, Any]:
  """Reads a JSON object from a file.

  Args:
    path: the file.
    names: keys that the object must have.
    remedy: for the error message, what to do about a damaged file.

  Raises:
    ValueError: if the file is missing or holds no such object; it names the
      file, the fault and the remedy.
  """
  try:
    value = json.loads(path.read_bytes())
    missing = [name for name in names if name not in value]
    fault = f"it has no {missing[0]}" if missing else None
    fault = fault if isinstance(value, dict) else "it is no object"
  except FileNotFoundError:
    raise ValueError(f"{path} is missing; {remedy}") from None
  except (ValueError, TypeError) as error:
    fault = first_line(error)
  if fault:
    raise ValueError(f"{path} is damaged ({fault}); {remedy}")
  return value


def read_json_lines(
  path: pathlib.Path, is_valid: Callable[[Any], bool]
) -> tuple[list[Any], list[int]]:
  """Reads a file with one JSON value on each line.

  Args:
    path: the file, which may be missing.
    is_valid: `value -> bool`, whether a value can be one of the file's.

  Returns:
    The valid values, and the numbers of the other lines. A last line without an
    end was cut off while it was being written, and is ignored.
  """
  if not path.exists():
    return [], []
  values, damaged = [], []
  *lines, _ = path.read_bytes().split(b"\n")
  for number, line in enumerate(lines, 1):
    try:
      value = json.loads(line)
    except ValueError:
      value = None
    if is_valid(value):
      values.append(value)
    else:
      damaged.append(number)
  return values, damaged


def put_aside(path: pathlib.Path) -> pathlib.Path:
  """Renames a damaged file to keep it for inspection; returns its new path."""
  aside = path.with_name(path.name + ".damaged")
  path.replace(aside)
  return aside


def warn_and_put_aside(path: pathlib.Path) -> None:
  """Renames a damaged file that will be written again, with a warning."""
  if path.exists():
    logging.warning(
      "%s is damaged: a new one is written; the damaged one is kept as %s",
      path,
      put_aside(path).name,
    )
  else:
    logging.warning("%s is missing: it is written again", path)


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes a JSON file completely or not at all."""
  write_whole(path, json.dumps(value, indent=2) + "\n")


def write_whole(path: pathlib.Path, content: str | bytes) -> None:
  """Writes a file so that a crash leaves the old one or the new one.

  Raises:
    OSError: if it cannot be written; the old one is still there.
  """
  if isinstance(content, str):
    content = content.encode()
  try:
    weights.replace(path, content)
  except OSError as error:
    raise not_written(path, error) from error


def append(path: pathlib.Path, line: str) -> None:
  """Adds a line to a file.

  Raises:
    OSError: if it cannot be written.
  """
  try:
    with path.open("a") as file:
      file.write(line + "\n")
  except OSError as error:
    raise not_written(path, error) from error
