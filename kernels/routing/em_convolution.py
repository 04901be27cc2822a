"""Convolutional EM routing, whose parents at all positions compete.

Votes are never stored: they are formed again wherever they are needed, for the
children of one type at a time.

Axes: T places in a window, S positions of parents, both in rows; H W grid of
children; I types of children below, J types of parents above; P Q pose matrix
of a child, P R of a parent and D its numbers in a row; E the numbers of one row
of all parents, J of each column. One example, no batch axis: `jax.vmap` adds
it.

What is not obvious below is for XLA on CPUs. Loops over a long last axis, J or
E, become vector instructions; sums over an axis before it do not, so they are
written out. An operand that comes from outside a loop of `jax.lax` is stored
before, where XLA else might form it anew for every number of every vote.
"""

import functools
import operator
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernels import checks, numerics
from kernels.routing import em
from kernels.routing import windows as em_windows

_FEW = 8  # terms of a sum that are written out; more are a matrix product


def em_convolution(
  poses: Float[Array, "H W I P Q"],
  activations: Float[Array, "H W I"],
  transforms: Float[Array, "kH kW I J Q R"],
  beta_a: Float[Array, " J"],
  beta_u: Float[Array, " J"],
  *,
  inverse_temperatures: Sequence[float] | Float[Array, " T"],
  stride: int = 1,
  padding: str = "VALID",
  form: em.Form = em.PAPER,
  forward_mode: bool = False,
) -> em.EMOutput:
  """Routes from each window of children to J parents (Hinton et al., 2018).

  The parents at (y, x) see the children at (stride y + v, stride x + u) for
  v < kH, u < kW. A child of type i at place (v, u) of the window votes M W_vuij
  with its pose M; the transforms W are the same at all positions. E- and
  M-steps are those of `em.em_routing`, but the shares of a child sum to 1 over
  all parents that see it, of every type and at every position.

  Memory holds the statistics of the parents, and what the windows of one type
  of children have to do with them; the backward pass forms votes and shares
  again by rules of its own, with which JAX allows reverse mode alone.

  Args:
    poses: matrices of the children; in float32 of magnitude up to 1e4, as are
      transforms and betas, and all up to 1e2 for finite gradients; see
      `em.em_routing`.
    activations: of the children, in [0, 1].
    transforms: from the poses of children to those of parents.
    beta_a: as for `em.em_routing`, of each type.
    beta_u: as for `em.em_routing`, of each type.
    inverse_temperatures: as for `em.em_routing`.
    stride: the same along both axes, at least 1.
    padding: "VALID", which leaves children over that no window reaches, or
      "SAME", with absent children around (ceil(H / stride) rows of parents).
    form: as for `em.em_routing`.
    forward_mode: whether `jax.jvp` works too, for Hessians and the like: JAX
      derives both modes, and the backward pass takes more memory and time.

  Returns:
    For each position of the parents [oH oW ...]: poses [J P R], activations
    [J], variances [J P R], and the coefficients [kH kW I J] of the last M-step.

  Raises:
    ValueError: if there are no inverse temperatures, the stride is below 1, the
      padding is unknown, or no window fits.

  Differs from paper: as `em.em_routing`. In the authors' code, which has
  `em.OFFICIAL`, parents of different types do not compete (the shares of a
  child sum to 1 over the positions, for each type), and with a stride of 2
  other positions are summed than those that see the child; we follow the paper.
  It divides shares by their sum + 1e-7; ours sum to 1.
  """
  checks.arrays(
    {
      "poses": (poses, "H W I P Q"),
      "activations": (activations, "H W I"),
      "transforms": (transforms, "kH kW I J Q R"),
      "beta_a": (beta_a, "J"),
      "beta_u": (beta_u, "J"),
    }
  )
  em.require_iterations(inverse_temperatures)
  dtype = poses.dtype
  accumulation = numerics.accumulation_dtype(poses, activations, transforms)
  poses, activations, transforms, beta_a, beta_u = (
    x.astype(accumulation)
    for x in (poses, activations, transforms, beta_a, beta_u)
  )
  kernel = transforms.shape[:2]
  windows = em_windows.over(
    activations.shape[:2], kernel, stride=stride, padding=padding
  )
  poses, activations = windows.surround(poses), windows.surround(activations)
  num_types, num_parents, inner, columns = transforms.shape[2:]
  rows = poses.shape[3]
  shape = (windows.shape[1], rows, columns * num_parents)
  chunks = _Chunk(
    jnp.moveaxis(poses, 2, 0),
    jnp.moveaxis(activations, 2, 0),
    transforms.transpose(2, 0, 1, 4, 5, 3).reshape(
      num_types, -1, inner, shape[2]
    ),
  )
  rivals = windows.num_seeing() if form.even_over_positions else 1.0
  even = jnp.broadcast_to(1 / (num_parents * rivals), windows.shape)
  even = even.astype(accumulation)

  def pass_over(function):
    """Of one type after another, adding up what the function returns."""
    function = jax.checkpoint(function)

    def add(total, chunk):
      return jax.tree.map(operator.add, total, function(chunk)), None

    first = jax.tree.map(lambda x: x[0], chunks)
    start = jax.tree.map(
      lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, first)
    )
    return jax.lax.scan(add, start, chunks)[0]

  def in_windows(chunk):
    return _Seen(
      windows.gather(chunk.poses),
      windows.gather(chunk.activations),
      chunk.transforms,
    )

  def even_moments(chunk):
    """Of mass and votes about zero, in the first iteration."""
    seen = in_windows(chunk)
    weights = seen.activations * even
    votes = numerics.einsum(
      "tspq,tqe->spe", weights[..., None, None] * seen.poses, seen.transforms
    )
    return jnp.sum(weights, axis=0), votes

  def believed(parents):
    """What the E-step needs to know of the parents."""
    return _Beliefs(
      parents.log_weights(),
      parents.means.reshape(shape),
      (1 / parents.variances).reshape(shape),
    )

  sums_of = _plain_moments if forward_mode else _moments
  beliefs = parents = None
  for inverse_temperature in inverse_temperatures:
    if parents is None:
      mass, votes = jax.lax.stop_gradient(pass_over(even_moments))
      centre = votes / (mass + form.mass_floor)[:, None, None]
    else:
      beliefs = believed(parents)
      centre = jax.lax.stop_gradient(beliefs.means)

    def moments(chunk, beliefs=beliefs, centre=centre):
      return sums_of(
        in_windows(chunk), beliefs, centre, even, windows, num_parents
      )

    sums = pass_over(moments)
    flat = (windows.shape[1], -1, num_parents)
    parents = em.maximise(
      em.Moments(sums[0], *(x.reshape(flat) for x in sums[1:])),
      centre.reshape(flat),
      parents,
      beta_a,
      beta_u,
      inverse_temperature=inverse_temperature,
      form=form,
    )

  @jax.checkpoint
  def coefficients(chunk):
    return _shares(in_windows(chunk), beliefs, even, windows, num_parents)

  grid = windows.grid

  def as_matrices(x):
    return jnp.moveaxis(x.reshape(*grid, rows, columns, num_parents), -1, 2)

  taken = jax.lax.map(coefficients, chunks)
  taken = taken.reshape(num_types, *kernel, *grid, num_parents)
  output = em.EMOutput(
    as_matrices(parents.means),
    jax.nn.sigmoid(parents.logits).reshape(*grid, num_parents),
    taken.transpose(3, 4, 1, 2, 0, 5),
    as_matrices(parents.variances),
  )
  return jax.tree.map(lambda x: x.astype(dtype), output)


