"""The table of all benchmarks."""

import json

import pytest
from absl import flags
from absl.testing import flagsaver

from experiments.benchmarks import rows, table

_MACHINES = [
  rows.Machine("cpu", "Python 3.11.1, jax 0.1", 4e11, 5e10),
  rows.Machine("cpu", "Python 3.11.1, jax 0.1", 5e11, 5e10),
]
_ROWS = [
  rows.Row("a step", "batch 2", 0.2, 0.5, 0.1),
  rows.Row("a step", "batch 128", 0.012345),
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
    table.main(["binary", str(path)])
  device, header, first, second = capsys.readouterr().out.splitlines()
  assert device == (
    "cpu, Python 3.11.1, jax 0.1; ceilings measured with it: float32 matmul "
    "400 to 500 GFLOP/s, memory 50 GB/s"
  )
  assert header.startswith("system  setting    ours (ms)  textbook (ms)")
  assert first.split()[-5:] == ["200", "500", "2.50", "100", "2.00"]
  assert second.split()[-5:] == ["12.35", "-", "-", "-", "-"]
  text = page.read_text()
  assert "50 GB/s; with load. `make bench-record` writes" in text
  assert "| a step | batch 2 | 200 | 500 | 2.50 | 100 | 2.00 |" in text


def test_large_pages_are_said():
  device = table.describe([_MACHINES[0]._replace(huge_pages=True)])
  assert device.startswith("cpu, Python 3.11.1, jax 0.1, huge pages; ceilings")
