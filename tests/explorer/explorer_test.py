"""The explorer in a browser, and its graphs against the models in JAX."""

import functools
import http.server
import json
import pathlib
import shutil
import subprocess
import threading

import jax
import numpy as np
import processes
import pytest

from capjax import exporting, pretrained

EXPLORER = processes.ROOT / "explorer"
# Screenshots stay here, to be looked at.
_SHOTS = processes.ROOT / "build" / "explorer"
_TABLE = json.loads((EXPLORER / "models" / "models.json").read_text())


def _chromium():
  names = ("chromium", "chromium-browser", "google-chrome")
  return next(filter(None, map(shutil.which, names)), None)


@pytest.mark.parametrize("name", _TABLE)
def test_graphs_are_small_and_come_from_the_shipped_weights(name):
  path = EXPLORER / "models" / f"{name}.onnx"
  assert pretrained.file_digest(path) == _TABLE[name]["sha256"]
  assert path.stat().st_size == _TABLE[name]["bytes"]
  model = name.rpartition("-")[0]
  weights = pretrained.file_digest(pretrained.FOLDER / f"{model}.safetensors")
  assert weights == _TABLE[name]["weights"], (
    f"the weights of {model} changed; run python -m explorer.export"
  )


def test_all_graphs_together_are_small():
  paths = list((EXPLORER / "models").glob("*.onnx"))
  assert {path.stem for path in paths} == _TABLE.keys()
  assert sum(path.stat().st_size for path in paths) <= 12_000_000


def test_node_packages_are_locked_and_of_no_other_host():
  lock = json.loads((EXPLORER / "package-lock.json").read_text())
  for name, package in lock["packages"].items():
    if name:
      assert package["integrity"].startswith("sha512-"), name
      resolved = package.get("resolved", "https://registry.npmjs.org/")
      assert resolved.startswith("https://registry.npmjs.org/"), name
  wanted = json.loads((EXPLORER / "package.json").read_text())
  for name, version in (
    wanted["dependencies"] | wanted["devDependencies"]
  ).items():
    assert lock["packages"][f"node_modules/{name}"]["version"] == version


