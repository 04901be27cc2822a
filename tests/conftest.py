"""Settings every test runs under."""

import gc
import os
import pathlib
import re
import time

import compiling
import jax
import jaxtyping
import processes
import pytest

# As a user's programs are compiled: `XLA_FLAGS= make test`.
compiling.compile_quickly()
# Shapes and dtypes written in the annotations are enforced in tests.
jaxtyping.install_import_hook(["kernels", "capjax"], "beartype.beartype")


# Folders and files.
_TAKE_LONGEST = {
  "benchmarks", "exporting", "integration", "tasks", "tutorials_test.py",
}  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
  """What takes longest starts first, since it leaves a core idle at the end.

  Those are runs of the binaries, exported graphs, trainings of each task, and
  files whose tests take minutes together.
  `long_after_first` leaves one case of many to `make test`.
  """
  items.sort(key=lambda item: not _TAKE_LONGEST & {*item.path.parts})
  seen = set()
  for item in items:
    if item.get_closest_marker("long_after_first"):
      # Names of cases end with their number or their arguments.
      name = re.split(r"\d+(?:_|$)|_\(|\[|__with", item.name)[0]
      if (item.parent.nodeid, name) in seen:
        item.add_marker(pytest.mark.long)
      seen.add((item.parent.nodeid, name))


def pytest_runtest_setup():
  """Skips what starts after CAPJAX_TESTS_UNTIL, in seconds since 1970.

  CI sets it, so that a slow machine ends with skipped tests, not in the middle.
  """
  until = os.environ.get("CAPJAX_TESTS_UNTIL")
  if until and time.time() > float(until):
    pytest.skip("no time is left; see CAPJAX_TESTS_UNTIL")


def pytest_collection_finish():
  """Spares the garbage collector what lasts as long as the tests.

  Else it walks through a million objects of JAX and of pytest again and again:
  8% of the processor time.
  """
  gc.collect()
  gc.freeze()
  gc.set_threshold(100_000, 50, 1000)


@pytest.fixture(scope="module", autouse=True)
def _forget_compiled():
  """Frees what a file compiled: workers would grow by gigabytes."""
  yield
  jax.clear_caches()


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
  """Where binaries keep what they compiled; the workers share it.

  JAX_COMPILATION_CACHE_DIR, if it is set, lasts longer than these tests.
  """
  if folder := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
    return pathlib.Path(folder)
  base = tmp_path_factory.getbasetemp()
  return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "xla"


@pytest.fixture(scope="session")
def start(cache):
  """Starts a binary with flags."""

  def run(workdir, *flags, binary="train_capsnet", **options):
    folders = (f"--workdir={workdir}", f"--compilation_cache={cache}")
    return processes.Running(binary, *folders, *flags, **options)

  return run


@pytest.fixture(scope="session")
def train(start):
  """Runs a binary to its end; gives the exit code and all that it printed."""

  def run(workdir, *flags, **options):
    return start(workdir, *flags, **options).wait()

  return run


@pytest.fixture
def as_a_user():
  """Calls without the checks of annotations, which only tests make."""
  jaxtyping.config.update("jaxtyping_disable", True)
  yield
  jaxtyping.config.update("jaxtyping_disable", False)
