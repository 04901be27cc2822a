"""What the wheel holds, and that it works beside a package called `kernels`."""

import ast
import os
import pathlib
import subprocess
import sys
import sysconfig
import tarfile
import zipfile

import image_files
import processes
import pytest
from PIL import Image

pytestmark = pytest.mark.long
_BESIDE = ("kernels", "experiments")
# They stand for the packages of the same names in a checkout.
_LEFT_OUT = {
  "capjax/kernels.py",
  "capjax/experiments.py",
  "capjax/_checkout.py",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
  """The folder of a wheel, which was built from a source distribution."""
  folder = tmp_path_factory.mktemp("dist")
  _run("-m", "build", "--outdir", folder, processes.ROOT)
  return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
  """A folder where the wheel lies beside a foreign package `kernels`."""
  folder = tmp_path_factory.mktemp("site")
  (wheel,) = built.glob("*.whl")
  _run(
    "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, wheel
  )
  (folder / "kernels").mkdir()
  (folder / "kernels" / "__init__.py").write_text("foreign = True\n")
  return folder


def _run(*words, **options):
  done = subprocess.run(
    [sys.executable, *map(str, words)],
    capture_output=True,
    text=True,
    **options,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


def _in_the_tree():
  """The files of the packages, by their place in the wheel."""
  names = {"capjax/py.typed"}
  for folder in ("capjax", *_BESIDE):
    inner = "capjax/" if folder in _BESIDE else ""
    names |= {
      inner + path.relative_to(processes.ROOT).as_posix()
      for pattern in ("*.py", "presets/*/*.cfg", "pretrained/*.[js]*")
      for path in (processes.ROOT / folder).rglob(pattern)
    }
  return names - _LEFT_OUT


def test_the_wheel_claims_one_name_and_holds_every_file(built):
  (wheel,) = built.glob("*.whl")
  names = set(zipfile.ZipFile(wheel).namelist())
  assert {name.partition("/")[0].partition("-")[0] for name in names} == {
    "capjax"
  }
  assert {x for x in names if ".dist-info/" not in x} >= _in_the_tree()
  assert not names & _LEFT_OUT
  (source,) = built.glob("*.tar.gz")
  inside = {x.partition("/")[2] for x in tarfile.open(source).getnames()}
  assert inside >= {"kernels/routing/dynamic.py", "setup.py", "LICENSE"}


def test_its_description_is_valid(built):
  _run("-m", "twine", "check", "--strict", *built.iterdir())


@pytest.mark.parametrize("order", ["capjax, kernels", "kernels, capjax"])
def test_a_foreign_package_called_kernels_is_left_alone(
  installed, tmp_path, order
):
  code = (
    f"import {order}\n"
    "import capjax.kernels.routing.dynamic as inner\n"
    "assert kernels.foreign and inner.dynamic_routing\n"
    "print(capjax.__file__, inner.__file__)"
  )
  printed = _run("-c", code, cwd=tmp_path, env=_environment(installed))
  assert all(x.startswith(str(installed)) for x in printed.split())


def test_the_command_trains_a_preset_anywhere(installed, tmp_path):
  words = (
    "train", "capsnet", "--preset=digits", "--num_steps=2", "--eval_every=1",
    "--num_validation=64",
  )  # fmt: skip
  run = tmp_path / "run"
  code = "from capjax.experiments import cli; cli.main()"
  options = {"cwd": tmp_path, "env": _environment(installed)}
  _run("-c", code, *words, f"--workdir={run}", **options)
  summary = processes.summary_of(run)
  assert summary["preset"] == "digits"
  assert summary["commit"] == "unknown"
  assert (
    "--flagfile=experiments/presets/capsnet/digits.cfg" in (summary["command"])
  )
  _run("-c", code, "evaluate", f"--workdir={run}", **options)
  assert processes.evaluation_of(run)["accuracy"]


def test_a_first_model_goes_from_image_files_to_onnx(installed, tmp_path):
  python = processes.ROOT / ".venv-onnx/bin/python"
  if not python.exists():
    pytest.skip("there is no ONNX Runtime: make .venv-onnx")
  script = processes.ROOT / "examples" / "first_model.py"
  assert len(script.read_text().splitlines()) <= 30
  image_files.write(
    tmp_path / "images",
    {"cat": 60, "dog": 60, "owl": 60},
    height=16,
    mode="RGB",
  )
  done = subprocess.run(
    [python, script, "images", *processes.SMALL, "--num_steps=4",
     "--image_size=12,14"],
    cwd=tmp_path, env=_environment(installed), capture_output=True, text=True,
  )  # fmt: skip
  assert done.returncode == 0, done.stdout + done.stderr
  with Image.open(tmp_path / "moved.png") as moved:
    assert (moved.size, moved.mode) == ((4 * 14, 12), "RGB")
  named, in_onnx = done.stdout.splitlines()[-2:]
  order = ["cat", "dog", "owl"]
  found = [order[int(x)] for x in in_onnx.strip("[]").split()]
  assert ast.literal_eval(named) == found and len(found) == 4


@pytest.mark.parametrize(
  "first, second",
  [("kernels", "capjax.kernels"), ("capjax.kernels", "kernels")],
)
def test_in_a_checkout_both_names_are_one_module(first, second):
  code = (
    f"import {first}.routing.dynamic, {second}.routing.dynamic\n"
    "import capjax.kernels, kernels\n"
    "assert capjax.kernels is kernels\n"
    "assert capjax.kernels.routing.dynamic is kernels.routing.dynamic\n"
    "from capjax.kernels.rendering import warping as a\n"
    "from kernels.rendering import warping as b\n"
    "assert a is b and a.__spec__.name == a.__name__"
  )
  _run("-c", code, cwd=processes.ROOT)


_CONSUMER = """
import jax
import numpy as np
from flax import nnx

import capjax
from capjax.kernels import routing


def route(votes: jax.Array) -> jax.Array:
  return routing.dynamic_routing(votes, num_iterations=2).activations


model = capjax.CapsNet((8, 8, 1), 3, rngs=nnx.Rngs(0))
trained = capjax.load("model.safetensors")
reveal_type(model(jax.numpy.zeros((1, 8, 8, 1))).poses)
reveal_type(trained.predict(np.zeros((1, 8, 8, 1), np.uint8)).classes)
routing.dynamic_routing(jax.numpy.ones((2, 2, 2)), num_iterations="2")
"""


def test_code_that_uses_the_wheel_is_checked_by_types(built, tmp_path):
  """Of three lines that tell, the last has a fault."""
  _run("-m", "venv", "--without-pip", tmp_path / "venv")
  python = tmp_path / "venv" / "bin" / "python"
  words = "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"
  _run(*words, *built.glob("*.whl"))
  # The other packages are those of this environment.
  (site,) = (tmp_path / "venv" / "lib").glob("*/site-packages")
  (site / "rest.pth").write_text(sysconfig.get_path("purelib"))
  path = tmp_path / "consumer.py"
  path.write_text(_CONSUMER)
  done = subprocess.run(
    [
      sys.executable, "-m", "mypy", "--strict", "--python-executable", python,
      "--cache-dir", tmp_path / "cache", path,
    ],
    cwd=tmp_path, capture_output=True, text=True,
  )  # fmt: skip
  told = [line.partition(": ")[2] for line in done.stdout.splitlines()]
  assert len(told) == 4, done.stdout + done.stderr
  assert 'Revealed type is "jax' in told[0]
  assert "ndarray" in told[1]
  assert 'Argument "num_iterations"' in told[2] and "[arg-type]" in told[2]


def _environment(folder: pathlib.Path):
  return os.environ | {"PYTHONPATH": str(folder)}
