"""Models as data: the class, or function, and the arguments that make one.

A run writes the spec of its model as JSON, from which its structure can be made
again without the run's flags.
"""

import dataclasses
import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from capjax.kernels import checks

_PACKAGE = "capjax."
# The import paths of models in older runs.
_MOVED = {
  "capjax.amortised": "capjax.generative.amortised",
  "capjax.boltzmann": "capjax.energy.rbm",
  "capjax.constellation": "capjax.scae.constellation",
  "capjax.generative": "capjax.generative.model",
  "capjax.helmholtz": "capjax.energy.helmholtz",
  "capjax.layers.attention": "capjax.layers.set_transformer",
  "capjax.scae": "capjax.scae.autoencoder",
}
# The arguments in older runs, by class, that have another name now.
_RENAMED = {
  "capjax.energy.rbm.CapsuleRBM": {"visible_shape": "image_shape"},
  "capjax.energy.helmholtz.CapsuleHM": {"visible_shape": "image_shape"},
}
# Cached shapes by maker, arguments and default dtype: they are needed often
# when a run starts, and take as long to trace as the model.
_SHAPES: dict[tuple[Callable[..., nnx.Module], str, str], nnx.Module] = {}


@dataclasses.dataclass(frozen=True)
class Spec:
  """A model as data: its class and the arguments to construct it.

  Attributes:
    maker: a class of this package, or a function, that takes `arguments` and
      `rngs` by keyword and returns a module.
    arguments: values that JSON can hold, or numbers of NumPy.

  Raises:
    TypeError: if `maker` does not take one of the arguments.
  """

  maker: Callable[..., nnx.Module]
  arguments: dict[str, Any]

  def __post_init__(self):
    known = self._parameters()
    if any(x.kind is x.VAR_KEYWORD for x in known.values()):
      return
    for name in self.arguments.keys() - known.keys():
      remedy = checks.did_you_mean(name, known).rstrip() or "leave it out."
      maker = getattr(self.maker, "__name__", repr(self.maker))
      raise TypeError(f"{name} is no argument of {maker}; {remedy}")

  def with_arguments(self, **changed: Any) -> "Spec":
    """The spec with some arguments added or replaced."""
    return Spec(self.maker, changed | self.arguments | changed)

  def argument(self, name: str) -> Any:
    """The value of an argument; where the spec has none, the default.

    Args:
      name: of an argument of `maker`.

    Raises:
      KeyError: if `maker` takes no such argument, or has no default for it.
    """
    if name in self.arguments:
      return self.arguments[name]
    default = self._parameters()[name].default
    if default is inspect.Parameter.empty:
      raise KeyError(name)
    return default

  def make(self, rngs: nnx.Rngs) -> nnx.Module:
    """Constructs the model, with initialised parameters.

    Args:
      rngs: its `params` stream initialises the parameters.
    """
    return self.maker(**self.arguments, rngs=rngs)

  def _parameters(self) -> Mapping[str, inspect.Parameter]:
    maker = self.maker
    function: Callable = maker
    if isinstance(maker, type):  # whose signature is that of Flax's metaclass
      function = maker.__init__  # type: ignore[misc]  # this class's own
    return inspect.signature(function).parameters

  def shapes(self) -> nnx.Module:
    """The model with shapes and dtypes in place of arrays; fast, no memory."""
    try:
      arguments = json.dumps(self.arguments, sort_keys=True)
    except TypeError:  # such as a function
      return self._traced()
    key = self.maker, arguments, str(jnp.result_type(float))
    if key not in _SHAPES:
      _SHAPES[key] = self._traced()
    # A copy, whose mode the caller may change.
    return jax.tree.map(lambda x: x, _SHAPES[key])

  def _traced(self) -> nnx.Module:
    return nnx.eval_shape(lambda: self.make(nnx.Rngs(0)))

  def as_json(self) -> dict[str, Any]:
    """Describes the spec: the import path as `class`, and `arguments`.

    Raises:
      TypeError: if JSON cannot hold an argument, such as a function.
    """
    path = f"{self.maker.__module__}.{self.maker.__qualname__}"
    arguments = {}
    for name, value in self.arguments.items():
      try:
        arguments[name] = plain(value)
      except TypeError:
        raise TypeError(
          f"{name} of {path} is {value!r}, which JSON cannot hold; give a name "
          "instead, or make the model in code and restore its state with "
          "nnx.update."
        ) from None
    return {"class": path, "arguments": arguments}


def plain(value: Any) -> Any:
  """Converts a value to the form that JSON would read back.

  Numbers of NumPy become numbers of Python, tuples become lists.

  Args:
    value: numbers, text, None, and lists, tuples and dictionaries of them.

  Raises:
    TypeError: if JSON cannot hold it.
  """
  return json.loads(json.dumps(value, default=_numbers))


def _numbers(value: Any) -> Any:
  if isinstance(value, np.generic):
    return value.item()
  raise TypeError(f"JSON cannot hold a {type(value).__name__}")


def current_path(path: str) -> str:
  """The present import path of a class that an older run names.

  Args:
    path: an old or present import path, such as `capjax.boltzmann.CapsuleRBM`.

  Returns:
    The present path, such as `capjax.energy.rbm.CapsuleRBM`; `path` itself if
    the class has not moved.
  """
  module, _, name = path.rpartition(".")
  return f"{_MOVED.get(module, module)}.{name}"


def current(described: Mapping[str, Any]) -> dict[str, Any]:
  """A description with the present names of its class and of the arguments.

  Args:
    described: made by `Spec.as_json`, maybe of an older version; other entries
      are kept.
  """
  path = current_path(str(described.get("class")))
  names = _RENAMED.get(path, {})
  arguments = {
    names.get(name, name): value
    for name, value in described.get("arguments", {}).items()
  }
  return {**described, "class": path, "arguments": arguments}


def from_json(described: Mapping[str, Any]) -> Spec:
  """Makes the spec that `Spec.as_json` described.

  Lists, which JSON has in place of tuples, become tuples.

  Args:
    described: has `class` and `arguments`; other entries are ignored.

  Raises:
    TypeError: if the class does not take one of the arguments.
    ValueError: if the class is not of this package. Other classes are refused,
      since their code would be run.
  """
  described = current(described)
  path = described["class"]
  module, _, name = path.rpartition(".")
  # Only modules of this package may be imported.
  if module.startswith(_PACKAGE) and name.isidentifier():
    try:
      maker = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError:
      maker = None
    if callable(maker):
      return Spec(maker, _with_tuples(described["arguments"]))
  raise ValueError(
    f"class {path!r} is no model of {_PACKAGE[:-1]}; give one such as "
    "capjax.capsnet.CapsNet, or keep the state of a model of your own by "
    "named_tensors.of_model."
  )


def _with_tuples(value: Any) -> Any:
  if isinstance(value, Mapping):
    return {name: _with_tuples(x) for name, x in value.items()}
  if isinstance(value, list | tuple):
    return tuple(map(_with_tuples, value))
  return value
