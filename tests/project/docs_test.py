"""The site: it is whole, it builds without a network, and its examples run."""

import ast
import doctest
import importlib
import inspect
import pathlib
import pkgutil
import re
import subprocess
import sys

import jax.typing
import numpy.typing
import processes
import pytest

import capjax
import kernels

ROOT = processes.ROOT
DOCS = ROOT / "docs"
PAGES = sorted(
  page.relative_to(DOCS).as_posix()
  for page in DOCS.rglob("*.md")
  if "build" not in page.parts and "```python\n" in page.read_text("utf-8")
)
# Their examples run in a test of their own, or need a run of the reader's.
_ELSEWHERE = {"building.md", "models.md"}
_ORIGIN = re.compile(
  r"""(?:src|href)=["']((?:https?:)?//[^"']+)|url\(["']?(https?:[^)"']+)"""
)
_LOADS = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*>")
sys.path.append(str(DOCS / "extensions"))


def _documented():
  """The modules that the reference documents with all of their names."""
  text = "\n".join(x.read_text() for x in (DOCS / "reference").glob("*.rst"))
  found = set(
    re.findall(r"^\.\. automodule:: (\S+)$(?!\n   :no-members:)", text, re.M)
  )
  for package in re.findall(r"^\.\. submodules:: (\S+)$", text, re.M):
    folder = importlib.import_module(package).__path__
    found |= {
      f"{package}.{module.name}" for module in pkgutil.iter_modules(folder)
    }
  return found


def _modules():
  """Modules of kernels and capjax that define something public."""
  for package in ("kernels", "capjax"):
    for path in sorted((ROOT / package).rglob("*.py")):
      name = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
      tree = ast.parse(path.read_text("utf-8"))
      if any(
        isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        for node in tree.body
      ):
        yield name.removesuffix(".__init__")


def test_every_module_has_its_place_in_the_reference():
  modules = set(_modules()) - {
    "capjax._checkout",
    "capjax._collection",
    "capjax._signatures",
    "capjax._version",
  }
  assert len(modules) > 50
  assert not modules - _documented()


def test_every_make_task_is_in_the_reference():
  documented = _documented()
  for path in (ROOT / "experiments" / "tasks").glob("*.py"):
    if "def make_task(" in path.read_text("utf-8"):
      assert f"experiments.tasks.{path.stem}" in documented, path.name


@pytest.mark.parametrize("package", [kernels, capjax], ids=lambda x: x.__name__)
def test_every_name_of_a_package_is_defined_in_a_documented_module(package):
  documented = _documented()
  names = {
    x for name in documented for x in vars(importlib.import_module(name))
  }
  pages = "".join(x.read_text() for x in (DOCS / "reference").iterdir())
  for name in package.__all__:
    module = f"{package.__name__}.{name}"
    known = name in names or module in documented or module in pages
    assert known or name in ("kernels", "compilation"), name


def test_pictures_are_small_and_in_the_gallery():
  text = (DOCS / "gallery.md").read_text()
  pictures = sorted((DOCS / "figures").glob("*.png"))
  assert 0 < len(pictures) <= 30
  for path in pictures:
    assert path.stat().st_size <= 150_000, path.name
    assert f"figures/{path.name}" in text, path.name


def test_deviations_are_read_from_docstrings():
  deviations = pytest.importorskip("deviations")

  rows = {name: how for name, _, how in deviations.found(ROOT / "kernels")}
  assert rows["kernels.routing.em.em_routing"].startswith("floors under R_j")
  assert "kernels.routing.dynamic.dynamic_routing" not in rows


@pytest.mark.parametrize("folder", ["kernels", "capjax"])
def test_every_deviation_has_the_form_that_is_collected(folder):
  told = [
    (path.name, line)
    for path in (ROOT / folder).rglob("*.py")
    for line in path.read_text("utf-8").splitlines()
    if line.strip(' "').startswith("Differs from")
  ]
  assert len(told) > 5
  assert [
    x for x in told if not re.search(r"from [^,:]+(\(.*\))?: \S", x[1])
  ] == []


