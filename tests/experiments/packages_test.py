"""The packages that binaries need, and how a missing one is named."""

import subprocess
import sys

import processes
import pytest


@pytest.mark.parametrize("package", ["matplotlib", "orbax", "sklearn"])
def test_a_missing_extra_is_named(package):
  code = f"import sys; sys.modules[{package!r}] = None; import experiments"
  done = subprocess.run(
    [sys.executable, "-c", code],
    cwd=processes.ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 1
  assert f"that are missing ({package})" in done.stderr
  assert "capjax[train]" in done.stderr
