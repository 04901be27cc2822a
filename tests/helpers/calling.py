"""Calls a function of a module that no other test of this process may import.

Benchmarks share names of flags: `step_cost.in_process(calling.call, ...)`.
"""

import importlib
from typing import Any


def call(module: str, name: str, *arguments: Any) -> Any:
  """The result of `module.name(*arguments)`."""
  return getattr(importlib.import_module(module), name)(*arguments)
