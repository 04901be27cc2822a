"""E-steps and moments of EM routing over windows, for one type of children.

There are two forms: loops whose numbers stay in the caches of a CPU, and all
votes of the type at once, for accelerators.

Axes: T places in a window, S positions of parents, both in rows; J types of
parents; P Q pose matrix of a child, P R of a parent; E = R J, the numbers of
one row of the poses of all parents, column after column.

The loops are written for the speed of XLA on CPUs. Operations over a long last
axis, J or E, become vector instructions; sums over an earlier axis do not, so
they are written out. Operands computed outside of a loop of `jax.lax` are
stored before it; otherwise XLA might recompute them for every number of every
vote.
"""

import functools
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import numerics
from . import windows as em_windows

_FEW = 8  # terms of a sum that are written out; more are a matrix product


class Layout(NamedTuple):
  """The static settings of a layer.

  Attributes:
    windows: windows over the children.
    num_parents: J.
    loops: whether loops run over places and rows, with a custom gradient
      (`moments`); else all are computed at once, and JAX differentiates
      `plain_moments`.
  """

  windows: em_windows.Windows
  num_parents: int
  loops: bool


class Seen(NamedTuple):
  """The children of one type at all T places of the windows, or at one place.

  Attributes:
    poses: [T S P Q]; at one place none of the three has the axis T.
    activations: [T S].
    transforms: [T Q E].
  """

  poses: Float[Array, "*T S P Q"]
  activations: Float[Array, "*T S"]
  transforms: Float[Array, "*T Q E"]

  def deviations(
    self, means: Float[Array, "S P E"], num_parents: int
  ) -> Iterator[tuple[Any, Float[Array, "S J"]]]:
    """Yields indices (s, p, e) and votes minus means [S J], at one place.

    Args:
      means: mu_j of the parents, or any other centres.
      num_parents: J.
    """
    m, w = self.poses, self.transforms
    for p in range(m.shape[1]):
      row = _row_votes(m[:, p], w) if len(w) > _FEW else None
      for start in range(0, w.shape[1], num_parents):
        e = slice(start, start + num_parents)
        vote = _row_votes(m[:, p], w[:, e]) if row is None else row[:, e]
        yield (slice(None), p, e), vote - means[:, p, e]


class Beliefs(NamedTuple):
  """The quantities of the parents that the E-step reads.

  Attributes:
    log_weights: [S J], ln a_j - sum_d ln v_jd / 2.
    means: [S P E].
    precisions: [S P E], 1 / variances.
  """

  log_weights: Float[Array, "S J"]
  means: Float[Array, "S P E"]
  precisions: Float[Array, "S P E"]


def _total(terms):
  return functools.reduce(operator.add, terms)


def _logits(seen, beliefs, layout):
  """Logits [T S J] of votes: ln(a_j N(u_ij; mu_j, v_j)), up to a constant."""
  num_parents = layout.num_parents
  if not layout.loops:
    squares = jnp.square(_votes(seen) - beliefs.means) * beliefs.precisions
    rows = jnp.sum(squares, axis=2)
    columns = rows.reshape(*rows.shape[:2], -1, num_parents)
    return beliefs.log_weights - jnp.sum(columns, axis=2) / 2

  def at_place(seen):
    distances = _total(
      jnp.square(deviation) * beliefs.precisions[entry]
      for entry, deviation in seen.deviations(beliefs.means, num_parents)
    )
    return beliefs.log_weights - distances / 2

  return jax.lax.map(at_place, seen)


def shares(
  seen: Seen, beliefs: Beliefs | None, even: Float[Array, "T S"], layout: Layout
) -> Float[Array, "T S J"]:
  """The E-step: the shares of the children that go to each parent.

  Args:
    seen: the children.
    beliefs: the parents of the iteration before; None before the first M-step.
    even: the share that each parent gets before the first M-step.
    layout: static settings of the layer.

  Returns:
    Shares in [0, 1].
  """
  if beliefs is None:
    return jnp.broadcast_to(even[..., None], (*even.shape, layout.num_parents))
  return em_windows.compete(_logits(seen, beliefs, layout), layout.windows)


def _sums(seen, weights, centre, layout):
  """Mass, first and second moments of votes with weights [T S J]."""
  wide = _widen(weights, centre)
  if not layout.loops:
    deviations = _votes(seen) - centre
    weighted = wide[:, :, None] * deviations
    sums = weights, weighted, weighted * deviations
    return tuple(jnp.sum(x, axis=0) for x in sums)

  def of_row(row):
    poses, centre = row
    first = second = 0.0
    for m, w, weight in zip(poses, seen.transforms, wide, strict=True):
      deviations = _row_votes(m, w) - centre
      weighted = weight * deviations
      first += weighted
      second += weighted * deviations
    return first, second

  first, second = jax.lax.map(of_row, _rows(seen.poses, centre))
  return _total(weights), jnp.moveaxis(first, 0, 1), jnp.moveaxis(second, 0, 1)


