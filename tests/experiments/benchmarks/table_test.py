"""The table of all benchmarks."""

import json

import jax
import pytest
from absl import flags
from absl.testing import flagsaver

from experiments.benchmarks import capsnet, rows, table

_MACHINES = [
  rows.Machine("cpu", "Python 3.11.1, jax 0.1", 4e11, 5e10),
  rows.Machine("cpu", "Python 3.11.1, jax 0.1", 5e11, 5e10),
]
_ROWS = [
  rows.Row("a step", "batch 2", 0.2, 0.5, 0.05, 0.1),
  rows.Row(
    "a step", "batch 128", 0.012345, compile_seconds=2.34, peak_bytes=5 * 10**8
  ),
]


@pytest.fixture
def path(tmp_path):
  """A file with these results, as benchmarks write them."""
  path = tmp_path / "bench.jsonl"
  with flagsaver.flagsaver():
    flags.FLAGS(["binary", f"--json={path}"])
    for result in (*_MACHINES, *_ROWS):
      rows.note(result)
  return path


def test_results_are_read_as_they_were_written(path):
  assert rows.read(path) == (_MACHINES, _ROWS)


def test_times_that_were_not_taken_are_none(tmp_path):
  path = tmp_path / "bench.jsonl"
  with flagsaver.flagsaver():
    flags.FLAGS(["binary", f"--json={path}"])
    rows.note(rows.Row("a step", "batch 1", 1.0, float("nan")))
  assert rows.read(path)[1][0].textbook is None
  assert json.loads(path.read_text())["kind"] == "Row"


def test_without_a_file_nothing_is_written(path):
  before = path.read_text()
  with flagsaver.flagsaver():
    flags.FLAGS(["binary"])
    rows.note(_ROWS[0])
  assert path.read_text() == before


def test_a_damaged_file_is_refused(path):
  path.write_text(path.read_text() + "{\n")
  with pytest.raises(ValueError, match="line 5 of .* is no result"):
    rows.read(path)


def test_the_table_has_ratios(path, tmp_path, capsys):
  page = tmp_path / "page.md"
  with flagsaver.flagsaver():
    flags.FLAGS(["binary", f"--markdown={page}", "--load=with load"])
    table.main([str(path)])
  device, header, first, second = capsys.readouterr().out.splitlines()
  assert device == (
    "cpu, Python 3.11.1, jax 0.1; ceilings measured with it: float32 matmul "
    "400 to 500 GFLOP/s, memory 50 GB/s"
  )
  assert header.startswith("system  setting    ours (ms)  textbook (ms)")
  assert first.split()[-8:] == [
    "200", "500", "2.50", "50", "100", "2.00", "-", "-"
  ]  # fmt: skip
  assert second.split()[-8:] == ["12.35", *5 * "-", "2.3", "500"]
  text = page.read_text()
  assert "50 GB/s; with load. `make bench-record` writes" in text
  assert "| batch 2 | 200 | 500 | 2.50 | 50 | 100 | 2.00 | - | - |" in text


def test_another_library_has_columns_where_it_was_timed():
  raced = _ROWS[0]._replace(peer=0.4, peer_name="PyTorch 2.0")
  header, first, second = table.lines_of([raced, _ROWS[1]])
  assert header[-2:] == ["PyTorch 2.0 (ms)", "times faster than it"]
  assert first[-2:] == ["400", "2.00"] and second[-2:] == ["-", "-"]
  page = table.markdown(_MACHINES, [raced, _ROWS[1]], "with load")
  assert "| 2.00 | - | - | 400 | 2.00 |\n" in page
  assert {len(line) for line in table.lines_of(_ROWS)} == {len(header) - 2}


def _interpreter(folder, text):
  """A program that stands for a Python with PyTorch."""
  path = folder / "python"
  path.write_text(f"#!/bin/sh\n{text}\n")
  path.chmod(0o755)
  return str(path)


def test_a_peer_says_what_it_measured(tmp_path):
  said = '{"name": "PyTorch 2.0", "step": 0.5}'
  python = _interpreter(
    tmp_path, f"echo warming up; test -f $1 && test $2$3 = --batch=2--steps=3 "
    f"&& test $MALLOC_MMAP_MAX_ = 0 && echo '{said}'"
  )  # fmt: skip
  assert capsnet.race_peer(python, 2, 3) == {"name": "PyTorch 2.0", "step": 0.5}


def test_a_peer_that_fails_is_said(tmp_path):
  python = _interpreter(tmp_path, "echo No module named torch >&2; exit 1")
  with pytest.raises(ValueError, match="python failed: No module named torch"):
    capsnet.race_peer(python, 2, 3)
  for other in (tmp_path, tmp_path / "nowhere"):
    with pytest.raises(ValueError, match="cannot be started .* makes one"):
      capsnet.race_peer(str(other), 2, 3)
  silent = _interpreter(tmp_path, "true")
  with pytest.raises(ValueError, match="printed no JSON"):
    capsnet.race_peer(silent, 2, 3)


def test_large_pages_are_said():
  device = table.describe([_MACHINES[0]._replace(huge_pages=True)])
  assert device.startswith("cpu, Python 3.11.1, jax 0.1, huge pages; ceilings")


def test_products_that_are_rounded_are_said(tmp_path):
  path = tmp_path / "bench.jsonl"
  with flagsaver.flagsaver(), jax.default_matmul_precision("tensorfloat32"):
    flags.FLAGS(["binary", f"--json={path}"])
    rows.note(_MACHINES[0])
    rows.note(rows.machine(9e11, 5e10))
    rows.note(_ROWS[0])
  machines, (row,) = rows.read(path)
  assert row.setting == "batch 2, tensorfloat32"
  assert "float32 matmul 400 GFLOP/s, tensorfloat32 matmul 900" in (
    table.describe(machines)
  )
  assert rows.machine(1.0, 1.0).precision == ""


def test_columns_without_a_time_are_left_out():
  found = [_ROWS[0]]
  header = table.lines_of(found)[0]
  assert "compile (s)" not in header and "textbook (ms)" in header
  assert "compilation cache" not in table.markdown(_MACHINES, found, "idle")
  assert "compilation cache" in table.markdown(_MACHINES, _ROWS, "idle")
