"""What every routing kernel returns."""

from typing import NamedTuple

from jaxtyping import Array, Float


class RoutingOutput(NamedTuple):
  """What a routing kernel returns.

  Attributes:
    poses: [J D], output vectors of the parents.
    activations: [J] in [0, 1], how much each parent is there.
    coefficients: [I J], the share of part i that goes to parent j; in [0, 1],
      but for self-attention with priors.
  """

  poses: Float[Array, "J D"]
  activations: Float[Array, " J"]
  coefficients: Float[Array, "I J"]
