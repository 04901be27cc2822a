"""The setting of XLA that keeps sums on CPUs right."""

import importlib.metadata
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest

from kernels import compilation

_FLAG = "--xla_cpu_experimental_ynn_fusion_type"


@pytest.mark.parametrize(
  ("version", "before", "after"),
  [
    ("0.10.2", None, f"{_FLAG}=-reduce"),
    ("0.12.0.1", "--xla_some=1", f"--xla_some=1 {_FLAG}=-reduce"),
    ("0.11.2", f"{_FLAG}=reduce", f"{_FLAG}=reduce"),  # the user's own
    ("0.10.0", "", ""),
    ("0.13.0", "", ""),
    ("0.12.1.dev20261001", "", f"{_FLAG}=-reduce"),
  ],
)
def test_flag_is_for_releases_that_know_it(monkeypatch, version, before, after):
  monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
  # Other tests have computed; a warning of that is expected below alone.
  monkeypatch.setattr(compilation, "_cpu_is_in_use", lambda: False)
  if before is None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
  else:
    monkeypatch.setenv("XLA_FLAGS", before)
  compilation.keep_reductions()
  compilation.keep_reductions()  # once is enough
  assert compilation.os.environ["XLA_FLAGS"] == after


@pytest.mark.parametrize(
  ("before", "options", "warned"),
  [
    ("import jax; jax.numpy.ones(1)", "", True),
    ("import jax; jax.numpy.ones(1)", f"{_FLAG}=-reduce", False),
    ("import jax", "", False),
  ],
)
def test_import_after_the_first_computation_warns(before, options, warned):
  code = (
    "import sys, types\n"
    "package = types.ModuleType('kernels')\n"
    "package.__path__ = ['kernels']  # its modules are slow to import\n"
    "sys.modules['kernels'] = package\n"
    f"{before}\n"
    "from kernels import compilation; compilation.keep_reductions()"
  )
  done = subprocess.run(
    [sys.executable, "-c", code],
    cwd=processes.ROOT,
    env=os.environ | {"XLA_FLAGS": options, "JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
    check=True,
  )
  assert ("RuntimeWarning" in done.stderr) == warned, done.stderr
  assert (f"XLA_FLAGS={_FLAG}=-reduce" in done.stderr) == warned


def test_large_sums_of_logs_are_right_when_compiled():
  """They are not on CPUs without `compilation.keep_reductions`."""
  p = np.random.default_rng(0).uniform(0.5, 2, (20_000, 4)).astype(np.float32)
  got = jax.jit(lambda p: jnp.sum(jnp.log(2 * p) + jnp.log(p), axis=1))(p)
  want = np.sum(np.log(2 * np.float64(p)) + np.log(np.float64(p)), axis=1)
  np.testing.assert_allclose(got, want, atol=1e-4)