class _Quiet(http.server.SimpleHTTPRequestHandler):
  def log_message(self, *arguments):
    del arguments


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
  """What the browser saw of the page, as `browse.mjs` reports it."""
  node, chromium = shutil.which("node"), _chromium()
  if node is None or chromium is None:
    pytest.skip("no node or no chromium on this machine")
  # npm writes this file last.
  if not (EXPLORER / "node_modules/.package-lock.json").exists():
    pytest.skip("no packages of node; run `npm ci` in explorer")
  dist = tmp_path_factory.mktemp("dist")
  subprocess.run([node, EXPLORER / "build.mjs", dist], check=True)
  handler = functools.partial(_Quiet, directory=str(dist))
  _SHOTS.mkdir(parents=True, exist_ok=True)
  with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    script = pathlib.Path(__file__).with_name("browse.mjs")
    done = subprocess.run(
      [node, script, EXPLORER, url, chromium, _SHOTS],
      capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    server.shutdown()
  assert done.returncode == 0, done.stdout + done.stderr
  return json.loads((_SHOTS / "report.json").read_text()) | {"url": url}


def _arrays(named):
  return {
    name: np.reshape(np.asarray(x["data"], np.float32), x["dims"])
    for name, x in named.items()
  }


@functools.cache
def _in_jax(name):
  model, _, graph = name.rpartition("-")
  found = exporting.graph(pretrained.load(model), graph)
  return found, jax.jit(found.function)


def _agree(name, said, *, outputs, atol):
  """Compares what a graph returned in the browser with JAX."""
  graph, function = _in_jax(name)
  feeds = _arrays(said["feeds"])
  wanted = function(
    *(feeds[n].astype(x.dtype) for n, x in graph.inputs.items())
  )
  found = _arrays(said["outputs"])
  for output in outputs:
    np.testing.assert_allclose(
      found[output], wanted[output], atol=atol, err_msg=f"{name} {output}"
    )
  return feeds, found


@pytest.mark.long
def test_nothing_fails_and_no_request_leaves_the_origin(seen):
  assert seen["errors"] == []
  assert [x.rstrip("/") for x in seen["origins"]] == [seen["url"].rstrip("/")]


@pytest.mark.long
def test_it_is_accessible_and_fits_narrow_and_wide_screens(seen):
  assert {x: y for x, y in seen["violations"].items() if y} == {}
  assert len(seen["violations"]) == 4 * len(seen["panels"])
  assert seen["overflow"] == []
  assert seen["tabs"] == list(seen["panels"])
  for label in seen["violations"]:
    assert (_SHOTS / f"{label}.png").stat().st_size > 10_000


@pytest.mark.long
def test_it_is_fast(seen):
  times = seen["times"]
  assert seen["ready"].keys() == seen["panels"].keys()
  # The page opens with the first panel; others load when they are opened.
  assert seen["ready"]["classes"] < 3000, seen["ready"]
  assert max(seen["ready"].values()) < 6000, seen["ready"]
  assert max(times[x] for x in ("slider", "object", "drag")) < 50, times
  assert max(times[x] for x in ("drawing", "parts", "overlap")) < 150, times
  assert times["sweep"] < 100, times


_AGAIN = """
import json, pathlib, sys
import numpy as np, onnxruntime
from explorer import export
folder, errors = pathlib.Path(sys.argv[1]), {}
rng = np.random.default_rng(0)
onnxruntime.set_default_logger_severity(3)
for row in export.ROWS:
  path = folder / f"{row.name}.onnx"
  export.write(row, path)
  old, new = (
    onnxruntime.InferenceSession(x, providers=["CPUExecutionProvider"])
    for x in (export.MODELS / path.name, path)
  )
  feeds = {}
  for x in old.get_inputs():
    values = rng.uniform(size=x.shape)
    is_image = x.type == "tensor(uint8)"
    feeds[x.name] = (
      (255 * values).astype(np.uint8) if is_image else values.astype(np.float32)
    )
  both = old.run(None, feeds), new.run(None, feeds)
  names = [x.name for x in old.get_outputs()]
  assert names == [x.name for x in new.get_outputs()]
  for name, one, other in zip(names, *both):
    errors[f"{row.name} {name}"] = float(np.abs(one - other).max())
print(json.dumps(errors))
"""


@pytest.mark.long
def test_graphs_exported_again_are_equal(tmp_path):
  python = processes.ROOT / ".venv-onnx/bin/python"
  if not python.exists():
    pytest.skip("no .venv-onnx; `make .venv-onnx` makes it")
  done = subprocess.run(
    [python, "-c", _AGAIN, tmp_path],
    capture_output=True, text=True, cwd=processes.ROOT,
  )  # fmt: skip
  assert done.returncode == 0, done.stdout + done.stderr
  errors = json.loads(done.stdout.splitlines()[-1])
  assert {x.split()[0] for x in errors} == _TABLE.keys()
  assert max(errors.values()) < 1e-4, errors


@pytest.mark.long
def test_class_capsules_agree_with_jax(seen):
  panel = seen["panels"]["classes"]
  for question in ("read", "keyed", "tested"):
    feeds, found = _agree(
      "mnist_quarter-routing", panel[question],
      outputs=("activations", "coefficients", "poses"), atol=1e-3,
    )  # fmt: skip
    assert feeds["images"].max() > 200
  feeds, found = (_arrays(panel["read"][x]) for x in ("feeds", "outputs"))
  lengths = found["activations"][0, -1]
  assert lengths.argmax() == 7 and lengths.max() > 0.5
  assert [float(x) for x in panel["shown"]] == pytest.approx(lengths, abs=0.006)
  # A drawing is placed as MNIST places digits.
  image = feeds["images"][0, ..., 0]
  rows, columns = (np.flatnonzero(image.max(axis=a)) for a in (1, 0))
  assert 19 <= max(np.ptp(rows), np.ptp(columns)) + 1 <= 22
  middle = [(image * grid).sum() / image.sum() for grid in np.mgrid[:28, :28]]
  assert middle == pytest.approx([14, 14], abs=0.5)


@pytest.mark.long
def test_sliders_change_the_decoded_image(seen):
  panel = seen["panels"]["classes"]
  _agree(
    "mnist_quarter-decoder", panel["decoded"], outputs=("images",), atol=0.03
  )
  assert np.abs(np.subtract(panel["before"], panel["after"])).max() > 10
  assert np.abs(np.subtract(panel["shares"], panel["agreements"])).max() > 10
  # As the network sees it, the drawing has 28 pixels along each side.
  assert len(panel["seen"]) == 28 * 28 * 4


@pytest.mark.long
def test_chains_follow_the_model_and_keep_held_pixels(seen):
  panel = seen["panels"]["chains"]
  assert panel["running"] > 0
  assert panel["before"] != panel["after"]
  for question in ("free", "held", "keyed", "released"):
    feeds, found = _agree(
      "boltzmann_mnist-sweep", panel[question],
      outputs=("activities",), atol=1e-2,
    )  # fmt: skip
    for numbers in ("switch_uniforms", "hidden_uniforms", "image_uniforms"):
      assert 0.4 < feeds[numbers].mean() < 0.6
    # Rounded weights may change a few samples, but not their means.
    _, function = _in_jax("boltzmann_mnist-sweep")
    wanted = function(*feeds.values())
    assert np.mean(np.abs(found["means"] - wanted["means"])) < 0.01
    known = feeds["known"] == 1
    np.testing.assert_array_equal(
      found["samples"][known], feeds["images"][known]
    )
  counts = [
    _arrays(panel[x]["feeds"])["known"][0].sum() for x in
    ("free", "held", "keyed", "released")
  ]  # fmt: skip
  assert counts[0] == counts[3] == 0 < counts[1] < counts[2]
  held = _arrays(panel["held"]["feeds"])
  kept = held["images"][held["known"] == 1]
  assert 0 < kept.mean() < 1  # pixels held on, and pixels held off


def _matrices(poses):
  """Pose matrices [I 3 3] from numbers [I 6]."""
  rows = np.reshape(poses, (-1, 2, 3)) + np.eye(3)[:2]
  last = np.broadcast_to([[[0.0, 0.0, 1.0]]], (len(rows), 1, 3))
  return np.concatenate([rows, last], axis=1)


@pytest.mark.long
def test_parts_follow_the_object_that_is_dragged(seen):
  panel = seen["panels"]["parts"]
  _, found = _agree(
    "generative_mnist-model", panel["read"],
    outputs=("presences_1", "presences_2", "part_poses", "object_poses"),
    atol=0.02,
  )  # fmt: skip
  assert panel["chosen"] >= 0 and panel["grabbed"] >= 0
  parents = found["routing"][0].argmax(axis=1) - 1
  follows = parents == panel["grabbed"]
  assert follows.any()
  poses = {}
  for name in ("before", "dragged", "turned", "keyed", "reset"):
    feeds, _ = _agree(
      "generative_mnist-decoder", panel[name],
      outputs=("images", "shares"), atol=0.03,
    )  # fmt: skip
    poses[name] = _matrices(feeds["poses"][0])
  # A tenth of the picture to the right is 0.2 of the frame from -1 to 1.
  shift = poses["dragged"] - poses["before"]
  np.testing.assert_allclose(shift[~follows], 0, atol=1e-6)
  np.testing.assert_allclose(shift[follows, 0, 2], 0.2, atol=0.02)
  np.testing.assert_allclose(shift[follows, 1, 2], 0, atol=0.02)
  # One motion of the plane takes all parts of the object along.
  motions = poses["turned"] @ np.linalg.inv(poses["dragged"])
  for motion in motions[~follows]:
    np.testing.assert_allclose(motion, np.eye(3), atol=1e-4)
  first, *others = motions[follows]
  for motion in others:
    np.testing.assert_allclose(motion, first, atol=1e-3)
  assert np.abs(first[:2, :2] - np.eye(2)).max() > 0.1
  # 15 presses of a key, each a hundredth.
  down = (poses["keyed"] - poses["turned"])[follows, 1, 2]
  np.testing.assert_allclose(down, 0.15, atol=0.02)
  np.testing.assert_allclose(poses["reset"], poses["before"], atol=1e-5)


@pytest.mark.long
def test_a_part_that_is_switched_off_leaves_the_picture(seen):
  panel = seen["panels"]["parts"]
  brightest = panel["brightest"]
  before = _arrays(panel["reset"]["outputs"])["shares"][0]
  presences = _arrays(panel["without"]["feeds"])["presences"][0]
  assert np.flatnonzero(presences < 0.01).tolist() == [brightest]
  shares = _arrays(panel["without"]["outputs"])["shares"][0]
  assert np.abs(shares[brightest]).max() == 0
  assert before[brightest].max() > 0.2 < shares.max()
  assert panel["shown"] != panel["hidden"]
  _agree(
    "generative_mnist-parts", panel["expected"],
    outputs=("part_poses", "choices"), atol=0.01,
  )  # fmt: skip


@pytest.mark.long
def test_two_digits_are_decoded_apart(seen):
  panel = seen["panels"]["overlap"]
  for question in ("read", "tested"):
    _agree(
      "multimnist_quarter-routing", panel[question],
      outputs=("activations", "poses"), atol=2e-3,
    )  # fmt: skip
  lengths = _arrays(panel["read"]["outputs"])["activations"][0, -1]
  best = np.argsort(-lengths)[:2]
  assert 7 in best and lengths[7] > 0.5
  # The first drawing, a seven, has the first caption, whichever is longer.
  named = [int(x.split()[1].strip(",")) for x in panel["classes"]]
  assert sorted(named) == sorted(best) and named[0] == 7
  feeds, found = _agree(
    "multimnist_quarter-decoder", panel["alone"], outputs=("images",), atol=0.03
  )
  # Each of the two images is of one capsule alone.
  for digit, poses in zip(best, feeds["poses"], strict=True):
    assert np.flatnonzero(np.abs(poses).sum(axis=1)).tolist() == [digit]
  assert np.abs(found["images"][0] - found["images"][1]).max() > 0.3
  # The decoded picture has colours, the picture of both has none.
  for name, coloured in (("both", False), ("decoded", True)):
    pixels = np.reshape(panel[name], (-1, 4))[:, :3].astype(int)
    assert (np.ptp(pixels, axis=1).max() > 60) == coloured
  assert panel["both"] != panel["moved"]


@pytest.mark.long
def test_the_cursor_is_seen_and_the_pen_is_lifted_by_undo(seen):
  found = seen["faults"]["pen"]
  assert (found["hidden"], found["shown"]) == ("hidden", "visible")
  assert found["undone"] == found["empty"]


@pytest.mark.long
def test_chains_start_from_an_image_that_is_chosen_during_a_sweep(seen):
  images = _arrays({"images": seen["faults"]["start"]})["images"]
  assert 0 < images.mean() < 1
  np.testing.assert_array_equal(images, images[:1].repeat(len(images), axis=0))


@pytest.mark.long
def test_an_object_stays_where_it_was_dragged(seen):
  places = {
    name: float(x.rstrip("%")) for name, x in seen["faults"]["drag"].items()
  }
  # Beyond the reach of the slider, whose end is half a width from the middle.
  assert places["before"] > 100
  assert places["after"] == pytest.approx(places["before"], abs=0.01)


@pytest.mark.long
def test_shifted_digits_stay_whole(seen):
  found = seen["faults"]["shift"]
  first, *others = found["sums"]
  assert first > 0 and others == [first] * len(others)
  assert found["captions"][0].startswith("Digit ")
  assert found["captions"][1] == "Nothing drawn"


@pytest.mark.long
def test_what_cannot_be_loaded_is_said_and_tried_again(seen):
  found = seen["faults"]["images"]
  assert "images/mnist_test.json cannot be loaded (404)" in found["said"]
  assert found["busy"] is None and found["after"] == ""
  assert "reload the page" in seen["faults"]["worker"]["said"]