class _Chunk(NamedTuple):
  """The children of one type; of all types with a leading axis I.

  Attributes:
    poses: [H W P Q].
    activations: [H W].
    transforms: [T Q E].
  """

  poses: Float[Array, "*I H W P Q"]
  activations: Float[Array, "*I H W"]
  transforms: Float[Array, "*I T Q E"]


class _Seen(NamedTuple):
  """The children of one type in their places; without T, at one place.

  Attributes:
    poses: [T S P Q].
    activations: [T S].
    transforms: [T Q E].
  """

  poses: Float[Array, "*T S P Q"]
  activations: Float[Array, "*T S"]
  transforms: Float[Array, "*T Q E"]

  def deviations(self, means, num_parents):
    """Yields (s, p, e), and [S J] of votes less means, at one place."""
    m, w = self.poses, self.transforms
    for p in range(m.shape[1]):
      row = _row_votes(m[:, p], w) if len(w) > _FEW else None
      for start in range(0, w.shape[1], num_parents):
        e = slice(start, start + num_parents)
        vote = _row_votes(m[:, p], w[:, e]) if row is None else row[:, e]
        yield (slice(None), p, e), vote - means[:, p, e]


class _Beliefs(NamedTuple):
  """What the E-step knows of the parents.

  Attributes:
    log_weights: [S J], ln a_j - sum_d ln v_jd / 2.
    means: [S P E].
    precisions: [S P E], one over variances.
  """

  log_weights: Float[Array, "S J"]
  means: Float[Array, "S P E"]
  precisions: Float[Array, "S P E"]


