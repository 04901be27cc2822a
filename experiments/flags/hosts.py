"""Flags of training in several processes, on one machine or on many."""

from absl import flags

from ..run import processes

_DISTRIBUTED = flags.DEFINE_bool(
  "distributed",
  False,
  "Train together with other processes, each on its own devices; all get the "
  "same flags and the same folder. Under Slurm, Open MPI and Kubernetes and on "
  "TPU pods the three flags below are found.",
)
_COORDINATOR = flags.DEFINE_string(
  "coordinator_address", None, "HOST:PORT of process 0, for --distributed."
)
_NUM_PROCESSES = flags.DEFINE_integer(
  "num_processes", None, "Number of processes, for --distributed.",
  lower_bound=1,
)  # fmt: skip
_PROCESS_ID = flags.DEFINE_integer(
  "process_id", None, "Index of this process from 0 on, for --distributed.",
  lower_bound=0,
)  # fmt: skip


def initialise() -> None:
  """Connects this process with the others, if --distributed says so.

  Call it before any device is used.

  Raises:
    ValueError: if the flags do not fit together, or the processes cannot be
      connected.
  """
  address = _COORDINATOR.value
  number, total = _PROCESS_ID.value, _NUM_PROCESSES.value
  if not _DISTRIBUTED.value:
    given = [x.name for x in (_COORDINATOR, _NUM_PROCESSES, _PROCESS_ID)
             if x.value is not None]  # fmt: skip
    if given:
      raise ValueError(f"--{', --'.join(given)} needs --distributed; add it")
    return
  if address is not None and not address.rpartition(":")[2].isdecimal():
    raise ValueError(
      f"--coordinator_address={address} names no port; give HOST:PORT"
    )
  if None not in (number, total) and number >= total:
    raise ValueError(
      f"--process_id={number} of {total} processes; give 0 to {total - 1}"
    )
  processes.initialise(address, total, number)
