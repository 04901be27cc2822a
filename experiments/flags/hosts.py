"""Flags of training on several devices of a CPU, and in several processes."""

import os

import jax
from absl import flags

from ..run import processes
from ..training import placing

CPU_DEVICES = flags.DEFINE_integer(
  "cpu_devices",
  1,
  "Devices that the cores of a CPU are divided into, where no accelerator is "
  "used; they share each batch. 0 makes one for each core, 8 at the most, or "
  "fewer where they would not divide the batch; with --distributed, one. More "
  "devices are faster if single operations of the model are too small to be "
  "divided among the cores.",
  lower_bound=0,
)

_DISTRIBUTED = flags.DEFINE_bool(
  "distributed",
  False,
  "Train together with other processes, each on its own devices; all get the "
  "same flags and the same folder. Under Slurm, Open MPI and Kubernetes and on "
  "TPU pods the values of the three flags below are found automatically.",
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


def divide_cpu(batch_size: int) -> None:
  """Divides the cores of the CPU into devices, as --cpu_devices says.

  Call it before any device is used. A variable of the environment that sets the
  number of devices is kept.

  Args:
    batch_size: number of examples that the devices share at a time.

  Raises:
    ValueError: if there is such a variable, and the flag gives a number too.
  """
  count, variable = CPU_DEVICES.value, _variable_of_devices()
  if variable:
    if CPU_DEVICES.present and count:
      raise ValueError(
        f"--cpu_devices={count}, and {variable} sets the number of devices "
        "too; leave one of them out"
      )
    return
  if count == 0:
    # Processes that work together on one machine have divided it already.
    count = 1 if _DISTRIBUTED.value else placing.cpu_devices_for(batch_size)
  if count > 1:
    jax.config.update("jax_num_cpu_devices", count)


def _variable_of_devices() -> str | None:
  """The variable of the environment that sets a CPU's devices; None if none."""
  options = os.environ.get("XLA_FLAGS", "")
  if "xla_force_host_platform_device_count" in options:
    return "XLA_FLAGS"
  name = "JAX_NUM_CPU_DEVICES"
  return name if name in os.environ else None


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
