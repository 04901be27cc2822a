"""Which names a source imports, in the words of a checkout."""

import ast
import re
from collections.abc import Iterator


def of(source: str, package: str = "") -> Iterator[tuple[str, str]]:
  """Yields pairs of a module, by its absolute name, and what is taken from it.

  `capjax.kernels` and `capjax.experiments` are other names of the folders
  beside `capjax`, which are given. `import a` takes nothing: ("a", "").

  Args:
    source: the text of a module.
    package: the package it is in, which relative imports start from.
  """
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      yield from ((_beside(alias.name), "") for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      parents = package.split(".")
      base = parents[: len(parents) - node.level + 1] if node.level else []
      module = ".".join([*base, *([node.module] if node.module else [])])
      for alias in node.names:
        beside = _beside(f"{module}.{alias.name}")
        yield beside.rpartition(".")[0], alias.name


def _beside(name):
  return re.sub(r"^capjax\.(?=(kernels|experiments)(\.|$))", "", name)
