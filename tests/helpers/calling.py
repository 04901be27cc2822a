"""Calls a function of a benchmark in a process of its own.

Benchmarks define flags of the same names, so one process cannot import two of
them. Tests call `step_cost.in_process(calling.call, MODULE, NAME, ...)`.
"""

import importlib
from typing import Any


def call(module: str, name: str, *arguments: Any) -> Any:
  """The result of `module.name(*arguments)`."""
  return getattr(importlib.import_module(module), name)(*arguments)
