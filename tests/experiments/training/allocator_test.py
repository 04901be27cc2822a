"""What is asked of glibc's allocator, and where nothing is."""

import ctypes
import sys

import jax
import pytest

from experiments.training import allocator

needs_glibc = pytest.mark.skipif(
  not allocator._uses_glibc(), reason="the C library is not glibc"
)


def resident():
  """Bytes of this process in memory."""
  with open("/proc/self/statm") as file:
    return int(file.read().split()[1]) * 4096


@pytest.fixture
def pages(tmp_path, monkeypatch):
  """A file that says when Linux gives huge pages: on request."""
  path = tmp_path / "enabled"
  path.write_text("always [madvise] never\n")
  monkeypatch.setattr(allocator, "_HUGE_PAGES", path)
  monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
  monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
  return path


@needs_glibc
def test_trim_returns_freed_memory():
  c_library = ctypes.CDLL(None)
  c_library.malloc.restype = ctypes.c_void_p
  blocks = [c_library.malloc(2**16) for _ in range(1600)]
  for block in blocks:
    ctypes.memset(block, 1, 2**16)
  *freed, last = blocks  # the last keeps the heap from shrinking by itself
  for block in freed:
    c_library.free(ctypes.c_void_p(block))
  before = resident()
  allocator.trim()
  after = resident()
  c_library.free(ctypes.c_void_p(last))
  assert before - after > 8e7, (before, after)


@needs_glibc
def test_advice_names_the_variable(pages):
  del pages
  (line,) = allocator.advice()
  assert "GLIBC_TUNABLES=glibc.malloc.hugetlb=1" in line


@pytest.mark.parametrize("mode", ["[always] madvise never", "[never]", None])
def test_no_advice_where_pages_are_not_given_on_request(pages, mode):
  pages.unlink()
  if mode:
    pages.write_text(mode)
  assert allocator.advice() == []


@pytest.mark.parametrize(
  "value", ["glibc.malloc.hugetlb=0", "a=1:glibc.malloc.hugetlb=1"]
)
def test_no_advice_where_the_variable_is_set(pages, monkeypatch, value):
  del pages
  monkeypatch.setenv("GLIBC_TUNABLES", value)
  assert allocator.advice() == []


@pytest.mark.parametrize(
  ("mode", "value", "asks", "has"),
  [
    ("madvise", "glibc.malloc.hugetlb=1", True, True),
    ("madvise", "glibc.malloc.hugetlb=0", False, False),
    ("madvise", "", False, False),
    ("always", "", False, True),
    ("never", "glibc.malloc.hugetlb=1", False, False),
  ],
)
def test_huge_pages_follow_system_and_environment(
  pages, monkeypatch, mode, value, asks, has
):
  names = ("always", "madvise", "never")
  pages.write_text(" ".join(f"[{x}]" if x == mode else x for x in names))
  monkeypatch.setenv("GLIBC_TUNABLES", value)
  assert allocator.asks_for_huge_pages() == asks
  assert allocator.has_huge_pages() == has


def test_no_advice_on_accelerators(pages, monkeypatch):
  del pages
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  assert allocator.advice() == []


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_nothing_is_done_without_glibc(pages, monkeypatch, platform):
  del pages
  monkeypatch.setattr(sys, "platform", platform)
  monkeypatch.setattr(ctypes, "CDLL", None)  # would fail
  allocator.trim()
  assert allocator.advice() == []
