"""Free memory of the host."""

import pytest

from capjax import memory

STAT = "anon 300\ninactive_file 200\nactive_file 50\n"


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
  monkeypatch.setattr(memory, "_CGROUP", tmp_path)

  def write(limit, used=600, stat=STAT):
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    (tmp_path / "memory.stat").write_text(stat)

  return write


def test_what_a_container_uses_is_not_free(cgroup):
  """Cached contents of files are, if they were not used lately."""
  cgroup(1000)
  assert memory.available_on_host() == 1000 - 600 + 200
  cgroup(1000, used=5000)
  assert memory.available_on_host() == 0


@pytest.mark.parametrize(
  ("size", "text"),
  [
    (0, "0 B"), (7, "7 B"), (999, "999 B"), (1000, "1 kB"), (1649, "1.6 kB"),
    (9949, "9.9 kB"), (9950, "10 kB"), (999_499, "999 kB"), (999_500, "1 MB"),
    (2_400_000_000, "2.4 GB"), (10**21, "1000000 PB"),
  ],
)  # fmt: skip
def test_bytes_are_said_to_two_digits_or_more(size, text):
  assert memory.as_text(size) == text


@pytest.mark.parametrize("stat", [STAT, "anon 300\n", "?\n"])
def test_the_machine_is_the_limit_where_a_container_has_none(cgroup, stat):
  cgroup("max", stat=stat)
  assert memory.available_on_host() > 1e6
  if stat != STAT:  # another format of the file
    cgroup(1000, stat=stat)
    assert memory.available_on_host() == 1000


def test_a_machine_without_containers(tmp_path, monkeypatch):
  monkeypatch.setattr(memory, "_CGROUP", tmp_path / "none")
  assert memory.available_on_host() > 1e6
