"""Annotations, and the calls of the binaries, by mypy."""

import subprocess

import processes
import pytest


@pytest.mark.long
def test_annotations_agree(tmp_path):
  pytest.importorskip("mypy")
  done = subprocess.run(
    ["make", "types", f"TYPES={tmp_path}"],
    cwd=processes.ROOT, capture_output=True, text=True,
  )  # fmt: skip
  assert done.returncode == 0, done.stdout + done.stderr
