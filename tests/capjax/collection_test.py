"""Imports leave the garbage collector as it was."""

import gc

import pytest

from capjax import _collection


@pytest.fixture(autouse=True)
def _restored():
  yield
  gc.enable()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_afterwards_as_before(enabled):
  (gc.enable if enabled else gc.disable)()
  with pytest.raises(ImportError), _collection.paused():
    assert not gc.isenabled()
    raise ImportError
  assert gc.isenabled() == enabled
