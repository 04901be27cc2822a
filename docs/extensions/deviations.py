"""A table of where the code differs from the papers, from the docstrings."""

import ast
import pathlib
import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = pathlib.Path(__file__).resolve().parents[2]
_DIFFERS = re.compile(
  r"^Differs from (?:the )?(\S.*?): (.+?)(?:\n\s*\n|\Z)", re.S | re.M
)
_DOCUMENTED = (ast.FunctionDef, ast.ClassDef, ast.Module)


def found(folder: pathlib.Path) -> list[tuple[str, str, str]]:
  """(name, from what it differs, how) of each docstring that says so.

  Args:
    folder: a package; names begin with its name.
  """
  rows = []
  for path in sorted(folder.rglob("*.py")):
    module = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
    tree = ast.parse(path.read_text("utf-8"))
    for name, node in _named(tree, module.removesuffix(".__init__")):
      text = ast.get_docstring(node) or ""
      for what, how in _DIFFERS.findall(text):
        how = " ".join(how.split())
        if not how.startswith("nothing"):
          rows.append((name, what, how))
  return rows


def _named(node, name):
  if isinstance(node, _DOCUMENTED):
    yield name, node
    for child in node.body:
      if isinstance(child, _DOCUMENTED):
        own = name if child.name == "__init__" else f"{name}.{child.name}"
        yield from _named(child, own)


class Deviations(SphinxDirective):
  """`{deviations}`: the table for kernels and capjax."""

  def run(self) -> list[nodes.Node]:
    rows = [x for name in ("kernels", "capjax") for x in found(ROOT / name)]
    group = nodes.tgroup(cols=3)
    table = nodes.table("", group, classes=["table"])
    for width in (3, 1, 6):
      group += nodes.colspec(colwidth=width)
    group += nodes.thead("", _row(("where", "from", "how it differs")))
    body = nodes.tbody()
    group += body
    for name, what, how in rows:
      body += _row((name, what, how), code=True)
    return [table]


def _row(cells, *, code=False):
  row = nodes.row()
  for n, text in enumerate(cells):
    inner = _paragraph(text) if n else nodes.paragraph()
    if not n:
      inner += nodes.literal("", text) if code else nodes.Text(text)
    row += nodes.entry("", inner)
  return row


def _paragraph(text):
  paragraph = nodes.paragraph()
  for n, part in enumerate(text.split("`")):
    paragraph += nodes.literal("", part) if n % 2 else nodes.Text(part)
  return paragraph


def setup(app: Sphinx) -> dict[str, bool]:
  """Adds the directive."""
  app.add_directive("deviations", Deviations)
  return {"parallel_read_safe": True, "parallel_write_safe": True}
