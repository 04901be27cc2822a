"""The tutorials run from top to bottom, and show what they say."""

import json

import matplotlib.pyplot as plt
import numpy as np
import processes
import pytest

FOLDER = processes.ROOT / "docs" / "tutorials"
PATHS = sorted(FOLDER.glob("*.ipynb"))
# Numbers that make a run short, by the name of the tutorial.
SHORT = {
  "agreement": {"num_updates = 200": "num_updates = 40"},
  "own_images": {"num_updates = 600": "num_updates = 120"},
  "viewpoints": {
    "elevations = (0, 4, 8)": "elevations = (0,)",
    "num_updates = 250": "num_updates = 40",
  },
  "scae": {
    "num_updates = 700": "num_updates = 60",
    "num_images = 40": "num_images = 8",
  },
  "generative": {
    "num_updates = 800": "num_updates = 150",
    "num_steps = 300": "num_steps = 150",
  },
  "rbm": {
    "num_sweeps = 500": "num_sweeps = 20",
    "num_temperatures = 1000": "num_temperatures = 200",
  },
  "new_routing": {"num_updates = 150": "num_updates = 2"},
}


def _cells(path):
  cells = json.loads(path.read_text("utf-8"))["cells"]
  return [x for x in cells if x["cell_type"] == "code"]


def _sources(path):
  return ["".join(cell["source"]) for cell in _cells(path)]


def test_each_is_listed():
  names = {path.stem for path in PATHS}
  assert names == set(SHORT)
  listed = (FOLDER / "index.md").read_text().splitlines()
  assert names <= set(listed)


@pytest.mark.parametrize("path", PATHS, ids=lambda x: x.stem)
def test_outputs_are_stored_without_errors(path):
  assert path.stat().st_size < 600_000
  cells = _cells(path)
  assert [x["execution_count"] for x in cells] == list(range(1, len(cells) + 1))
  outputs = [output for cell in cells for output in cell["outputs"]]
  assert outputs
  kinds = {output["output_type"] for output in outputs}
  assert kinds <= {"stream", "display_data"}


@pytest.mark.long
@pytest.mark.parametrize("path", PATHS, ids=lambda x: x.stem)
def test_it_runs_in_a_short_form(path, monkeypatch):
  plt.switch_backend("Agg")
  monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
  sources, scope = _sources(path), {}
  for long, short in SHORT[path.stem].items():
    assert sum(long in source for source in sources) == 1
    sources = [source.replace(long, short) for source in sources]
  for number, source in enumerate(sources):
    exec(compile(source, f"{path.name}, cell {number}", "exec"), scope)
  CLAIMS[path.stem](scope)


def _agreement(scope):
  assert scope["lengths"][-1] > scope["lengths"][0] + 0.1
  after, before = scope["agreed"]
  assert after > before + 0.2


def _own_images(scope):
  assert scope["accuracy"] > 0.4


def _viewpoints(scope):
  assert scope["change"] < 0.05
  assert scope["gap"] > 0
  assert scope["error"] < 0.05
  sizes = [scope["size"](scope[name]) for name in ("capsules", "cnn")]
  assert max(sizes) < 1.1 * min(sizes)
  assert scope["is_familiar"].sum() * 2 == (~scope["is_familiar"]).sum()
  familiar, novel = np.transpose(list(scope["accuracies"].values()))
  assert np.all(familiar > 0.25)
  assert np.all(novel < familiar)
  assert scope["heaviest"] > 0.2


def _scae(scope):
  best = scope["explain"](scope["best"]).log_prob
  assert best > scope["explain"](scope["true"]).log_prob - 1
  assert min(scope["scores"][0.0]) > 0.7
  values = np.asarray(scope["terms"]["image_log_prob"])
  assert np.mean(values[-10:]) > values[0] + 10
  assert scope["errors"]["parts"] < 0.3
  assert all(value > 0.15 for value in scope["accuracies"].values())


def _generative(scope):
  values = np.asarray(scope["objectives"])
  assert np.mean(values[-10:]) > values[0] + 100
  assert scope["climbed"][-1] > scope["climbed"][0] + 50
  assert scope["errors"][1] < scope["errors"][0]
  np.testing.assert_allclose(np.sum(scope["routing"], axis=-1), 1, rtol=1e-5)
  assert scope["bounds"][100] > scope["bounds"][1]
  assert scope["accuracy"] > 0.3
  # Parts of the faces are found, and hidden ones are not.
  assert scope["presence_accuracy"] > 0.8
  hidden = np.eye(4, dtype=bool)
  assert np.all(np.asarray(scope["after"])[hidden] < 0.5)
  assert np.all(np.asarray(scope["after"])[~hidden] > 0.5)
  widths = np.asarray(scope["widths"])
  assert np.all(widths[hidden] > 2 * widths[~hidden].mean())


def _rbm(scope):
  np.testing.assert_allclose(scope["counted"], scope["exact"], atol=1e-4)
  assert np.max(np.abs(scope["counted"] - scope["field"])) > 0.01
  assert float(np.mean(scope["gap"])) < 0.5


def _new_routing(scope):
  assert [name for name, kept in scope["first"].items() if not kept]
  assert all(scope["second"].values())


CLAIMS = {
  "agreement": _agreement,
  "own_images": _own_images,
  "viewpoints": _viewpoints,
  "scae": _scae,
  "generative": _generative,
  "rbm": _rbm,
  "new_routing": _new_routing,
}
