"""Tests that start too late are skipped, and say so."""

import os
import subprocess
import sys
import time

import processes
import pytest

_TEST = "tests/capjax/memory_test.py"


@pytest.mark.parametrize(
  ("seconds", "words"), [(-1, "skipped"), (600, "passed")]
)
def test_no_test_starts_after_the_time(seconds, words):
  command = [sys.executable, "-m", "pytest", "-q", "-rs", "-n", "0", _TEST]
  until = {"CAPJAX_TESTS_UNTIL": str(time.time() + seconds)}
  done = subprocess.run(
    [*command, "-o", "addopts="],
    cwd=processes.ROOT, env=os.environ | until, capture_output=True, text=True,
  )  # fmt: skip
  assert done.returncode == 0, done.stdout
  assert words in done.stdout.splitlines()[-1], done.stdout
  assert ("CAPJAX_TESTS_UNTIL" in done.stdout) == (words == "skipped")
