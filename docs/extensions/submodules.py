"""A section for each public module of a package, so that no page lists them."""

import importlib
import pkgutil
import re

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def public(package: str) -> list[str]:
  """The modules of a package that are no packages, by name."""
  folder = importlib.import_module(package).__path__
  return [
    f"{package}.{found.name}"
    for found in pkgutil.iter_modules(folder)
    if not (found.ispkg or found.name.startswith("_"))
  ]


def _defined(name: str, asked: list[str]) -> list[str]:
  """The names that a module defines itself."""
  module = importlib.import_module(name)
  found = {x: getattr(module, x, None) for x in asked}
  return [
    x for x, value in found.items() if getattr(value, "__module__", "") == name
  ]


class Submodules(SphinxDirective):
  """`.. submodules:: PACKAGE`: its modules, each with all of its names.

  `:members: A, B` shows of each module those of these names that it defines,
  and no module without one.
  """

  required_arguments = 1
  option_spec = {"members": directives.unchanged_required}

  def run(self) -> list[nodes.Node]:
    text = "\n".join(map(self._section, public(self.arguments[0])))
    return self.parse_text_to_nodes(text, allow_section_headings=True)

  def _section(self, name: str) -> str:
    line = f".. automodule:: {name}\n"
    if "members" in self.options:
      defined = _defined(name, re.split(r",\s*", self.options["members"]))
      if not defined:
        return ""
      line += f"   :members: {', '.join(defined)}\n"
    return f"``{name}``\n{'-' * (len(name) + 4)}\n\n{line}"


def setup(app: Sphinx) -> dict:
  app.add_directive("submodules", Submodules)
  return {"parallel_read_safe": True, "parallel_write_safe": True}
