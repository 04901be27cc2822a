"""Graphs of trained models in other formats, against the models themselves."""

import json
import os
import pathlib
import shlex
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest
import saved_cases
from jax import lax

from capjax import exporting, generative, saved, specs
from capjax.exporting import onnx_files, portable

_ONNX = pathlib.Path(processes.ROOT, ".venv-onnx/bin/python")
# The families whose graphs are checked in ONNX Runtime.
_IN_ONNX = {
  "capsnet": ("model", "decoder", "routing"),
  "efficient": ("model", "decoder"),
  "matrix": ("model",),
  "scae": ("model", "decoder"),
  "generative": ("model", "decoder", "parts"),
  "rbm": ("sweep",),
}
_ATOL = 1e-4


def _arguments(graph, count):
  rng = np.random.default_rng(count)
  return [
    rng.integers(0, 256, (count, *x.shape), np.uint8)
    if x.dtype == np.uint8
    else rng.uniform(0.05, 0.95, (count, *x.shape)).astype(np.float32)
    for x in graph.inputs.values()
  ]


def _assert_close(found, wanted):
  assert found.keys() == wanted.keys()
  for name, values in wanted.items():
    np.testing.assert_allclose(found[name], values, atol=_ATOL, err_msg=name)


@pytest.mark.parametrize(
  "graph", ["decoder", pytest.param("model", marks=pytest.mark.long)]
)
def test_stablehlo_runs_at_any_batch_size(tmp_path, graph):
  trained = saved_cases.trained("capsnet")
  path = tmp_path / "capsnet.stablehlo"
  written = exporting.write_stablehlo(trained, path, graph=graph)
  function = exporting.load_stablehlo(path)
  platforms = jax.export.deserialize(bytearray(path.read_bytes())).platforms
  assert platforms == ("cpu", "cuda", "tpu")
  for count in (2, 5):
    arguments = _arguments(written, count)
    found = function(*arguments)
    assert {name: x.shape for name, x in found.items()} == {
      name: (count, *x.shape) for name, x in written.outputs.items()
    }
    _assert_close(found, jax.jit(written.function)(*arguments))


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(saved_cases.SPECS.keys() - {"capsnet"}))
def test_every_model_of_images_becomes_stablehlo(tmp_path, name):
  trained = saved_cases.trained(name)
  if name in saved_cases.TAKE_POINTS:
    with pytest.raises(ValueError, match="takes points"):
      exporting.graph(trained)
    return
  path = tmp_path / f"{name}.stablehlo"
  written = exporting.write_stablehlo(trained, path)
  function = exporting.load_stablehlo(path)
  for count in (1, 3):
    (images,) = _arguments(written, count)
    found = function(images)
    _assert_close(found, jax.jit(written.function)(images))
    # The graph takes the same images as `predict`.
    predicted = trained.predict(images)
    _assert_close(
      {n: x for n, x in found.items() if n in predicted.outputs},
      {n: x for n, x in predicted.outputs.items()},
    )
    if predicted.scores is not None:
      np.testing.assert_allclose(
        found[predicted.kind], predicted.scores, atol=_ATOL
      )


@pytest.mark.long
def test_the_generative_model_alone_has_a_decoder():
  arguments = dict(image_shape=(6, 6, 1), num_capsules=(2, 2), template_size=3)
  spec = specs.Spec(generative.GenerativeCapsules, arguments)
  card = saved.make_card(spec, image_shape=(6, 6, 1), class_names=tuple("abc"))
  trained = saved.TrainedModel(spec.make(saved_cases.nnx.Rngs(0)), card)
  graph = exporting.graph(trained, "decoder")
  assert graph.inputs["poses"].shape == (2, 6)
  assert graph.outputs["images"].shape == (6, 6, 1)
  none = graph.function(jnp.zeros((1, 2, 6)), jnp.zeros((1, 2)))["images"]
  np.testing.assert_array_equal(none, 0)  # absent parts render nothing


def test_what_has_no_graph_is_refused(tmp_path):
  trained = saved_cases.trained("baseline")
  with pytest.raises(ValueError, match="has no decoder.*export the graph"):
    exporting.graph(trained, "decoder")
  points = saved_cases.trained("constellation")
  with pytest.raises(ValueError, match=r"latents\.$"):
    exporting.graph(points, "decoder")
  with pytest.raises(ValueError, match="'encoder' is unknown"):
    exporting.graph(trained, "encoder")
  path = tmp_path / "foreign"
  path.write_bytes(b"no graph")
  with pytest.raises(ValueError, match="no graph of jax.export"):
    exporting.load_stablehlo(path)


def test_the_command_is_named_where_jax2onnx_is_missing(tmp_path, monkeypatch):
  monkeypatch.setitem(__import__("sys").modules, "jax2onnx", None)
  with pytest.raises(ModuleNotFoundError, match="make .venv-onnx"):
    exporting.write_onnx(saved_cases.trained("vae"), tmp_path / "vae.onnx")


