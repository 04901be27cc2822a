"""Speed of two processes beside that of one."""

import subprocess
import sys
import time

import pytest

from experiments.benchmarks import hosts


@pytest.mark.long
def test_one_process_and_two_are_timed():
  found = hosts.rates(steps={32: 4})
  assert found.keys() == {"hosts_32_one", "hosts_32_two"}
  assert min(found.values()) > 0


def test_a_process_that_fails_is_said():
  with pytest.raises(subprocess.CalledProcessError, match="no_such_preset"):
    hosts.rates("no_such_preset", {32: 4})


def test_a_process_that_fails_ends_the_others():
  codes = "import time; time.sleep(60)", "raise SystemExit(3)"
  running = [subprocess.Popen([sys.executable, "-c", x]) for x in codes]
  began = time.monotonic()
  with pytest.raises(subprocess.CalledProcessError, match="status 3"):
    hosts._wait(running, ["train"])
  assert time.monotonic() - began < 30
  assert all(x.poll() is not None for x in running)
