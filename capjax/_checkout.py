"""Imports the packages next to `capjax` in a checkout under two names.

An installed wheel has the packages `capjax.kernels` and `capjax.experiments`. A
checkout has `kernels` and `experiments` next to `capjax`, importable under
these names too. Here both names refer to the same module objects: two copies
would be two types `RoutingOutput`, and two definitions of every flag.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
import types
from typing import Any

_ROOT = pathlib.Path(__file__).resolve().parents[1]


def package(name: str) -> types.ModuleType:
  """Imports the package in the folder `name` beside `capjax`.

  The package is entered in `sys.modules` as `capjax.NAME`. It is also entered
  as `NAME`, unless another package of that name can be imported.

  Args:
    name: `kernels` or `experiments`.

  Returns:
    The package.
  """
  inner = f"{__package__}.{name}"
  found = sys.modules.get(name) or importlib.util.find_spec(name)
  if found is None or not _is_ours(found, name):
    loaded = _load(inner, _ROOT / name)
    if found is None:
      _alias(name, inner)
    return loaded
  loaded = importlib.import_module(name)
  _alias(inner, name)
  return loaded


def _is_ours(
  found: types.ModuleType | importlib.machinery.ModuleSpec, name: str
) -> bool:
  paths = getattr(found, "__path__", None)
  paths = paths or getattr(found, "submodule_search_locations", None) or ()
  return _ROOT / name in [pathlib.Path(path).resolve() for path in paths]


def _load(name: str, folder: pathlib.Path) -> types.ModuleType:
  spec = importlib.util.spec_from_file_location(
    name, folder / "__init__.py", submodule_search_locations=[str(folder)]
  )
  assert spec is not None and spec.loader is not None  # of a file
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module
  spec.loader.exec_module(module)
  return module


def _alias(name: str, target: str) -> None:
  """Makes `name` another name of the package `target`, with its submodules."""
  sys.modules[name] = sys.modules[target]
  sys.meta_path.insert(0, _Alias(name, target))


class _Alias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Imports `name.x` as the module `target.x`."""

  def __init__(self, name: str, target: str):
    self.name = name
    self.target = target

  def find_spec(
    self,
    fullname: str,
    path: Any,
    target: types.ModuleType | None = None,
  ) -> importlib.machinery.ModuleSpec | None:
    """The spec of a submodule under its other name."""
    del path, target
    if not fullname.startswith(f"{self.name}."):
      return None
    return importlib.util.spec_from_loader(fullname, self)

  def create_module(
    self, spec: importlib.machinery.ModuleSpec
  ) -> types.ModuleType:
    """The module of the same name in the package `target`."""
    module = importlib.import_module(
      self.target + spec.name.removeprefix(self.name)
    )
    spec.loader_state = module.__spec__, module.__loader__
    return module

  def exec_module(self, module: types.ModuleType) -> None:
    """Restores attributes that the import system overwrote; runs nothing."""
    spec = module.__spec__
    assert spec is not None  # the one that `find_spec` made
    module.__spec__, module.__loader__ = spec.loader_state
