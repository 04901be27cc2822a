"""Converts the state of a model to named tensors, and back to a model.

Names are paths: attributes and indices, joined by dots.
"""

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from capjax import specs

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in memory, of a function
_DTYPES = ("dtype", "param_dtype", "preferred_element_type")  # attributes
_BRACKETS = str.maketrans("()", "[]")
_GENERATORS = ("threefry2x32", "rbg", "unsafe_rbg")  # of random keys, in JAX

Tensors = Mapping[str, np.ndarray]


def named(state: Any) -> dict[str, Any]:
  """The arrays or shapes of a state of Flax, by name.

  Args:
    state: a state of Flax, or any pytree.
  """
  leaves = jax.tree_util.tree_leaves_with_path(state)
  return {name_of(path): leaf for path, leaf in leaves}


def name_of(path: tuple[Any, ...]) -> str:
  """The name of an array by its path in a state.

  Args:
    path: keys of the pytree, as JAX gives them.
  """
  held = jax.tree_util.GetAttrKey("value")  # what a variable holds
  path = tuple(key for key in path if key != held)
  return jax.tree_util.keystr(path, simple=True, separator=".")


def of_model(model: nnx.Module) -> dict[str, np.ndarray]:
  """The whole state of a model; random keys as their data.

  Args:
    model: any module.

  Returns:
    Arrays by name, in C order.
  """
  return {
    name: np.asarray(jax.random.key_data(x) if _is_key(x) else x, order="C")
    for name, x in named(nnx.state(model)).items()
  }


def halves(model: nnx.Module, tensors: Tensors) -> dict[str, np.ndarray]:
  """Converts the parameters in float32 or float64 to float16.

  Args:
    model: the model.
    tensors: the state of the model, as `of_model` returns it.

  Returns:
    The converted parameters, by name.

  Raises:
    ValueError: if a parameter is too large for float16.
  """
  found = {}
  for name in named(nnx.state(model, nnx.Param)):
    if tensors[name].dtype not in (np.float32, np.float64):
      continue
    with np.errstate(over="ignore"):
      found[name] = tensors[name].astype(np.float16)
    if np.any(np.isinf(found[name]) & np.isfinite(tensors[name])):
      largest = np.max(np.abs(tensors[name]))
      raise ValueError(
        f"{name} has values up to {largest:.3g}, and float16 ends at 65,504; "
        "save without half."
      )
  return found


def misfit(spec: specs.Spec, tensors: Tensors) -> str | None:
  """Says how tensors differ from a spec's model; None if they fit.

  Args:
    spec: the model that is wanted.
    tensors: the tensors of a file.

  Returns:
    A phrase for a message.
  """
  wanted = named(nnx.state(spec.shapes()))
  wanted = {name: _shape(leaf) for name, leaf in wanted.items()}
  found = {name: _shape(x) for name, x in tensors.items()}
  for fault, names in (
    ("lacks", wanted.keys() - found.keys()),
    ("has besides", found.keys() - wanted.keys()),
  ):
    if names:
      return f"it {fault} {_some(names)}"
  for name in sorted(wanted):
    if wanted[name] != found[name]:
      (right, size), (dtype, shape) = wanted[name], found[name]
      return f"{name} is {dtype} {list(shape)}, not {right} {list(size)}"
  return None


def other_setting(spec: specs.Spec, model: nnx.Module) -> str | None:
  """Says how a model's settings differ from a spec's; None if they are equal.

  Settings are classes of modules and their attributes, such as a routing with
  its number of iterations; not the mode of training or evaluation.

  Args:
    spec: the model that is wanted.
    model: the model that there is.

  Returns:
    A phrase for a message.
  """
  wanted, found = spec.shapes(), nnx.clone(model)
  for one in (wanted, found):
    one.eval()
  if nnx.graphdef(wanted) == nnx.graphdef(found):
    return None
  settings = _settings(wanted), _settings(found)
  for name in sorted(settings[0].keys() | settings[1].keys()):
    right, own = (x.get(name, "absent") for x in settings)
    if right != own:
      return f"{name} is {own}, not {right}"
  return None


def _settings(model: nnx.Module) -> dict[str, str]:
  """The classes and attributes of all modules, as text by path."""
  found = {}
  for path, node in nnx.iter_graph(model):
    if isinstance(node, nnx.Module):
      place = ".".join(map(str, path))
      found[f"class of {place or 'the model'}"] = type(node).__name__
      for name, value in vars(node).items():
        if not name.startswith("_") and not _is_part(value):
          if name in _DTYPES and value is not None:
            value = jnp.dtype(value).name
          # Lists and tuples count as equal: JSON does not tell them apart.
          text = _ADDRESS.sub("", repr(value)).translate(_BRACKETS)
          found[f"{place}.{name}".lstrip(".")] = text.replace(",]", "]")
  return found


def _is_part(value: Any) -> bool:
  """Whether a value is part of the state or of the structure of a model."""
  return isinstance(value, nnx.Module | nnx.Variable | jax.Array)


def fill(shapes: nnx.Module, tensors: Tensors) -> nnx.Module:
  """Makes a model with the tensors as its state.

  Args:
    shapes: the model's shapes, as `Spec.shapes` gives them.
    tensors: tensors that fit, in any precision.
  """
  graph, state = nnx.split(shapes)
  leaves, structure = jax.tree_util.tree_flatten_with_path(state)
  values = [_as_leaf(tensors[name_of(path)], leaf) for path, leaf in leaves]
  return nnx.merge(graph, jax.tree.unflatten(structure, values))


def _as_leaf(tensor, leaf):
  """Converts an array of a file to the kind of the model's leaf."""
  if _is_key(leaf):
    (impl,) = (x for x in _GENERATORS if _key_dtype(x) == leaf.dtype)
    return jax.random.wrap_key_data(jnp.asarray(tensor), impl=impl)
  return jnp.asarray(tensor, leaf.dtype)


def _shape(leaf) -> tuple[Any, tuple[int, ...]]:
  """The dtype, with float16 and float64 as float32, and the shape.

  With `jax_enable_x64` new models have wider numbers than stored ones, and
  files may have narrower ones.
  """
  if _is_key(leaf):
    leaf = jax.eval_shape(jax.random.key_data, leaf)
  dtype = jnp.dtype(leaf.dtype)
  alike = dtype in (jnp.float16, jnp.float64)
  return jnp.dtype("float32") if alike else dtype, tuple(leaf.shape)


def _is_key(x) -> bool:
  return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _key_dtype(impl: str):
  return jax.eval_shape(lambda: jax.random.key(0, impl=impl)).dtype


def _some(names) -> str:
  first, *rest = sorted(names)
  return f"{first} and {len(rest)} more" if rest else first
