"""Makes tasks from records, to measure models of runs without flags."""

import importlib
import typing
from collections.abc import Mapping
from typing import Any

import optax

from capjax import specs

from ..training.task import Task


def task_of(card: Mapping[str, Any], record: Mapping[str, Any]) -> Task:
  """The task that a model was trained for, for measuring it, not for training.

  What JSON cannot hold, such as a schedule of temperatures, has its default.

  Args:
    card: of the model; see `saved.make_card`.
    record: as `Task.record` gives it.

  Raises:
    ValueError: if there is no such task, or its options have changed.
  """
  try:
    module = importlib.import_module(f".{record['task']}", __package__)
    make_task = module.make_task
    hints = typing.get_type_hints(make_task)
    options = {
      name: _restored(hints.get(name), value)
      for name, value in record["options"].items()
    }
    return make_task(specs.from_json(card), optax.identity(), **options)
  except (AttributeError, KeyError, ModuleNotFoundError, TypeError) as error:
    raise ValueError(
      f"the task {record.get('task')!r} of a run cannot be made by this "
      f"version of capjax ({error}); measure its model in Python, with "
      "capjax.load"
    ) from error


def _restored(hint: Any, value: Any) -> Any:
  """A value of JSON; a NamedTuple where the annotation has one."""
  kinds = [x for x in (hint, *typing.get_args(hint)) if hasattr(x, "_fields")]
  return kinds[0](**value) if kinds and isinstance(value, dict) else value