def test_arrays_have_a_short_name_in_signatures():
  inspection = pytest.importorskip("sphinx.util.inspect")
  import array_like

  def function(x: tuple[numpy.typing.ArrayLike, int], y: jax.typing.ArrayLike):
    del x, y

  for unqualified in (True, False):  # the first is what the site asks for
    signature = inspection.stringify_signature(
      inspect.signature(function), unqualified_typehints=unqualified
    )
    assert "ArrayLike" not in signature
    assert array_like.short(signature) == (
      "(x: tuple[ArrayLike, int], y: ArrayLike)"
    )


def test_docstrings_become_plain_text():
  plain_docstrings = pytest.importorskip("plain_docstrings")

  lines = ["Scores `x` of |a|:", "  a = b*c", "as `vmap`ped.", "", "Args:"]
  assert plain_docstrings.plain([*lines, "  x: of `A`, *B."]) == [
    "Scores ``x``\\  of \\|a\\|:",
    *["", "::", "", "     a = b*c", ""],
    "as ``vmap``\\ ped.",
    "",
    "Args:",
    "  x: of ``A``\\ , \\*B.",
  ]


def _with_examples():
  """Names of the modules whose docstrings have examples."""
  return [
    name
    for name in _modules()
    if ">>> "
    in pathlib.Path(importlib.import_module(name).__file__).read_text()
  ]


@pytest.mark.parametrize("name", _with_examples())
def test_examples_of_docstrings_run(name):
  module = importlib.import_module(name)
  done = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
  assert done.attempted and not done.failed


@pytest.mark.long
@pytest.mark.parametrize("page", [x for x in PAGES if x not in _ELSEWHERE])
def test_examples_of_a_page_run(page):
  """In a process of its own: some set JAX up before it computes."""
  text = (DOCS / page).read_text("utf-8")
  examples = re.findall(r"```python\n(.*?)```", text, re.S)
  program = "".join(
    f"exec(compile({example!r}, '{page}, example {number}', 'exec'))\n"
    for number, example in enumerate(examples)
  )
  ended = subprocess.run(
    [sys.executable, "-"],
    input=program,
    capture_output=True,
    text=True,
    cwd=DOCS.parent,
  )
  assert ended.returncode == 0, ended.stderr


@pytest.mark.long
def test_the_site_builds_and_asks_no_other_origin(tmp_path):
  pytest.importorskip("sphinx_book_theme")
  done = subprocess.run(
    [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    + [str(DOCS), str(tmp_path)],
    cwd=ROOT, capture_output=True, text=True,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  assert not _other_origins(tmp_path)


def _other_origins(folder: pathlib.Path):
  """What the pages would load from elsewhere; links are no loads."""
  return sorted(
    {
      f"{path.name}: {origin}"
      for path in folder.rglob("*.html")
      for tag in _LOADS.findall(path.read_text("utf-8"))
      for origin in ("".join(x) for x in _ORIGIN.findall(tag))
      if 'rel="canonical"' not in tag
    }
  )


def test_what_is_loaded_from_elsewhere_is_found(tmp_path):
  page = tmp_path / "a.html"
  page.write_text('<a href="https://a.b/">x</a><img src="_images/a.png"/>')
  assert not _other_origins(tmp_path)
  page.write_text('<script src="https://a.b/c.js"></script>')
  assert _other_origins(tmp_path) == ["a.html: https://a.b/c.js"]


def test_every_picture_has_a_function_that_makes_it():
  files = "gallery.py", "figures/examples.py"
  trees = [ast.parse((ROOT / "experiments" / x).read_text()) for x in files]
  found = [x for tree in trees for x in tree.body]
  functions = {x.name for x in found if isinstance(x, ast.FunctionDef)}
  pictures = {path.stem for path in (DOCS / "figures").glob("*.png")}
  assert pictures < functions


def test_no_line_starts_with_a_placeholder():
  """Markdown would read a block of HTML there, and end the paragraph."""
  pages = [p for p in DOCS.rglob("*.md") if "build" not in p.parts]
  found = [
    f"{page.name}: {line}"
    for page in (*pages, ROOT / "README.md")
    for line in page.read_text("utf-8").splitlines()
    if line.lstrip().startswith("<!--=")
  ]
  assert len(pages) >= 30
  assert not found
