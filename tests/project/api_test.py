"""What the code promises as a whole: layers, names, documentation."""

import ast
import configparser
import pathlib
import re
import subprocess

import imports
import processes
from absl.testing import absltest, parameterized

import capjax
import kernels
from capjax import _version

_ROOT = processes.ROOT
_LAYERS = ("kernels", "capjax", "experiments")
# What a layer must not import; a dot stands for a module inside a package.
_FORBIDDEN = {
  "kernels": ("capjax", "experiments", "tests", "flax", "optax", "absl"),
  "capjax": ("experiments", "tests", "absl", "optax"),
  "experiments": ("tests",),
}
_EXCEPTIONS = {("capjax/losses/classification.py", "optax")}
# Arguments that read as part of the name, given by position or by keyword.
_POSITIONAL_DEFAULTS = {
  ("kernels/geometry.py", "pose_matrix", "kind"),
  ("kernels/rendering/warping.py", "warp", "canvas"),
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _name(path):
  return path.relative_to(_ROOT).as_posix()


def _files(*folders):
  return [
    path
    for folder in folders
    for path in sorted((_ROOT / folder).rglob("*.py"))
  ]


def _tracked_files():
  """All python files under version control, or in our folders without it."""
  try:
    listed = subprocess.run(
      ["git", "-C", _ROOT, "ls-files", "*.py"],
      check=True,
      capture_output=True,
      text=True,
    ).stdout.split()
  except (OSError, subprocess.CalledProcessError):
    listed = []
  paths = {_ROOT / name for name in listed} | set(_files(*_LAYERS, "tests"))
  return sorted(path for path in paths if path.exists())


def forbidden_imports(name, source):
  """Returns the imports of a file that its layer must not have."""
  layer = name.split("/")[0]
  package = ".".join(name.split("/")[:-1])
  return sorted(
    {
      module
      for pair in imports.of(source, package)
      for module in (pair[0], ".".join(filter(None, pair)))
      for forbidden in _FORBIDDEN[layer]
      if module.split(".")[0] == forbidden
      and (name, forbidden) not in _EXCEPTIONS
    }
  )


def uses_of_jit(source):
  """Returns the lines that speak of `jit`, imported or as an attribute."""
  lines = set()
  for node in ast.walk(ast.parse(source)):
    names = []
    if isinstance(node, ast.Attribute):
      names = [node.attr]
    elif isinstance(node, ast.ImportFrom):
      names = [alias.name for alias in node.names]
    if {"jit", "pjit"} & set(names):
      lines.add(node.lineno)
  return sorted(lines)


def _public(tree):
  """Yields public functions and classes of a module, and public methods."""
  for node in tree.body:
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
      if node.name.startswith("_"):
        continue
      yield node.name, node
      for child in getattr(node, "body", ()):
        if isinstance(node, ast.ClassDef) and isinstance(child, _FUNCTIONS):
          if not child.name.startswith("_"):
            yield f"{node.name}.{child.name}", child


def undocumented(source):
  tree = ast.parse(source)
  names = [name for name, node in _public(tree) if not ast.get_docstring(node)]
  return names if ast.get_docstring(tree) else ["module", *names]


def unannotated(source):
  """Returns `function.parameter` without annotation or with a bare array."""
  found = []
  for name, node in _public(ast.parse(source)):
    if not isinstance(node, _FUNCTIONS):
      continue
    arguments = node.args
    parameters = [
      *arguments.posonlyargs,
      *arguments.args,
      *arguments.kwonlyargs,
      *filter(None, [arguments.vararg, arguments.kwarg]),
    ]
    annotations = {p.arg: p.annotation for p in parameters if p.arg != "self"}
    annotations["return"] = node.returns
    for argument, annotation in annotations.items():
      text = ast.unparse(annotation) if annotation else ""
      if not text or re.search(r"(^|\| )(\w+\.)?(ndarray|Array)\b", text):
        found.append(f"{name}.{argument}")
  return found


def positional_defaults(source):
  """Returns (function, argument) of defaults that need no keyword."""
  return [
    (name, argument.arg)
    for name, node in _public(ast.parse(source))
    if isinstance(node, _FUNCTIONS) and node.args.defaults
    for argument in [*node.args.posonlyargs, *node.args.args][
      -len(node.args.defaults) :
    ]
  ]


def machine_paths(source):
  """Returns the absolute paths of one machine that a file names."""
  # In two parts, so that this file passes its own test.
  start = re.compile("/" + "(work|root|home)(/|$)")
  return [
    node.value
    for node in ast.walk(ast.parse(source))
    if isinstance(node, ast.Constant)
    and isinstance(node.value, str)
    and start.match(node.value)
  ]


class ApiTest(parameterized.TestCase):
  @parameterized.parameters(*_LAYERS)
  def test_imports_run_downwards(self, layer):
    self.assertNotEmpty(_files(layer))
    for path in _files(layer):
      found = forbidden_imports(_name(path), path.read_text())
      self.assertEmpty(found, f"{_name(path)} imports {found}")

  @parameterized.parameters(
    ("kernels/a.py", "import capjax"),
    ("kernels/a.py", "from capjax.losses import margin_loss"),
    ("kernels/a.py", "import flax.nnx as nnx"),
    ("kernels/a.py", "def f():\n  from absl import flags"),
    ("kernels/pallas/a.py", "import optax"),
    ("capjax/data/a.py", "from experiments.run import directory"),
    ("capjax/a.py", "from capjax.experiments.run import directory"),
    ("capjax/a.py", "from capjax import experiments"),
    ("capjax/a.py", "import optax"),
    ("capjax/a.py", "from absl import logging"),
    ("experiments/a.py", "from tests import api_test"),
  )
  def test_upward_import_is_found(self, name, source):
    self.assertNotEmpty(forbidden_imports(name, source))

  @parameterized.parameters(
    ("kernels/a.py", "import jax\nfrom kernels import numerics"),
    ("kernels/pallas/a.py", "from .. import numerics\nfrom . import b"),
    ("capjax/losses/classification.py", "import optax"),
    ("capjax/a.py", "from kernels import routing\nfrom flax import nnx"),
    ("capjax/a.py", "from capjax.kernels import routing"),
    ("experiments/a.py", "import optax, capjax, kernels\nfrom absl import app"),
  )
  def test_downward_import_passes(self, name, source):
    self.assertEmpty(forbidden_imports(name, source))

  def test_kernels_leave_jit_to_the_caller(self):
    for path in _files("kernels"):
      self.assertEmpty(uses_of_jit(path.read_text()), _name(path))

  @parameterized.parameters(
    "@jax.jit\ndef f(x): return x",
    "f = functools.partial(jax.jit, static_argnums=0)",
    "from jax import jit",
  )
  def test_jit_is_found(self, source):
    self.assertNotEmpty(uses_of_jit(source))

  def test_everything_public_is_documented(self):
    for path in _files("kernels", "capjax"):
      found = undocumented(path.read_text())
      self.assertEmpty(found, f"{_name(path)}: {found} without docstring")

  def test_kernels_state_their_shapes(self):
    for path in _files("kernels"):
      found = unannotated(path.read_text())
      self.assertEmpty(found, f"{_name(path)}: {found} without annotation")

  def test_defaults_of_kernels_are_keyword_only(self):
    for path in _files("kernels"):
      found = [
        (function, argument)
        for function, argument in positional_defaults(path.read_text())
        if (_name(path), function, argument) not in _POSITIONAL_DEFAULTS
        and argument != "axis"
      ]
      self.assertEmpty(found, f"{_name(path)}: {found} not keyword-only")

  @parameterized.parameters(
    (undocumented, '"""Module."""\ndef f(): return 1'),
    (undocumented, '"""Module."""\nclass A:\n  """A."""\n  def f(self): pass'),
    (undocumented, 'def f():\n  """F."""'),
    (unannotated, "def f(x) -> int: pass"),
    (unannotated, "def f(x: int): pass"),
    (unannotated, "def f(*, x=1) -> int: pass"),
    (unannotated, "def f(x: jax.Array) -> int: pass"),
    (unannotated, "def f(x: Array | None) -> int: pass"),
    (unannotated, "def f(x: int) -> np.ndarray: pass"),
    (positional_defaults, "def f(x, y=1): pass"),
    (machine_paths, "x = '/" + "home/me'"),
    (machine_paths, "x = open('/" + "root')"),
  )
  def test_broken_source_is_found(self, check, source):
    self.assertNotEmpty(check(source))

  @parameterized.parameters(
    (undocumented, '"""Module."""\ndef f():\n  """F."""\ndef _g(): pass'),
    (unannotated, 'def f(x: Float[Array, "I J"] | None, *, y: int) -> A: pass'),
    (unannotated, "def _f(x): pass"),
    (positional_defaults, "def f(x, *, y=1): pass"),
    (machine_paths, "x = 'a/home/b', '/homes', '/tmp'"),
  )
  def test_sound_source_passes(self, check, source):
    self.assertEmpty(check(source))

  def test_no_file_names_a_place_on_one_machine(self):
    for path in _tracked_files():
      self.assertEmpty(machine_paths(path.read_text()), _name(path))

  @parameterized.parameters(kernels, capjax)
  def test_packages_list_their_modules(self, package):
    folder = pathlib.Path(package.__file__).parent
    modules = {path.stem for path in folder.glob("[a-z]*.py")}
    self.assertEmpty(modules - set(package.__all__) - {"experiments"})
    self.assertEqual(package.__all__, sorted(package.__all__))
    for name in package.__all__:
      self.assertTrue(hasattr(package, name), name)

  def test_version_is_the_newest_in_the_changelog(self):
    changelog = _ROOT / "CHANGELOG.md"
    if not changelog.exists():
      self.skipTest("no CHANGELOG.md")
    config = configparser.ConfigParser()
    config.read(_ROOT / "setup.cfg")
    newest = re.search(r"^##+\s+\[?v?(\d[^\s\]]*)", changelog.read_text(), re.M)
    self.assertIsNotNone(newest, "no '## <version>' heading")
    self.assertEqual(newest[1].rstrip(":"), config["metadata"]["version"])
    self.assertEqual(
      capjax.__version__,
      config["metadata"]["version"],
      "the installed package is older: pip install -e .",
    )

  def test_version_of_what_is_not_installed_is_unknown(self):
    self.assertEqual(_version.installed("a-package-of-no-name"), "unknown")


if __name__ == "__main__":
  absltest.main()
