"""Arguments of kernels, drawn from a description of each."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

# I children, J parents, C and D numbers of their poses; H W pixels of B
# channels, U V of a template; K capsules, L of another layer, M units.
SIZES = {
  "I": 3, "J": 2, "C": 2, "D": 4, "H": 4, "W": 3, "B": 2, "U": 3, "V": 3,
  "K": 2, "L": 3, "M": 3,
}  # fmt: skip
KINDS = ("real", "unit", "positive", "flag", "log")


class Case(NamedTuple):
  """A kernel.

  Attributes:
    function: takes the arguments, all arrays, by name, and returns arrays.
    arguments: by name, the axes of an argument, which are letters of `SIZES` or
      numbers, and its kind: "real" (any number, the default), "unit" (in
      [0, 1]), "positive", "flag" (0 or 1) or "log" (at most 0).
    children: the axis that may have size 1; "" where none may.
    forward: whether it has derivatives in forward mode.
    reverse: whether it has derivatives in reverse mode.
    iterates: whether the kernel can limit gradients to the last iteration, for
      which `routing_rows` adds a row.
    smooth: whether differences approximate the derivative at a random point.
    random: whether it draws numbers, which depend on the dtype.
    tolerance: of float32, for numbers of about 1.
    largest: magnitude of real numbers up to which all results are finite.
  """

  function: Callable[..., Any]
  arguments: dict[str, str]
  children: str = "I"
  forward: bool = True
  reverse: bool = True
  smooth: bool = True
  iterates: bool = False
  random: bool = False
  tolerance: float = 2e-5
  largest: float = 1e4


def shape_of(argument: str, sizes: dict[str, int] = SIZES) -> tuple[int, ...]:
  axes = [word for word in argument.split() if word not in KINDS]
  return tuple(sizes.get(word) or int(word) for word in axes)


def kind_of(argument: str) -> str:
  return next((word for word in argument.split() if word in KINDS), "real")


def draw(
  case: Case,
  random: np.random.Generator,
  *,
  sizes: dict[str, int] = SIZES,
  magnitude: float = 1.0,
) -> dict[str, np.ndarray]:
  """Arguments in float64; real numbers and logarithms of this magnitude."""
  drawn = {}
  for name, argument in case.arguments.items():
    x = random.normal(size=shape_of(argument, sizes))
    drawn[name] = {
      "real": magnitude * x,
      "unit": 1 / (1 + np.exp(-x)),
      "positive": np.exp(x / 2),
      "flag": np.float64(x > -0.5),
      "log": -magnitude * np.abs(x),
    }[kind_of(argument)]
  return drawn
