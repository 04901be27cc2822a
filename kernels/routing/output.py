"""The result of every routing kernel."""

from typing import NamedTuple

from jaxtyping import Array, Float


class RoutingOutput(NamedTuple):
  """The poses and activations of the parents, and the routing coefficients.

  Layers and networks return the same with a leading batch axis B.

  Attributes:
    poses: [J D], output vectors of the parents.
    activations: [J] in [0, 1], how strongly each parent is present; lengths of
      poses may exceed 1 by rounding.
    coefficients: [I J], the coupling coefficients c_ij (in EM and variational
      routing the responsibilities r_ij): the share of part i that goes to
      parent j; in [0, 1] except for self-attention with priors.
  """

  poses: Float[Array, "J D"]
  activations: Float[Array, " J"]
  coefficients: Float[Array, "I J"]