def _branches(x):
  total = lax.platform_dependent(
    x, cpu=lambda x: 2 * x, default=lambda x: x + x
  )
  mean = jax.jit(lambda x: jnp.mean(x))(lax.stop_gradient(total))
  padded = lax.pad(total, 1.5, [(2, -1, 0), (-1, 1, 2)])
  mean = lax.optimization_barrier(mean)
  return jax.nn.relu(jax.checkpoint(jnp.sin)(padded)) + mean


def _outer(x):
  products = jnp.einsum("ji,jk->jki", x, x[:, :2])
  wider = jnp.einsum("i,jk->kij", x[0], x, preferred_element_type=jnp.float32)
  return products, wider


def _loop(x):
  return lax.scan(lambda c, row: (c + jax.nn.relu(row), c), x[0], x @ x.T @ x)


def _cumulative(x):
  return jnp.cumprod(x, axis=1), lax.cumprod(x, axis=0, reverse=True)


@pytest.mark.parametrize("function", [_branches, _outer, _loop, _cumulative])
def test_portable_functions_are_equal(function):
  x = jax.random.normal(jax.random.key(0), (4, 3))
  shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
  found = portable.portable(function, [shape])
  used = str(jax.make_jaxpr(found)(x))
  wanted = jax.tree.leaves(function(x))
  assert len(found(x)) == len(wanted)
  for value, other in zip(found(x), wanted, strict=True):
    np.testing.assert_allclose(value, other, rtol=1e-6)
  for word in (
    "platform_index",
    "cond[",
    "pad[",
    "checkpoint",
    "remat",
    "custom_jvp",
    "cumprod",
    "stop_gradient",
    "optimization_barrier",
  ):
    assert word not in used
  # Only products that are summed.
  assert ("dot_general" in used) == (function is _loop)


_IN_RUNTIME = """
import json, sys
import jax, numpy as np, onnxruntime
import saved_cases, exporting_test
from capjax import exporting
folder, name, *graphs = sys.argv[1:]
trained = saved_cases.trained(name)
options = onnxruntime.SessionOptions()
options.log_severity_level = 3
errors = {}
for graph in graphs:
  path = f"{folder}/{graph}.onnx"
  written = exporting.write_onnx(trained, path, graph=graph)
  session = onnxruntime.InferenceSession(
    path, options, providers=["CPUExecutionProvider"]
  )
  assert [x.name for x in session.get_inputs()] == list(written.inputs)
  names = [x.name for x in session.get_outputs()]
  assert names == list(written.outputs)
  function = jax.jit(written.function)
  for count in (2, 5):
    arguments = exporting_test._arguments(written, count)
    found = session.run(None, dict(zip(written.inputs, arguments)))
    wanted = function(*arguments)
    for key, values in zip(names, found):
      assert values.shape == wanted[key].shape, key
      error = float(np.abs(values - wanted[key]).max())
      errors[f"{graph} {key} {count}"] = error
print(json.dumps(errors))
"""


@pytest.mark.long
@pytest.mark.parametrize("name", _IN_ONNX)
def test_onnx_runtime_agrees(tmp_path, name):
  if not _ONNX.exists():
    pytest.skip("no .venv-onnx; `make .venv-onnx` makes it")
  graphs = _IN_ONNX[name]
  done = _in_runtime(tmp_path, name, *graphs)
  assert done.returncode == 0, done.stdout + done.stderr
  errors = json.loads(done.stdout.splitlines()[-1])
  assert {key.split()[0] for key in errors} == set(graphs)
  assert max(errors.values()) < _ATOL, errors


@pytest.mark.long
def test_what_onnx_runtime_does_not_accept_is_refused(tmp_path):
  if not _ONNX.exists():
    pytest.skip("no .venv-onnx; `make .venv-onnx` makes it")
  done = _in_runtime(tmp_path, "bfloat16", "model")
  assert done.returncode == 1 and not list(tmp_path.iterdir())
  assert "ONNX Runtime does not accept" in done.stderr


def _in_runtime(folder, name, *graphs):
  """Runs `_IN_RUNTIME` in the second environment."""
  root = pathlib.Path(processes.ROOT)
  folders = root, root / "tests/helpers", pathlib.Path(__file__).parent
  return subprocess.run(
    [_ONNX, "-c", _IN_RUNTIME, folder, name, *graphs],
    capture_output=True,
    text=True,
    env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))},
  )


def test_the_message_has_a_target_of_the_makefile():
  makefile = pathlib.Path(processes.ROOT, "Makefile").read_text()
  assert "\n.venv-onnx:" in makefile
  assert "make .venv-onnx" in onnx_files.MISSING
  # The same packages where there is no checkout, and so no make.
  command = onnx_files.MISSING.partition("--no-deps ")[2].partition("`")[0]
  installed = makefile.partition("--no-deps")[2].partition("$(ONNX)")[0]
  assert shlex.split(command) == shlex.split(installed.replace("\\\n", " "))
