"""Signatures of modules, which the metaclass of Flax hides.

`inspect.signature(CapsNet)` would be `(*args, **kwargs)`, and notebooks would
show this signature while a call is typed.
"""

import inspect
import sys
from typing import Any

from flax import nnx


class _OfInit:
  """Gives a class the signature of its `__init__`; its instances get none."""

  def __get__(self, instance: Any, owner: type) -> inspect.Signature:
    if instance is not None:  # its signature is that of `__call__`
      raise AttributeError("__signature__")
    of_init = inspect.signature(owner.__init__)  # type: ignore[misc]
    return of_init.replace(parameters=[*of_init.parameters.values()][1:])


def show() -> None:
  """Gives all modules of this package, imported so far, their signature."""
  for name, module in tuple(sys.modules.items()):
    if not name.startswith("capjax."):
      continue
    for value in vars(module).values():
      if isinstance(value, type) and issubclass(value, nnx.Module):
        if value.__module__ == name:
          value.__signature__ = _OfInit()  # type: ignore[attr-defined]
