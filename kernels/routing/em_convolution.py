"""Convolutional EM routing, whose parents at all positions compete.

Votes are never stored: they are recomputed wherever they are needed, for the
children of one type at a time.

Axes: T places in a window, S positions of parents, both in rows; H W grid of
children; I types of children below, J types of parents above; P Q pose matrix
of a child, P R of a parent and D its numbers in a row; E the numbers of one row
of all parents, J of each column. One example, no batch axis: `jax.vmap` adds
it.

Some code below is written for the speed of XLA on CPUs. Loops over a long last
axis, J or E, become vector instructions; sums over an earlier axis do not, so
they are written out. Operands computed outside of a loop of `jax.lax` are
stored before it; otherwise XLA might recompute them for every number of every
vote.
"""

import functools
import operator
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import checks, numerics
from . import em
from . import windows as em_windows

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
  gradient: str = "all",
  forward_mode: bool = False,
) -> em.EMOutput:
  """Routes from each window of children to J parents (Hinton et al., 2018).

  The parents at (y, x) see the children at (stride y + v, stride x + u) for
  v < kH, u < kW. A child of type i at place (v, u) of the window votes M W_vuij
  with its pose M; the transforms W are the same at all positions. E- and
  M-steps are those of `em.em_routing`, but the shares of a child sum to 1 over
  all parents that see it, of every type and at every position.

  Memory holds the statistics of the parents and, for one type of children at a
  time, the poses and shares in all windows. The backward pass recomputes votes
  and shares by a custom rule, for which JAX supports reverse mode only.

  Args:
    poses: matrices of the children; in float32 of magnitude up to 1e4, as are
      transforms and betas, and all up to 1e2 for finite gradients; see
      `em.em_routing`.
    activations: activations of the children, in [0, 1].
    transforms: from the poses of children to those of parents.
    beta_a: as for `em.em_routing`, for each type of parents.
    beta_u: as for `em.em_routing`, for each type of parents.
    inverse_temperatures: as for `em.em_routing`.
    stride: the same along both axes, at least 1.
    padding: "VALID", where no window reaches the last children if the stride
      does not fit, or "SAME", with absent children around the grid
      (ceil(H / stride) rows of parents).
    form: as for `em.em_routing`.
    gradient: as for `em.em_routing`.
    forward_mode: whether `jax.jvp` works too, for example for Hessians: JAX
      then derives both modes, and the backward pass takes more memory and time.

  Returns:
    For each position of the parents [oH oW ...]: poses [J P R], activations
    [J], variances [J P R], and the coefficients [kH kW I J] of the last M-step.

  Raises:
    ValueError: if there are no inverse temperatures, the stride is below 1, the
      padding or `gradient` is unknown, or no window fits.

  Differs from paper: as `em.em_routing`. In the authors' code, which has
  `em.OFFICIAL`, parents of different types do not compete (the shares of a
  child sum to 1 over the positions, for each type), and with a stride of 2 the
  sum is over other positions than those that see the child; we follow the
  paper. Their code divides shares by their sum + 1e-7; ours sum to 1.
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
  em.require_iterations(inverse_temperatures, gradient=gradient)
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
    """Sums the results of the function over the types of children."""
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
    """Mass and weighted sum of the votes in the first iteration."""
    seen = in_windows(chunk)
    weights = seen.activations * even
    votes = numerics.einsum(
      "tspq,tqe->spe", weights[..., None, None] * seen.poses, seen.transforms
    )
    return jnp.sum(weights, axis=0), votes

  def believed(parents):
    """Converts Gaussians to the quantities that the E-step needs."""
    return _Beliefs(
      parents.log_weights(),
      parents.means.reshape(shape),
      (1 / parents.variances).reshape(shape),
    )

  last = gradient == "last"
  sums_of = _plain_moments if forward_mode else _moments
  beliefs: _Beliefs | None = None
  parents: em.Gaussians | None = None
  for inverse_temperature in inverse_temperatures:
    if parents is None:
      mass, votes = jax.lax.stop_gradient(pass_over(even_moments))
      centre = votes / (mass + form.mass_floor)[:, None, None]
    else:
      if last:
        parents = jax.lax.stop_gradient(parents)
      beliefs = believed(parents)
      centre = jax.lax.stop_gradient(beliefs.means)

    def moments(chunk, beliefs=beliefs, centre=centre):
      return sums_of(
        in_windows(chunk), beliefs, centre, even, windows, num_parents, last
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
    shares = _shares(in_windows(chunk), beliefs, even, windows, num_parents)
    return jax.lax.stop_gradient(shares) if last else shares

  assert parents is not None  # there is at least one iteration
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
  """The children of one type at all T places of the windows, or at one place.

  Attributes:
    poses: [T S P Q]; without the axis T at one place, as the others.
    activations: [T S].
    transforms: [T Q E].
  """

  poses: Float[Array, "*T S P Q"]
  activations: Float[Array, "*T S"]
  transforms: Float[Array, "*T Q E"]

  def deviations(self, means, num_parents):
    """Yields index (s, p, e) and [S J], votes minus means, at one place."""
    m, w = self.poses, self.transforms
    for p in range(m.shape[1]):
      row = _row_votes(m[:, p], w) if len(w) > _FEW else None
      for start in range(0, w.shape[1], num_parents):
        e = slice(start, start + num_parents)
        vote = _row_votes(m[:, p], w[:, e]) if row is None else row[:, e]
        yield (slice(None), p, e), vote - means[:, p, e]


class _Beliefs(NamedTuple):
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


def _logits(seen, beliefs):
  """Logit ln a_j N(u_ij; mu_j, v_j) of each vote, less a constant [T S J]."""
  num_parents = beliefs.log_weights.shape[1]

  def at_place(seen):
    distances = _total(
      jnp.square(deviation) * beliefs.precisions[entry]
      for entry, deviation in seen.deviations(beliefs.means, num_parents)
    )
    return beliefs.log_weights - distances / 2

  return jax.lax.map(at_place, seen)


def _shares(seen, beliefs, even, windows, num_parents):
  """The E-step: shares [T S J]; even shares before the first M-step."""
  if beliefs is None:
    return jnp.broadcast_to(even[..., None], (*even.shape, num_parents))
  return em_windows.compete(_logits(seen, beliefs), windows)


def _sums(seen, weights, centre):
  """Mass, first and second moments of votes with weights [T S J]."""
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
  """Moves the rows P of poses [T S P Q] and statistics [S P E] to the front."""
  return jnp.moveaxis(poses, 2, 0), *(jnp.moveaxis(x, 1, 0) for x in statistics)


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


def _plain_moments(seen, beliefs, centre, even, windows, num_parents, fixed):
  """Moments of the votes of the children in a window about a centre [S P E].

  Gradients treat the centre and the even shares, or all if `fixed`, as
  constants.
  """
  shares = _shares(seen, beliefs, even, windows, num_parents)
  shares = jax.lax.stop_gradient(shares) if fixed else shares
  return _sums(seen, seen.activations[..., None] * shares, centre)


_moments = jax.custom_vjp(_plain_moments, nondiff_argnums=(4, 5, 6))


def _moments_forward(seen, beliefs, centre, even, *options):
  sums = _plain_moments(seen, beliefs, centre, even, *options)
  return sums, (seen, beliefs, centre, even)


def _moments_backward(windows, num_parents, fixed, arguments, cotangents):
  seen, beliefs, centre, even = arguments
  d_mass, d_first, d_second = cotangents

  def d_weight(seen):
    return d_mass + _total(
      deviation * (d_first[entry] + deviation * d_second[entry])
      for entry, deviation in seen.deviations(centre, num_parents)
    )

  d_weights = jax.lax.map(d_weight, seen)
  fixed = fixed or beliefs is None
  if fixed:
    shares = _shares(seen, beliefs, even, windows, num_parents)
    d_beliefs = jax.tree.map(jnp.zeros_like, beliefs)
  else:
    compete = functools.partial(em_windows.compete, windows=windows)
    shares, pull = jax.vjp(compete, _logits(seen, beliefs))
    (d_logits,) = pull(seen.activations[..., None] * d_weights)
    # The centre is where the means are.
    mass, first, second = _sums(seen, d_logits, centre)
    d_beliefs = _Beliefs(mass, beliefs.precisions * first, -second / 2)
    d_logits = _widen(d_logits, centre)
  d_activations = jnp.sum(shares * d_weights, axis=-1)
  weights = _widen(seen.activations[..., None] * shares, centre)

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
  d_seen = _Seen(jnp.moveaxis(d_poses, 0, 2), d_activations, d_transforms)
  return d_seen, d_beliefs, jnp.zeros_like(centre), jnp.zeros_like(even)


_moments.defvjp(_moments_forward, _moments_backward)
