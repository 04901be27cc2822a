"""Imports leave the garbage collector as it was."""

import gc

import pytest

from capjax import _collection


@pytest.fixture(autouse=True)
def _restored():
  frozen = gc.get_freeze_count()
  yield
  gc.enable()
  if not frozen:
    gc.unfreeze()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_afterwards_as_before(enabled):
  (gc.enable if enabled else gc.disable)()
  with pytest.raises(ImportError), _collection.paused():
    assert not gc.isenabled()
    raise ImportError
  assert gc.isenabled() == enabled


def test_what_was_imported_is_not_searched():
  gc.unfreeze()
  kept = []
  with _collection.paused():
    kept.append({"made": kept})
  assert all(x is not kept for x in gc.get_objects())
  gc.unfreeze()
  assert any(x is kept for x in gc.get_objects())
