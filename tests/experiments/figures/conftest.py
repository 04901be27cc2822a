"""The figures that tests look at."""

import pytest

from experiments.figures import (
  confusion,
  curves,
  energy_models,
  grids,
  iterations,
  routings,
)


@pytest.fixture
def sheets(monkeypatch):
  """Matplotlib figures in place of files, in the order of their making."""
  found = []
  for module in (confusion, curves, grids, iterations, routings):
    monkeypatch.setattr(module, "save", lambda sheet, path: found.append(sheet))
  return found


@pytest.fixture
def tiled(monkeypatch):
  """What the last table of images is given, in place of a file."""
  given = {}
  monkeypatch.setattr(
    energy_models,
    "tiles",
    lambda images, path, **options: given.update(options, images=images),
  )
  return given
