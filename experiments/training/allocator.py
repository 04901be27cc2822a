"""The allocator of glibc, which serves JAX on CPUs."""

import ctypes
import os
import pathlib
import sys

import jax

_TUNABLE = "glibc.malloc.hugetlb"
_HUGE_PAGES = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")


def trim() -> None:
  """Returns freed memory to the system; without glibc, does nothing.

  XLA frees about a quarter of a GB once it has compiled the update of a
  CapsNet. The allocator would keep it.
  """
  if _uses_glibc():
    ctypes.CDLL(None).malloc_trim(0)


def has_huge_pages() -> bool:
  """Whether large arrays of this process are in pages of 2 MB on a CPU."""
  return _mode() == "always" or asks_for_huge_pages()


def asks_for_huge_pages() -> bool:
  """Whether large arrays are in pages of 2 MB because GLIBC_TUNABLES asks."""
  return _mode() == "madvise" and _requested() == "1"


def advice() -> list[str]:
  """A hint on huge pages, if updates would be faster with them; else empty.

  Each call on a CPU allocates its temporary memory anew. With pages of 4 kB
  this takes up to a third of the time of a call. Linux gives pages of 2 MB to a
  program that asks for them. glibc asks only if a variable of the environment
  says so when the program starts.
  """
  if _mode() != "madvise" or _requested() or not _uses_glibc():
    return []
  if jax.default_backend() != "cpu":
    return []
  return [
    f"hint: with GLIBC_TUNABLES={_TUNABLE}=1 in the environment, updates of "
    "large models on this CPU are faster (docs/how_to/cpus.md)"
  ]


def _mode() -> str:
  """When Linux gives huge pages: `always`, `madvise` (on request), `never`."""
  try:
    words = _HUGE_PAGES.read_text().split()
  except OSError:
    return "never"
  return next((x.strip("[]") for x in words if x.startswith("[")), "never")


def _requested() -> str:
  """The value of glibc's tunable in the environment; empty if it is not set."""
  pairs = os.environ.get("GLIBC_TUNABLES", "").split(":")
  return dict(x.partition("=")[::2] for x in pairs).get(_TUNABLE, "")


def _uses_glibc() -> bool:
  if sys.platform != "linux":
    return False
  try:
    return "glibc" in (os.confstr("CS_GNU_LIBC_VERSION") or "")
  except ValueError:
    return False  # Another C library does not know the name.