def _rows(poses, *statistics):
  """Moves the rows P of poses [T S P Q] and statistics [S P E] to the front."""
  return jnp.moveaxis(poses, 2, 0), *(jnp.moveaxis(x, 1, 0) for x in statistics)


def _votes(seen):
  """All votes [T S P E] of one type, for accelerators.

  If they were written out as sums of Q products, XLA would take ten times as
  long to compile them for a GPU.
  """
  return numerics.einsum("tspq,tqe->tspe", seen.poses, seen.transforms)


def _row_votes(poses, transforms):
  """Votes [S E] of one row of poses [S Q] by transforms [Q E]."""
  if len(transforms) > _FEW:
    return numerics.einsum("sq,qe->se", poses, transforms)
  return _total(
    poses[:, q, None] * transforms[q] for q in range(len(transforms))
  )


def _widen(x, centre):
  """Repeats [T S J] for each column of the pose: [T S E]."""
  return jnp.concatenate([x] * (centre.shape[-1] // x.shape[-1]), axis=-1)


def plain_moments(
  seen: Seen,
  beliefs: Beliefs | None,
  centre: Float[Array, "S P E"],
  even: Float[Array, "T S"],
  layout: Layout,
  fixed: bool,
) -> tuple[Float[Array, "S J"], Float[Array, "S P E"], Float[Array, "S P E"]]:
  """Moments of the votes of the children in a window about a centre.

  Gradients treat the centre and the even shares as constants; with `fixed`, all
  shares.

  Args:
    seen: the children.
    beliefs: the parents of the iteration before; None before the first M-step.
    centre: any point; the nearer to the means, the smaller the rounding error.
    even: the share that each parent gets before the first M-step.
    layout: static settings of the layer.
    fixed: whether gradients treat all shares as constants.

  Returns:
    The mass, which is the sum of activation times share, and the first and
    second moments, which are the sums of deviations from the centre and of
    their squares with the same weights.
  """
  taken = shares(seen, beliefs, even, layout)
  taken = jax.lax.stop_gradient(taken) if fixed else taken
  weights = seen.activations[..., None] * taken
  return _sums(seen, weights, centre, layout)


moments = jax.custom_vjp(plain_moments, nondiff_argnums=(4, 5))


def _moments_forward(seen, beliefs, centre, even, *options):
  sums = plain_moments(seen, beliefs, centre, even, *options)
  return sums, (seen, beliefs, centre, even)


def _moments_backward(layout, fixed, arguments, cotangents):
  seen, beliefs, centre, even = arguments
  d_mass, d_first, d_second = cotangents

  def d_weight(seen):
    return d_mass + _total(
      deviation * (d_first[entry] + deviation * d_second[entry])
      for entry, deviation in seen.deviations(centre, layout.num_parents)
    )

  d_weights = jax.lax.map(d_weight, seen)
  fixed = fixed or beliefs is None
  if fixed:
    taken = shares(seen, beliefs, even, layout)
    d_beliefs = jax.tree.map(jnp.zeros_like, beliefs)
  else:
    compete = functools.partial(em_windows.compete, windows=layout.windows)
    taken, pull = jax.vjp(compete, _logits(seen, beliefs, layout))
    (d_logits,) = pull(seen.activations[..., None] * d_weights)
    # The centre equals the means, so these are sums of deviations from them.
    mass, first, second = _sums(seen, d_logits, centre, layout)
    d_beliefs = Beliefs(mass, beliefs.precisions * first, -second / 2)
    d_logits = _widen(d_logits, centre)
  d_activations = jnp.sum(taken * d_weights, axis=-1)
  weights = _widen(seen.activations[..., None] * taken, centre)

  statistics = [centre, d_first, d_second]
  if not fixed:
    statistics.append(beliefs.precisions)

  def add_row(total, row):
    poses, centre, d_first, d_second, *precisions = row
    d_poses, d_transforms = [], []
    for t, (m, w) in enumerate(zip(poses, seen.transforms, strict=True)):
      deviations = _row_votes(m, w) - centre
      d_votes = weights[t] * (d_first + 2 * d_second * deviations)
      if precisions:
        d_votes -= d_logits[t] * deviations * precisions[0]
      d_poses.append(numerics.einsum("se,qe->sq", d_votes, w))
      d_transforms.append(numerics.einsum("sq,se->qe", m, d_votes))
    return total + jnp.stack(d_transforms), jnp.stack(d_poses)

  d_transforms, d_poses = jax.lax.scan(
    add_row,
    jnp.zeros_like(seen.transforms),
    _rows(seen.poses, *statistics),
  )
  d_seen = Seen(jnp.moveaxis(d_poses, 0, 2), d_activations, d_transforms)
  return d_seen, d_beliefs, jnp.zeros_like(centre), jnp.zeros_like(even)


moments.defvjp(_moments_forward, _moments_backward)
