"""The processes of one training, on one machine or on several.

Each process runs the same program on its own devices. All must make the same
decision wherever it depends on time, signals or files; otherwise they would
wait for each other for ever. Process 0 alone writes files. With one process
nothing here takes any time.
"""

import contextlib
import functools
import hashlib
import itertools
import os
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epy
from jax.experimental import multihost_utils

with epy.lazy_imports():  # it takes seconds, and --help needs none
  import orbax.checkpoint.multihost as orbax_multihost

_SMALL = 1024  # bytes of a message that is sent at once
_SHUTDOWN = 30  # seconds for which a process that ends waits for the others
_PATIENCE = 24 * 3600  # seconds for which the others wait for process 0
_meetings = itertools.count()
_alone = False  # whether process 0 runs something without the others


def initialise(
  coordinator_address: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
) -> None:
  """Connects this process with the others, before any device is used.

  Each argument that is None is found as `jax.distributed.initialize` finds it:
  from Slurm, Open MPI, Kubernetes or a TPU pod.

  Args:
    coordinator_address: `HOST:PORT` of process 0.
    num_processes: the number of processes.
    process_id: the index of this one.

  Raises:
    ValueError: if something is neither given nor found, or the processes cannot
      be connected.
  """
  # SIGTERM is seen by the training loop, as with one process.
  jax.config.update("jax_enable_preemption_service", False)
  try:
    jax.distributed.initialize(
      coordinator_address,
      num_processes,
      process_id,
      shutdown_timeout_seconds=_SHUTDOWN,
    )
  except ValueError as error:
    raise ValueError(
      f"--distributed: {error} Give --coordinator_address=HOST:PORT, "
      "--num_processes and --process_id, or start all processes by Slurm, on "
      "Kubernetes or on a TPU pod, where they are found"
    ) from error
  except RuntimeError as error:
    raise ValueError(
      f"--distributed: the processes cannot be connected ({error}); give all "
      "the same --coordinator_address and --num_processes, start each "
      "--process_id once, and check that the port can be reached"
    ) from error


def count() -> int:
  """The number of processes that work together; 1 within `by_first`."""
  return 1 if _alone else jax.process_count()


def is_first() -> bool:
  """Whether this is process 0, which writes all files."""
  return jax.process_index() == 0


def devices() -> list[jax.Device]:
  """The devices of all processes; within `by_first` those of process 0."""
  return jax.local_devices() if _alone else jax.devices()


def highest(*numbers: int) -> list[int]:
  """The highest of each number (int32) over the processes."""
  if count() == 1:
    return list(numbers)
  gathered = multihost_utils.process_allgather(np.array(numbers, np.int32))
  return gathered.max(axis=0).tolist()


def by_first(
  function: Callable[..., Any], *arguments: Any, **options: Any
) -> Any:
  """Calls a function in process 0 alone; all get its result or its error.

  All processes must call this together. Within the function process 0 is on
  its own: it may use its own devices, not those of others.

  Args:
    function: its result must be one that pickle takes.
    *arguments: of the function.
    **options: of the function.
  """
  call = functools.partial(function, *arguments, **options)
  return _by_first(call, patient=False)


def by_first_patiently(function: Callable[[], Any]) -> Any:
  """As `by_first`, for a function that may take hours: devices do not wait."""
  return _by_first(function, patient=True)


def shared(method: Callable[..., Any]) -> Callable[..., Any]:
  """A decorator: `by_first` calls the method, in process 0 alone."""

  @functools.wraps(method)
  def call(*arguments, **options):
    return by_first(method, *arguments, **options)

  return call


def together(function: Callable[[], Any]) -> Any:
  """Calls a function in each process; where one fails, all do.

  Returns:
    The result in this process.

  Raises:
    ValueError: if it raised a ValueError or an OSError in another process.
  """
  if count() == 1:
    return function()
  result, mine = None, None
  try:
    result = function()
  except (ValueError, OSError) as error:
    mine = error
  texts = _gather(f"{type(mine).__name__}: {mine}" if mine else "")
  if mine is not None:
    raise mine
  for number, text in enumerate(texts):
    if text:
      raise ValueError(f"process {number} ended: {text}")
  return result


def require_same(what: str, value: Any) -> None:
  """Checks that a value is the same in all processes.

  Args:
    what: names the value in the message.
    value: its `repr` is compared.

  Raises:
    ValueError: if it is not; in all processes.
  """
  if count() == 1:
    return
  digests = _gather(hashlib.sha256(repr(value).encode()).hexdigest())
  others = [n for n, digest in enumerate(digests) if digest != digests[0]]
  if others:
    raise ValueError(
      f"process {others[0]} differs from process 0: {what}; give all processes "
      "the same flags and the same files"
    )


@contextlib.contextmanager
def silent_but_first() -> Iterator[None]:
  """Lets process 0 alone print to the standard output."""
  if is_first():
    yield
    return
  with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
    yield


def _by_first(function, *, patient):
  global _alone
  if count() == 1:
    return function()
  outcome, error = None, None
  if is_first():
    _alone = True
    try:
      outcome = function()
    except (Exception, SystemExit) as raised:
      error = raised
    finally:
      _alone = False
  if patient:
    # `jax.distributed` can wait longer than an operation between devices.
    everyone = set(range(jax.process_count()))
    meet = orbax_multihost.get_barrier_sync_fn(processes=everyone)
    meet(key=f"by_first_{next(_meetings)}", timeout_ms=1000 * _PATIENCE)
  sent = _broadcast(_pickled(outcome, error) if is_first() else b"")
  if error is not None:
    raise error
  if is_first():
    return outcome
  outcome, error = pickle.loads(sent)
  if error is not None:
    raise error
  return outcome


def _pickled(outcome: Any, error: BaseException | None) -> bytes:
  try:
    return pickle.dumps((outcome, error))
  except Exception:
    if error is None:
      raise
    logging.debug("sent as text", exc_info=True)
    return pickle.dumps((None, RuntimeError(f"process 0: {error}")))


def _broadcast(message: bytes) -> bytes:
  """The message of process 0, in every process."""
  length = len(message).to_bytes(8, "little")
  start = _sent(length + message[: _SMALL - 8], _SMALL)
  total = int.from_bytes(start[:8], "little")
  if total <= _SMALL - 8:
    return start[8 : 8 + total]
  # A power of 2, so that few sizes are compiled.
  return _sent(message, 1 << (total - 1).bit_length())[:total]


def _sent(message: bytes, size: int) -> bytes:
  buffer = np.zeros(size, np.uint8)
  buffer[: len(message)] = np.frombuffer(message, np.uint8)
  return multihost_utils.broadcast_one_to_all(buffer).tobytes()


def _gather(text: str) -> list[str]:
  """The texts of all processes, cut to 1 KiB."""
  buffer = np.zeros(_SMALL, np.uint8)
  words = text.encode()[:_SMALL]
  buffer[: len(words)] = np.frombuffer(words, np.uint8)
  rows = multihost_utils.process_allgather(buffer)
  return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in rows]
