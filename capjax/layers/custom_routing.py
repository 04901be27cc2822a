"""Custom routing functions, in the form that layers of capsules take.

Axes: I parts below, J objects above, C pose of a part, D pose of an object,
P Q pose matrix of a part, P R of an object.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from capjax.kernels import routing
from capjax.layers import routing_inputs

# Arguments that a layer gives a routing besides the votes, if it names them.
_GIVEN = ("poses", "transforms", "activations", "bias")


class FromFunction(nnx.Module):
  """A function with the signature of the routing kernels, of one example.

  The function is called with the votes [I J D], and by keyword with those of
  these arguments that its signature names:

  - `activations` [I], of the parts: given, or the lengths of their poses;
  - `bias` [J D]; if it is not named, the layer has no bias;
  - `poses` [I C] of the parts, or [I P Q];
  - `transforms` [I J C D] of the votes, or [I J Q R].

  If the first parameter is called `poses` no votes are computed, as for
  `routing.transform_and_route`; elsewhere they are stored: I J D numbers for
  each example. Bind all other arguments of the function, for example
  `functools.partial(routing.dynamic_routing, num_iterations=2)`. A function
  with parameters to learn must be an `nnx.Module`, given itself: Flax does not
  see the parameters of a module inside `functools.partial`, a method or a
  closure.

  The function returns a `routing.RoutingOutput`, or another tuple with the same
  three fields.
  """

  def __init__(self, function: Callable):
    """Reads the signature.

    Args:
      function: as the class describes; it is called for one example.

    Raises:
      TypeError: if the function is a class, needs arguments that no layer
        gives, or is a module with other state than parameters, or a partial, a
        method or a closure of a module with parameters.
    """
    if isinstance(function, type):
      raise TypeError(
        f"routing is the class {function.__name__}; give one of its objects, "
        f"such as {function.__name__}(...)."
      )
    self.takes_votes, self.names, missing = _signature(function)
    if missing:
      raise TypeError(
        f"routing {_name(function)} needs {', '.join(missing)}, which layers "
        "do not give; bind them by functools.partial, or give the name of a "
        "routing, such as 'em', for parameters that are learnt."
      )
    if not (self.takes_votes or "poses" in self.names):
      raise TypeError(
        f"routing {_name(function)} takes no votes; give a function of votes "
        "[I J D]."
      )
    hidden = _module_inside(function)
    if hidden is not None:
      raise TypeError(
        f"routing {_name(function)} has a {type(hidden).__name__} inside, "
        "whose parameters would not be trained; give the module itself, and "
        "bind its arguments in its constructor."
      )
    if isinstance(function, nnx.Module):
      state = nnx.state(function, nnx.Any(nnx.BatchStat, nnx.RngState))
      if jax.tree.leaves(state):
        raise TypeError(
          f"routing {_name(function)} has statistics or random streams, which "
          "a layer cannot change, since it maps the routing over the batch; "
          "give a module of parameters alone."
        )
    self.function = function

  @property
  def takes_bias(self) -> bool:
    """Whether the layer has a bias."""
    return "bias" in self.names

  def __call__(
    self,
    poses: Float[Array, " I *pose"],
    transforms: Float[Array, "I J Q R"],
    *,
    activations: Float[Array, " I"] | None = None,
    bias: Float[Array, "J D"] | None = None,
  ) -> routing.RoutingOutput:
    """Routes one example.

    Args:
      poses: [I C] of the parts, or [I P Q].
      transforms: [I J C D], or [I J Q R].
      activations: of the parts; None for the lengths of their poses.
      bias: of the objects; None if the layer has none.

    Returns:
      Poses [J D], activations [J] and coefficients [I J] of the function.

    Raises:
      TypeError: if the function returns anything but a `RoutingOutput`.
    """
    given = {
      "poses": poses,
      "transforms": transforms,
      "activations": routing_inputs.part_activations(poses, activations),
      "bias": bias,
    }
    given = {name: given[name] for name in self.names}
    if self.takes_votes:
      votes = routing_inputs.stored_votes(poses, transforms)
      output = self.function(votes, **given)
    else:
      output = self.function(**given)
    num_objects, pose_size = routing_inputs.pose_axes(poses, transforms)
    return _checked(self.function, output, (len(poses), num_objects, pose_size))


def _signature(function):
  """Reads the arguments of a routing function.

  Returns:
    Whether it takes votes; the names of `_GIVEN` that it takes; and the names
    of other arguments without a default, which no layer gives.
  """
  try:
    parameters = list(inspect.signature(function).parameters.values())
  except ValueError:  # the function is not written in Python
    return True, (), []
  kinds = inspect.Parameter
  variadic = (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
  named = [x for x in parameters if x.kind not in variadic]
  names = tuple(x.name for x in named if x.name in _GIVEN)
  if parameters and (
    parameters[0].kind is not kinds.KEYWORD_ONLY
    and parameters[0].name not in _GIVEN
  ):
    takes_votes, named = True, [x for x in named if x is not parameters[0]]
  else:
    takes_votes = False
  missing = [
    x.name for x in named if x.default is kinds.empty and x.name not in _GIVEN
  ]
  return takes_votes, names, missing


def _module_inside(function: Callable, seen: tuple = ()) -> nnx.Module | None:
  """A module with parameters that a function holds, hidden from Flax."""
  function = inspect.unwrap(function)  # removes jit and custom gradients
  held: list[Any] = []
  if isinstance(function, functools.partial):
    held = [function.func, *function.args, *function.keywords.values()]
  elif inspect.ismethod(function):
    held = [function.__self__]
  elif inspect.isfunction(function):
    for cell in function.__closure__ or ():
      with contextlib.suppress(ValueError):  # the name has no value yet
        held.append(cell.cell_contents)
  for value in held:
    if isinstance(value, nnx.Module):
      if jax.tree.leaves(nnx.state(value, nnx.Param)):
        return value
    elif callable(value) and not any(value is x for x in seen):
      found = _module_inside(value, (*seen, function))
      if found is not None:
        return found
  return None


def _checked(function, output, sizes):
  """Returns the output of a routing; a TypeError if fields or shapes differ."""
  num_parts, num_objects, pose_size = sizes
  wanted = {
    "poses": (num_objects, pose_size),
    "activations": (num_objects,),
    "coefficients": (num_parts, num_objects),
  }
  fields = {name: getattr(output, name, None) for name in wanted}
  found = {name: np.shape(x) for name, x in fields.items() if x is not None}
  if found != wanted:
    shown = ", ".join(f"{name} {_text(x)}" for name, x in found.items())
    asked = ", ".join(f"{name} {_text(x)}" for name, x in wanted.items())
    is_array = isinstance(output, jax.Array)
    kind = "an array" if is_array else f"a {type(output).__name__}"
    raise TypeError(
      f"routing {_name(function)} returned {kind} with "
      f"{shown or 'none of the fields'}; give a RoutingOutput with {asked}."
    )
  return routing.RoutingOutput(**fields)


def _name(function):
  """The name of a function, also of one with arguments bound."""
  while isinstance(function, functools.partial):
    function = function.func
  return getattr(function, "__name__", type(function).__name__)


def _text(shape):
  return f"[{' '.join(map(str, shape))}]"
