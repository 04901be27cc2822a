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
