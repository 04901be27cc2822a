"""Templates of points, and the similarities that place them in an image.

Axes: M points of the image, N points of all templates, K templates. One image,
no batch axis: `jax.vmap` adds it.

Points are complex numbers x + iy within this file: a similarity is then t + w p
with two complex numbers, and y = (tx, ty, s cos, s sin) of Nazabal, Tsagkas and
Williams (2022) is (Re t, Im t, Re w, -Im w).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float

from .. import checks

_LEAST = 1e-30  # mass below which a template's centre is 0


class Templates(NamedTuple):
  """The points of known objects, each in the object's own frame.

  Attributes:
    points: [N 2], of one template after the other; each template is centred,
      and the root mean square distance of its points from the centre is 1.
    members: [K N], 1 where point n belongs to template k, else 0.
  """

  points: Float[Array, "N 2"]
  members: Float[Array, "K N"]


def templates(patterns: Sequence[Float[np.ndarray, "_ 2"]]) -> Templates:
  """Centres and scales patterns to the frames that inference needs.

  Args:
    patterns: the points of each object, in any frame; at least two points of an
      object must differ.

  Returns:
    See `Templates`.

  Raises:
    ValueError: if there is no pattern, one is not [_ 2] or not finite, or all
      its points are the same.
  """
  if not len(patterns):
    raise ValueError("patterns is empty; give the points of at least one.")
  points = []
  for number, pattern in enumerate(patterns):
    pattern = np.asarray(pattern)
    checks.same_shape(
      (len(pattern) if pattern.ndim else 1, 2), **{f"pattern {number}": pattern}
    )
    if not np.all(np.isfinite(pattern)):
      raise ValueError(
        f"pattern {number} holds numbers that are not finite; give coordinates."
      )
    centred = pattern - np.mean(pattern, axis=0)
    radius = np.sqrt(np.mean(np.sum(centred**2, axis=1)))
    # By rounding, a mean of equal points may differ from them.
    if not radius > 0 or not np.ptp(pattern, axis=0).any():
      raise ValueError(
        f"pattern {number} has equal points only; give points that differ."
      )
    points.append(centred / radius)
  owners = np.repeat(np.arange(len(points)), [len(x) for x in points])
  members = np.arange(len(points))[:, None] == owners
  return Templates(
    jnp.asarray(np.concatenate(points), jnp.float32),
    jnp.asarray(members, jnp.float32),
  )


def check_templates(template: Templates) -> None:
  """Checks the shapes of templates.

  Args:
    template: the templates; see `Templates`.

  Raises:
    ValueError: if points are not [N 2] or members not [K N], or one is empty.
  """
  checks.arrays(
    {
      "template.points": (template.points, "N 2"),
      "template.members": (template.members, "K N"),
    }
  )


def as_complex(points: Float[Array, "N 2"]) -> Complex[Array, " N"]:
  """Writes points (x, y) as x + iy.

  Args:
    points: in any unit.
  """
  return jax.lax.complex(points[:, 0], points[:, 1])


def poses(
  offset: Complex[Array, " K"], turn: Complex[Array, " K"]
) -> Float[Array, "K 4"]:
  """Writes similarities t + w p as (tx, ty, s cos, s sin).

  Args:
    offset: t, [K].
    turn: w, [K].

  Returns:
    [K 4]: point (px, py) lands on (tx + px s cos + py s sin, ty - px s sin +
    py s cos).
  """
  return jnp.stack([offset.real, offset.imag, turn.real, -turn.imag], axis=-1)


def present_points(
  points: Float[Array, "M 2"], presence: Float[Array, " M"]
) -> Float[Array, "M 2"]:
  """Replaces absent points, which may be NaN, by (0, 0).

  Args:
    points: [M 2].
    presence: [M]; a point is present if its presence is above 0.

  Returns:
    The points, [M 2].

  Raises:
    ValueError: if a known point that is present is not finite, or a known
      presence is outside of [0, 1].
  """
  checks.values(0.0, 1.0, presence=presence)
  if checks.are_known(points) and checks.are_known(presence):
    present = np.asarray(points)[np.asarray(presence) > 0]
    checks.values(-math.inf, math.inf, points=present)
  return jnp.where(presence[:, None] > 0, points, 0)


class Posterior(NamedTuple):
  """The Gaussian posterior q of the similarities t + w p of all templates.

  Attributes:
    offset: means of t, [K].
    turn: means of w, [K].
    spread: tr(F' F Lambda^-1) of each template point, [N] >= 0: the variance of
      its position, summed over both coordinates.
    divergence: [], KL divergence from the prior N(0, I), summed over templates,
      in nats.
  """

  offset: Complex[Array, " K"]
  turn: Complex[Array, " K"]
  spread: Float[Array, " N"]
  divergence: Float[Array, ""]


def posterior(
  assignments: Float[Array, "M N"],
  x: Complex[Array, " M"],
  p: Complex[Array, " N"],
  members: Float[Array, "K N"],
  precision: Float[Array, ""],
) -> Posterior:
  """Infers similarities from assigned points.

  Nazabal, Tsagkas and Williams (2022), section 4.2:
    Lambda_k = I + lam sum_mn r_mn F_kn' F_kn,
    mu_k = Lambda_k^-1 lam sum_mn r_mn F_kn' x_m.

  With complex points the 4x4 matrix Lambda is [[a, b], [b*, c]], whose inverse
  is written out with each template's points about their mean: then no term is a
  small difference of large numbers, as a c - |b|^2 is for a single point.

  Args:
    assignments: r, [M N] in [0, 1].
    x: points of the image.
    p: points of the templates.
    members: [K N], as in `Templates`.
    precision: lam, > 0.

  Returns:
    See `Posterior`.
  """
  mass = jnp.sum(assignments, axis=0)
  target = assignments.T.astype(x.dtype) @ x
  weigh = precision * members
  # Moments of each template about a centre q. The results do not depend on q;
  # rounding errors are smallest if it is the mean. a = 1 + weight,
  # b = weight q + lean, c = scatter + 2 Re(q* lean) + weight |q|^2.
  centre = members @ (mass * p) / jnp.maximum(members @ mass, _LEAST)
  centre = jax.lax.stop_gradient(centre)
  moved = p - members.T @ centre
  weight = weigh @ mass
  lean = weigh @ (mass * moved)
  scatter = 1 + weigh @ (mass * _square(moved))
  far = 2 * _dot(centre, lean) + weight * _square(centre)
  determinant = (1 + weight) * scatter - _square(lean) + far
  first, second = weigh @ target, weigh @ (jnp.conj(moved) * target)
  offset = (scatter + centre * jnp.conj(lean)) * first
  offset = (offset - (weight * centre + lean) * second) / determinant
  turn = (1 + weight) * second + jnp.conj(centre - lean) * first
  turn = turn / determinant
  of_point = members.T @ jnp.stack(
    [weight, scatter, determinant, lean.real, lean.imag], -1
  )
  point_weight, point_scatter, point_determinant, *point_lean = of_point.T
  spread = point_scatter + _square(p) + point_weight * _square(moved)
  spread -= 2 * _dot(moved, jax.lax.complex(*point_lean))
  trace = 1 + weight + scatter + far
  size = _square(offset) + _square(turn)
  each = trace / determinant + size / 2 - 2 + jnp.log(determinant)
  return Posterior(offset, turn, 2 * spread / point_determinant, jnp.sum(each))


def _dot(
  x: Complex[Array, "..."], y: Complex[Array, "..."]
) -> Float[Array, "..."]:
  """The scalar product of points as vectors, Re(x* y)."""
  return x.real * y.real + x.imag * y.imag


def _square(x: Complex[Array, "..."]) -> Float[Array, "..."]:
  """The square of the absolute value."""
  return jnp.square(x.real) + jnp.square(x.imag)