def _total(terms):
  return functools.reduce(operator.add, terms)


def _logits(seen, beliefs):
  """Of each vote, ln a_j N(u_ij; mu_j, v_j) but for a constant: [T S J]."""
  num_parents = beliefs.log_weights.shape[1]

  def at_place(seen):
    distances = _total(
      jnp.square(deviation) * beliefs.precisions[entry]
      for entry, deviation in seen.deviations(beliefs.means, num_parents)
    )
    return beliefs.log_weights - distances / 2

  return jax.lax.map(at_place, seen)


def _shares(seen, beliefs, even, windows, num_parents):
  """The E-step; even shares [T S] where nothing is believed yet."""
  if beliefs is None:
    return jnp.broadcast_to(even[..., None], (*even.shape, num_parents))
  return em_windows.compete(_logits(seen, beliefs), windows)


def _sums(seen, weights, centre):
  """Mass, first and second moments of weighted children [T S J]."""
  wide = _widen(weights, centre)

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
  """Of [T S P Q] and [S P E], with the rows P of poses in front."""
  return jnp.moveaxis(poses, 2, 0), *(jnp.moveaxis(x, 1, 0) for x in statistics)


def _row_votes(poses, transforms):
  """[S Q] and [Q E] to [S E]."""
  if len(transforms) > _FEW:
    return numerics.einsum("sq,qe->se", poses, transforms)
  return _total(
    poses[:, q, None] * transforms[q] for q in range(len(transforms))
  )


def _widen(x, centre):
  """[T S J] to [T S E]."""
  return jnp.concatenate([x] * (centre.shape[-1] // x.shape[-1]), axis=-1)


def _plain_moments(seen, beliefs, centre, even, windows, num_parents):
  """Sums over the children in a window, about a centre [S P E].

  Centre and even shares count as constants.
  """
  shares = _shares(seen, beliefs, even, windows, num_parents)
  return _sums(seen, seen.activations[..., None] * shares, centre)


_moments = jax.custom_vjp(_plain_moments, nondiff_argnums=(4, 5))


def _moments_forward(seen, beliefs, centre, even, windows, num_parents):
  sums = _plain_moments(seen, beliefs, centre, even, windows, num_parents)
  return sums, (seen, beliefs, centre, even)


def _moments_backward(windows, num_parents, arguments, changes):
  seen, beliefs, centre, even = arguments
  by_mass, by_first, by_second = changes

  def by_weight(seen):
    return by_mass + _total(
      deviation * (by_first[entry] + deviation * by_second[entry])
      for entry, deviation in seen.deviations(centre, num_parents)
    )

  by_weights = jax.lax.map(by_weight, seen)
  by_beliefs = None
  if beliefs is None:
    shares = _shares(seen, None, even, windows, num_parents)
  else:
    compete = functools.partial(em_windows.compete, windows=windows)
    shares, pull = jax.vjp(compete, _logits(seen, beliefs))
    (by_logits,) = pull(seen.activations[..., None] * by_weights)
    # The centre is where the means are.
    mass, first, second = _sums(seen, by_logits, centre)
    by_beliefs = _Beliefs(mass, beliefs.precisions * first, -second / 2)
    by_logits = _widen(by_logits, centre)
  by_activations = jnp.sum(shares * by_weights, axis=-1)
  weights = _widen(seen.activations[..., None] * shares, centre)

  statistics = [centre, by_first, by_second]
  if beliefs is not None:
    statistics.append(beliefs.precisions)

  def add_row(total, row):
    poses, centre, by_first, by_second, *precisions = row
    by_poses, by_transforms = [], []
    for t, (m, w) in enumerate(zip(poses, seen.transforms, strict=True)):
      deviations = _row_votes(m, w) - centre
      by_votes = weights[t] * (by_first + 2 * by_second * deviations)
      if precisions:
        by_votes -= by_logits[t] * deviations * precisions[0]
      by_poses.append(numerics.einsum("se,qe->sq", by_votes, w))
      by_transforms.append(numerics.einsum("sq,se->qe", m, by_votes))
    return total + jnp.stack(by_transforms), jnp.stack(by_poses)

  by_transforms, by_poses = jax.lax.scan(
    add_row,
    jnp.zeros_like(seen.transforms),
    _rows(seen.poses, *statistics),
  )
  by_seen = _Seen(jnp.moveaxis(by_poses, 0, 2), by_activations, by_transforms)
  return by_seen, by_beliefs, jnp.zeros_like(centre), jnp.zeros_like(even)


_moments.defvjp(_moments_forward, _moments_backward)
