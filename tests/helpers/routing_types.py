"""The types of the rows of a routing, and functions that the rows share."""

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
  """A routing whose votes are given by two arguments, poses and transforms."""

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
  """The properties of a routing.

  Attributes:
    route: routes votes [I J D] of parts with weights [I]: activations where the
      routing takes them, lengths of the votes elsewhere.
    turn: draws a matrix [D D]; if it multiplies the votes, the poses must be
      multiplied in the same way.
    turned: the other outputs, which this must not change.
    rewarded: the outputs that are larger where votes agree.
    splits: whether two parts that share the weight of a part may replace it.
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
    counts: whether parts with an activation of 0 have no effect.
  """

  route: Callable[..., routing.RoutingOutput]
  shapes: dict[str, tuple[int, ...]]
  kernels: tuple[str, ...]
  counts: bool = False


class Last(NamedTuple):
  """A routing and its last iteration, for gradients through that alone.

  Attributes:
    route: takes arguments for three parts and two parents with poses [4], and
      the options of the kernel.
    step: the last weighted sum, or M-step, in float64 NumPy: takes coefficients
      [3 2] and the arguments, and returns poses [2 4] and activations [2].
    arguments: arrays such as those that `normal` and `unit` draw.
  """

  route: Callable[..., routing.RoutingOutput]
  step: Callable[..., tuple[np.ndarray, np.ndarray]]
  arguments: tuple[np.ndarray, ...]


def unit(seed, size=3):
  return np.random.default_rng(seed).uniform(0.2, 0.9, size)


def normal(seed, shape):
  return np.random.default_rng(seed).normal(size=shape)


STORED, BIAS = normal(0, (3, 2, 4)), normal(1, (2, 4))
