"""Settings every test runs under."""

import os
import pathlib

import jaxtyping
import pytest

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
