"""Slot attention: slots compete for inputs, and become means of their shares.

One round of attention without its parameters. As in inverted attention
(`attention.inverted_attention_routing`) each input is divided among the slots
by a softmax; a slot is then the mean of its shares rather than their sum, and
`capjax.layers.slots.SlotAttention` updates it by a recurrent unit. Frames are
those of invariant slot attention: the position and the size of a slot.

In float32 values and gradients are finite for arguments of magnitude up to
1e4.

Axes: I inputs (parts) below, J slots (objects), D numbers of a query, E of a
value. One example, no batch axis: `jax.vmap` adds it.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import checks, numerics

_PRESENT = 1e-20  # least presence, for gradients that are finite


class SlotOutput(NamedTuple):
  """The result of one round of slot attention.

  Attributes:
    means: [J E], the mean of the values that each slot wins.
    coefficients: [I J], the share of input i that goes to slot j; sums to 1
      over slots.
    weights: [I J], the weight of input i in the mean of slot j; sums to 1 over
      inputs; perhaps to less where all presences are below 1e-20, and to 0
      where all are 0.
  """

  means: Float[Array, "J E"]
  coefficients: Float[Array, "I J"]
  weights: Float[Array, "I J"]


class Frames(NamedTuple):
  """The frames of reference of slots, along the axes of the image.

  Attributes:
    positions: [... J 2], (x, y) of the origin, in the frame of the inputs.
    scales: [... J 2], the length of one unit along x and along y, > 0.
  """

  positions: Float[Array, "*batch J 2"]
  scales: Float[Array, "*batch J 2"]


def slot_attention(
  queries: Float[Array, "J D"],
  keys: Float[Array, "I D"] | Float[Array, "I J D"],
  values: Float[Array, "I E"] | Float[Array, "I J E"],
  *,
  presence: Float[Array, " I"] | None = None,
  epsilon: float = 1e-8,
) -> SlotOutput:
  """Attends once from slots to inputs (Locatello et al., 2020, algorithm 1).

  With q_j the queries, k_i the keys and v_i the values,
    a_ij = softmax_j(<k_i, q_j> / sqrt(D)),
    w_ij = d_i (a_ij + epsilon) / sum_i' d_i' (a_i'j + epsilon),
    u_j = sum_i w_ij v_i.
  In invariant slot attention (Biza et al., 2023) keys and values are k_ij and
  v_ij, which depend on the frame of the slot too. Permuting slots permutes the
  results; permuting inputs changes nothing but the order of the shares.

  Args:
    queries: q_j.
    keys: k_i, or k_ij.
    values: v_i, or v_ij.
    presence: d_i in [0, 1]; 1 by default. Absent inputs count for no slot.
    epsilon: > 0; makes a slot that wins nothing the mean of all inputs.

  Returns:
    The means u_j, the coefficients a_ij and the weights w_ij.

  Raises:
    ValueError: if `epsilon` is not above 0, or a known presence is outside of
      [0, 1].

  Differs from paper: presences; in the paper all are 1.
  """
  checks.positive(epsilon=epsilon)
  checks.floats({"keys": keys, "values": values})
  key_axes = "I J D" if keys.ndim == 3 else "I D"
  value_axes = "I J E" if values.ndim == 3 else "I E"
  sizes = checks.arrays(
    {
      "queries": (queries, "J D"),
      "keys": (keys, key_axes),
      "values": (values, value_axes),
      "presence": (presence, "I"),
    }
  )
  checks.values(0.0, 1.0, presence=presence)
  given = jnp.result_type(values)
  dtype = numerics.accumulation_dtype(queries, keys, values)
  queries, keys, values = (x.astype(dtype) for x in (queries, keys, values))
  scores = numerics.einsum(
    f"{_letters(key_axes)},jd->ij", keys, queries / math.sqrt(sizes["D"])
  )
  coefficients = numerics.softmax(scores, 1)
  shares = coefficients + epsilon
  if presence is not None:
    presence = presence.astype(dtype)
    # Divided by the largest, so that the sums of small ones do not underflow.
    largest = jax.lax.stop_gradient(jnp.max(presence))
    presence /= jnp.maximum(largest, _PRESENT)
    shares *= presence[:, None]
  total = jnp.sum(shares, axis=0)
  # At least `epsilon` where a presence is 1e-20 or more.
  weights = shares / jnp.maximum(total, epsilon / 2)
  means = numerics.einsum(f"ij,{_letters(value_axes)}->je", weights, values)
  outputs = means, coefficients, weights
  return SlotOutput(*(x.astype(given) for x in outputs))


def slot_frames(
  weights: Float[Array, "I J"],
  points: Float[Array, "I 2"],
  *,
  smallest: float = 1e-3,
  largest: float = 2.0,
) -> Frames:
  """Computes positions and scales of slots (Biza et al., 2023, section 3).

  p_j = sum_i w_ij x_i,  s_j = sqrt(sum_i w_ij (x_i - p_j)^2), by coordinate:
  mean and standard deviation of the inputs that a slot wins. Moving or
  stretching the points along their axes does the same to the frames, within
  the limits of scales.

  Args:
    weights: w_ij, as in `SlotOutput`.
    points: x_i, the places of the inputs.
    smallest: least scale, > 0.
    largest: largest scale, at least `smallest`.

  Returns:
    The frames; without gradient through a scale at its limits.

  Raises:
    ValueError: if `smallest` is not above 0, or `largest` is below it.

  Differs from paper: no rotation. Variances have the same weights as the means;
  the authors' code adds epsilon to these weights a second time.
  """
  checks.arrays({"weights": (weights, "I J"), "points": (points, "I 2")})
  checks.positive(smallest=smallest)
  if checks.are_known(smallest):
    checks.within(smallest, math.inf, largest=largest)
  given = jnp.result_type(points)
  dtype = numerics.accumulation_dtype(weights, points)
  weights, points = weights.astype(dtype), points.astype(dtype)
  positions = numerics.einsum("ij,ic->jc", weights, points)
  squares = jnp.square(points[:, None] - positions)
  variances = numerics.einsum("ij,ijc->jc", weights, squares)
  scales = jnp.sqrt(jnp.clip(variances, smallest**2, largest**2))
  return Frames(positions.astype(given), scales.astype(given))


def relative_points(
  points: Float[Array, "I 2"], frames: Frames, *, unit: float = 5.0
) -> Float[Array, "I J 2"]:
  """Places points in the frames of slots (Biza et al., 2023, section 3).

  (x_i - p_j) / (unit s_j), by coordinate.

  Args:
    points: x_i.
    frames: p_j and s_j of J slots.
    unit: how many scales are one unit, > 0.

  Returns:
    The points as each slot sees them.

  Raises:
    ValueError: if `unit` is not above 0.
  """
  checks.positive(unit=unit)
  positions, scales = frames
  checks.arrays(
    {
      "points": (points, "I 2"),
      "positions": (positions, "J 2"),
      "scales": (scales, "J 2"),
    }
  )
  return (points[:, None] - positions) / (unit * scales)


def _letters(axes: str) -> str:
  return axes.replace(" ", "").lower()
