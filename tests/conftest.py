"""Settings every test runs under."""

import os
import pathlib
import subprocess
import sys

import jaxtyping
import pytest

_ROOT = pathlib.Path(__file__).parents[1]

# Shapes and dtypes written in the annotations are enforced in tests.
jaxtyping.install_import_hook(["kernels", "capjax"], "beartype.beartype")


def _data_dir() -> pathlib.Path:
  default = pathlib.Path(__file__).parents[2] / "shared" / "data"
  return pathlib.Path(os.environ.get("CAPJAX_DATA_DIR", default))


@pytest.fixture(scope="session")
def data_dir() -> pathlib.Path:
  """The folder with the real data sets; skips the test where it is absent."""
  path = _data_dir()
  if not (path / "mnist").is_dir():
    pytest.skip(f"no data in {path}; set CAPJAX_DATA_DIR to run this test")
  return path


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
  return tmp_path_factory.mktemp("xla")


@pytest.fixture(scope="session")
def start(cache):
  """Starts the binary; further environment variables by keyword."""

  def run(workdir, *flags, binary="train_capsnet", **variables):
    return subprocess.Popen(
      [sys.executable, "-m", f"experiments.{binary}",
       f"--workdir={workdir}", f"--compilation_cache={cache}", *flags],
      cwd=_ROOT, env={**os.environ, **variables}, text=True,
      stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip

  return run


@pytest.fixture(scope="session")
def train(start):
  """Runs the binary to its end; gives the exit code and all that it printed."""

  def run(workdir, *flags, **variables):
    process = start(workdir, *flags, **variables)
    out, err = process.communicate(timeout=300)
    return process.returncode, out + err

  return run
