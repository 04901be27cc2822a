"""The rows of `routers.ROUTERS`, the table of routings by name."""

from collections.abc import Callable
from typing import NamedTuple

from capjax.kernels import routing


class Sizes(NamedTuple):
  """The sizes of the layer that a routing is made for.

  Attributes:
    num_parts: I, capsules below.
    part_size: C, the numbers of their poses.
    num_objects: J, capsules above.
    pose_size: D, the numbers of their poses.
  """

  num_parts: int
  part_size: int
  num_objects: int
  pose_size: int


class Router(NamedTuple):
  """A routing that layers know by name.

  Attributes:
    source: how it routes, and the paper.
    make: `(sizes, rngs, **options) -> routing of one example`, as `routers`
      says; `rngs` initialise parameters.
    options: those of "num_iterations", "gradient" and "leaky" that it has.
    uses_activations: whether the activations of parts count. Where they do not,
      an absent part is one whose pose is zero.
    shares_votes: whether a part has one matrix, and so one vote, for all
      objects.
    is_mixture: whether the poses of objects are means of votes, of any length:
      small matrices then make each layer's poses smaller than those below. The
      bias is then added to the votes, and parts are weighted by activations.
    takes_probabilities: whether activations must be in [0, 1], also where they
      are the lengths of poses.
  """

  source: str
  make: Callable[..., Callable[..., routing.RoutingOutput]]
  options: tuple[str, ...] = ()
  uses_activations: bool = False
  shares_votes: bool = False
  is_mixture: bool = False
  takes_probabilities: bool = False


ITERATIONS = ("num_iterations", "gradient")  # of most iterative routings
