"""What the rows of a routing say, and what they share."""

from collections.abc import Callable
from typing import NamedTuple

import cases
import numpy as np

from kernels import routing
from kernels.routing.linear_votes import LinearVotes

VOTES = {"votes": "I J D"}
FACTORS = {"poses": "I C", "transforms": "I J C D"}
POSE_SIZE = cases.VOTES_SHAPE[2]


def linear(route):
  """A routing of votes as two factors, which are arguments of their own."""

  def of_factors(poses, transforms, **arguments):
    return route(LinearVotes(poses, transforms), **arguments)

  return of_factors


def rotation(random):
  return np.linalg.qr(random.normal(size=(POSE_SIZE, POSE_SIZE)))[0]


def permutation(random):
  return random.permutation(np.eye(POSE_SIZE))


def signed_permutation(random):
  return random.choice([-1, 1], POSE_SIZE) * permutation(random)


class Properties(NamedTuple):
  """A routing and what holds of it.

  Attributes:
    route: routes votes [I J D] of parts with weights [I]: activations where the
      routing takes them, lengths of the votes elsewhere.
    turn: draws a matrix [D D] with which votes may turn, and poses with them.
    turned: the outputs beside the poses that it leaves as they are.
    rewarded: the outputs that are larger where votes agree.
    splits: whether a part may be cut in two that share its weight.
  """

  route: Callable
  turn: Callable
  turned: tuple[str, ...] = ("activations", "coefficients")
  rewarded: tuple[str, ...] = ("activations", "coefficients")
  splits: bool = False


class Layer(NamedTuple):
  """What a layer computes with a routing by name.

  Attributes:
    route: of votes [I J D], poses [I ...] and activations [I] of the parts,
      bias [J D], and the parameters by name.
    shapes: of the parameters, for 6 parts of length 3 and 3 objects of 4.
    kernels: the rows of `kernel_cases` that it calls, for the fuzz.
    counts: whether parts that are not active are without effect.
  """

  route: Callable[..., routing.RoutingOutput]
  shapes: dict[str, tuple[int, ...]]
  kernels: tuple[str, ...]
  counts: bool = False


class Last(NamedTuple):
  """A routing and its last iteration, for gradients through that alone.

  Attributes:
    route: of arguments for three parts and two parents with poses [4], and the
      options of the kernel.
    step: the last weighted sum, or M-step, in float64 NumPy: of coefficients
      [3 2] and the arguments to poses [2 4] and activations [2].
    arguments: numbers such as `normal` and `unit` draw.
  """

  route: Callable[..., routing.RoutingOutput]
  step: Callable[..., tuple[np.ndarray, np.ndarray]]
  arguments: tuple[np.ndarray, ...]


def unit(seed, size=3):
  return np.random.default_rng(seed).uniform(0.2, 0.9, size)


def normal(seed, shape):
  return np.random.default_rng(seed).normal(size=shape)


STORED, BIAS = normal(0, (3, 2, 4)), normal(1, (2, 4))
