"""A section for each public module of a package, so that no page lists them."""

import importlib
import pkgutil

from docutils import nodes
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


class Submodules(SphinxDirective):
  """`.. submodules:: PACKAGE`: its modules, each with all of its names."""

  required_arguments = 1

  def run(self) -> list[nodes.Node]:
    text = "\n".join(
      f"``{name}``\n{'-' * (len(name) + 4)}\n\n.. automodule:: {name}\n"
      for name in public(self.arguments[0])
    )
    return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(app: Sphinx) -> dict:
  app.add_directive("submodules", Submodules)
  return {"parallel_read_safe": True, "parallel_write_safe": True}
