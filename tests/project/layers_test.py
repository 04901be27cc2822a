"""Which modules import which: layers, no circles, and no flags where none are.

The tree is that of WORKSPACE.md.
"""

import ast
import graphlib
import subprocess
import sys

import imports
import processes
import pytest

# What each folder of `experiments` may import of the others; binaries, all.
MAY_IMPORT = {
  "run": set(),
  "training": {"run"},
  "figures": set(),
  "evaluation": {"run", "training", "figures"},
  "tasks": {"run", "training", "evaluation"},
  "flags": {"run", "training"},
  "records": {"run", "evaluation"},
  "benchmarks": {"flags", "run", "training"},
  "pipeline": {"run", "training", "evaluation", "figures"},
  "fitting": {"run", "training", "pipeline"},
  "launch": {"flags", "run", "training", "evaluation", "pipeline"},
}
PACKAGES = ("kernels", "capjax", "experiments")
WITHOUT_FLAGS = (
  "run", "training", "evaluation", "figures", "records", "tasks", "pipeline",
  "fitting",
)  # fmt: skip


def modules():
  """The path of every module of the packages, by its name."""
  found = {}
  for package in PACKAGES:
    for path in (processes.ROOT / package).rglob("*.py"):
      parts = path.relative_to(processes.ROOT).with_suffix("").parts
      name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
      found[name] = path
  return found


def imported(source, package, known):
  """The modules of ours that a source imports, wherever in it."""
  pairs = imports.of(source, package)
  inside = {(module, f"{module}.{name}") for module, name in pairs}
  return {x if x in known else module for module, x in inside} & known


def graph():
  found = modules()
  return {
    name: imported(path.read_text(), package_of(name, path), set(found))
    - {name}
    for name, path in found.items()
  }


def package_of(name, path):
  return name if path.name == "__init__.py" else name.rpartition(".")[0]


def test_no_imports_form_a_circle():
  assert len(tuple(graphlib.TopologicalSorter(graph()).static_order())) > 100


def test_a_circle_is_found():
  taken = imported("from . import b", "p", {"p", "p.a", "p.b"})
  circle = {"p.a": taken, "p.b": {"p.a"}}
  with pytest.raises(graphlib.CycleError):
    tuple(graphlib.TopologicalSorter(circle).static_order())


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_folders_of_experiments_import_one_way(folder):
  for name, names in graph().items():
    if name.split(".")[:2] == ["experiments", folder]:
      others = {x.split(".")[1] for x in names if x.startswith("experiments.")}
      assert others <= MAY_IMPORT[folder] | {folder}, name


def test_every_folder_of_experiments_has_its_layer():
  folders = {
    path.name
    for path in (processes.ROOT / "experiments").iterdir()
    if (path / "__init__.py").exists()
  }
  assert folders | {"pipeline", "fitting", "launch"} == MAY_IMPORT.keys()


@pytest.mark.parametrize("package", ["absl.flags", "absl"])
def test_only_binaries_and_flags_read_flags(package):
  for name, path in modules().items():
    if name.split(".")[:1] == ["experiments"] and (
      name.split(".")[1:2] and name.split(".")[1] in WITHOUT_FLAGS
    ):
      for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "absl":
          assert {x.name for x in node.names} <= {"logging"}, name
        elif isinstance(node, ast.Import):
          assert package not in {x.name for x in node.names}, name


def test_what_has_no_flags_imports_none():
  """In a process of its own, since other tests import binaries."""
  names = [
    name
    for name in modules()
    if f"{name}.".startswith(tuple(f"experiments.{x}." for x in WITHOUT_FLAGS))
  ]
  assert len(names) > 40
  lines = (
    "import importlib, sys",
    "from absl import flags",
    "for name in sys.argv[1:]: importlib.import_module(name)",
    "ours = [x for x in flags.FLAGS.flags_by_module_dict()"
    " if x.startswith('experiments')]",
    "sys.exit(', '.join(ours) or 0)",
  )
  done = subprocess.run(
    [sys.executable, "-c", "\n".join(lines), *names],
    cwd=processes.ROOT, capture_output=True, text=True,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
