"""Settings and fixtures of all tests."""

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

# Compile quickly. `XLA_FLAGS= make test` compiles as for users instead.
compiling.compile_quickly()
# Shapes and dtypes written in the annotations are enforced in tests.
jaxtyping.install_import_hook(["kernels", "capjax"], "beartype.beartype")


# Folders and files whose tests take longest.
_TAKE_LONGEST = {
  "benchmarks", "exporting", "integration", "tasks", "tutorials_test.py",
}  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
  """Puts the longest tests first, so that no core is idle at the end.

  The longest tests are runs of the binaries, exported graphs, trainings of each
  task, and files whose tests take minutes together. Of a test that is marked
  `long_after_first`, all cases but the first are also marked `long`, so that
  `make test` runs the first case only.
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
  """Skips tests that start after CAPJAX_TESTS_UNTIL, in seconds since 1970.

  CI sets this variable. On a slow machine the last tests are then skipped, and
  the run is not stopped in the middle of a test.
  """
  until = os.environ.get("CAPJAX_TESTS_UNTIL")
  if until and time.time() > float(until):
    pytest.skip("no time is left; see CAPJAX_TESTS_UNTIL")


def pytest_collection_finish():
  """Excludes objects that exist until the end from garbage collection.

  Otherwise the collector visits a million objects of JAX and of pytest again
  and again, which takes 8% of the processor time.
  """
  gc.collect()
  gc.freeze()
  gc.set_threshold(100_000, 50, 1000)


@pytest.fixture(scope="module", autouse=True)
def _forget_compiled():
  """Frees the programs that a test file compiled, which take gigabytes."""
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
  """The folder of compiled programs, which all workers share.

  It is JAX_COMPILATION_CACHE_DIR, if that is set, and is then kept after the
  tests.
  """
  if folder := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
    return pathlib.Path(folder)
  base = tmp_path_factory.getbasetemp()
  return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "xla"


@pytest.fixture(scope="session")
def start(cache):
  """A function that starts a binary with flags."""

  def run(workdir, *flags, binary="train_capsnet", **options):
    folders = (f"--workdir={workdir}", f"--compilation_cache={cache}")
    return processes.Running(binary, *folders, *flags, **options)

  return run


@pytest.fixture(scope="session")
def train(start):
  """A function that runs a binary, and returns its exit code and output."""

  def run(workdir, *flags, **options):
    return start(workdir, *flags, **options).wait()

  return run


@pytest.fixture
def as_a_user():
  """Turns off the checks of annotations, which users do not have."""
  jaxtyping.config.update("jaxtyping_disable", True)
  yield
  jaxtyping.config.update("jaxtyping_disable", False)
