"""The notebook runs from top to bottom, and shows what it says."""

import json

import matplotlib.pyplot as plt
import numpy as np
import processes
import pytest

pytestmark = pytest.mark.long
PATH = processes.ROOT / "notebooks" / "generative.ipynb"


@pytest.fixture(scope="module")
def cells():
  """The sources of its cells of code."""
  cells = json.loads(PATH.read_text())["cells"]
  code = [cell for cell in cells if cell["cell_type"] == "code"]
  assert all(not x["outputs"] and x["execution_count"] is None for x in code)
  return ["".join(cell["source"]) for cell in code]


def test_cells_run_and_bounds_rise(cells, monkeypatch):
  plt.switch_backend("Agg")
  monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
  names = {}
  short = ("num_updates = 800", "num_updates = 150")
  assert sum(short[0] in cell for cell in cells) == 1
  for cell in cells:
    exec(compile(cell.replace(*short), PATH.name, "exec"), names)
  bounds, climbed = np.asarray(names["bounds"]), np.asarray(names["climbed"])
  assert np.mean(bounds[-10:]) > bounds[0] + 100
  assert climbed[-1] > climbed[0] + 50
  errors = [
    np.mean(np.square(drawing - names["turned"]))
    for drawing in names["drawings"]
  ]
  assert errors[1] < errors[0]
  np.testing.assert_allclose(np.sum(names["routing"], axis=-1), 1, rtol=1e-5)
