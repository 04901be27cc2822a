"""The memory of a device, and arrays that do not fit it."""

import math
import os
import pathlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp

_CGROUP = pathlib.Path("/sys/fs/cgroup")  # limits of a container


def available() -> int | None:
  """Free bytes of the first device; None where that is unknown."""
  device = jax.local_devices()[0]
  stats = device.memory_stats()
  if stats and "bytes_limit" in stats:
    return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
  return available_on_host() if device.platform == "cpu" else None


def require(
  name: str,
  shape: Sequence[int],
  *,
  remedy: str,
  dtype: jax.typing.DTypeLike = jnp.float32,
  on_host: bool = False,
) -> None:
  """Checks that an array fits the memory in which it is about to be made.

  Args:
    name: of the array.
    shape: its shape.
    remedy: what to give instead, for the message.
    dtype: its dtype.
    on_host: whether that is the memory of the host, not of the first device.

  Raises:
    ValueError: if the array takes more memory than there is.
  """
  size = math.prod(shape) * jnp.dtype(dtype).itemsize
  free = available_on_host() if on_host else available()
  if free is not None and size > free:
    owner = "the host" if on_host else jax.devices()[0].device_kind
    raise ValueError(
      f"{name} of [{' '.join(map(str, shape))}] take {as_text(size)} of "
      f"memory, but {owner} has {as_text(free)} available; give {remedy}."
    )


def shortage(size: int) -> str:
  """Says why arrays of this size do not fit on the host and on each device.

  A quarter of the free memory is reserved for training itself. On CPUs both
  copies are in the memory of the host.

  Args:
    size: of all arrays together, in bytes.

  Returns:
    A phrase that names the bytes; empty where there is enough, or unknown.
  """
  device, copies = jax.devices()[0], 1
  places = [(device.device_kind, available())]
  if device.platform == "cpu":
    copies = 2
  else:
    places.append(("the host", available_on_host()))
  for name, free in places:
    if free is not None and 4 * copies * size > 3 * free:
      return f"{as_text(size)}, and {name} has {as_text(free)} available"
  return ""


def as_text(size: int) -> str:
  """Formats a number of bytes to two digits or more, such as "1.5 GB".

  Args:
    size: bytes, >= 0.
  """
  units = ("B", "kB", "MB", "GB", "TB", "PB")
  # A size that rounds to 1000 of a unit is shown as 1 of the next unit.
  power = min(len(units) - 1, int(math.log10(max(size, 1) / 0.9995)) // 3)
  number = size / 1000**power
  text = f"{number:.1f}" if number < 9.95 else f"{number:.0f}"
  return f"{text.removesuffix('.0')} {units[power]}"


def available_on_host() -> int | None:
  """Free bytes of the host, on Linux; elsewhere all of its memory."""
  free = None
  try:
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    fields = dict(line.split(":") for line in lines)
    free = 1024 * int(fields["MemAvailable"].split()[0])
    return min(free, _free_in_container())
  except (OSError, KeyError, ValueError):
    pass
  try:
    return free or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  except (AttributeError, OSError, ValueError):
    return None


def _free_in_container() -> int:
  """Bytes up to the memory limit of a container (version 2 of cgroups).

  Cached contents of files that were not used lately count as free, since Linux
  drops them when needed. If the use is unknown, all of the limit is free.

  Raises:
    OSError: if there is no container, or it has no limit.
    ValueError: if the file of the limit has another format.
  """
  limit = (_CGROUP / "memory.max").read_text().strip()
  if limit == "max":
    raise OSError("no limit")
  try:
    used = int((_CGROUP / "memory.current").read_text())
    lines = (_CGROUP / "memory.stat").read_text().splitlines()
    cached = int(dict(line.split() for line in lines)["inactive_file"])
  except (OSError, KeyError, ValueError):
    return int(limit)
  return max(0, int(limit) - used + cached)
