"""Convolutional EM routing, whose parents at all positions compete.

Votes are never stored: they are recomputed wherever they are needed, for the
children of one type at a time.

Axes: T places in a window, S positions of parents, both in rows; H W grid of
children; I types of children below, J types of parents above; P Q pose matrix
of a child, P R of a parent and D its numbers in a row; E the numbers of one row
of all parents, J of each column. One example, no batch axis: `jax.vmap` adds
it.
"""

import operator
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import checks, numerics, sharding
from . import em, em_moments
from . import windows as em_windows


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
  types_at_once: int | None = None,
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
    types_at_once: types of children to take together, at most; the largest
      number that divides I is taken. All their votes are then formed at once,
      and the backward pass stores them: fewer and larger operations for
      accelerators. None takes one type after another, which suits CPUs.

  Returns:
    For each position of the parents [oH oW ...]: poses [J P R], activations
    [J], variances [J P R], and the coefficients [kH kW I J] of the last M-step.

  Raises:
    ValueError: if there are no inverse temperatures, the stride or
      `types_at_once` is below 1, the padding or `gradient` is unknown, or no
      window fits.

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
  if types_at_once is not None:
    checks.counts(types_at_once=types_at_once)
  dtype = jnp.result_type(poses)
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
  one_by_one = types_at_once is None
  if types_at_once is not None:
    together = _largest_divisor(num_types, types_at_once)
    chunks = jax.tree.map(
      lambda x: x.reshape(-1, together, *x.shape[1:]), chunks
    )
  first = jax.tree.map(lambda x: x[0], chunks)
  rivals = windows.num_seeing() if form.even_over_positions else 1.0
  even = jnp.broadcast_to(1 / (num_parents * rivals), windows.shape)
  even = even.astype(accumulation)

  def pass_over(function):
    """Sums the results of the function over the types of children."""
    function = jax.checkpoint(function if one_by_one else _summed(function))

    def add(total, chunk):
      return jax.tree.map(operator.add, total, function(chunk)), None

    if len(chunks.poses) == 1:
      return function(first)
    # Under `jax.shard_map` these types name axes of the mesh; zeros must too.
    start = jax.tree.map(jnp.zeros_like, jax.eval_shape(function, first))
    return jax.lax.scan(add, start, chunks)[0]

  def in_windows(chunk):
    return em_moments.Seen(
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
    return em_moments.Beliefs(
      parents.log_weights(),
      parents.means.reshape(shape),
      (1 / parents.variances).reshape(shape),
    )

  last = gradient == "last"
  layout = em_moments.Layout(windows, num_parents, loops=one_by_one)
  plain = forward_mode or not one_by_one
  sums_of = em_moments.plain_moments if plain else em_moments.moments
  beliefs: em_moments.Beliefs | None = None
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
      arguments = (in_windows(chunk), beliefs, centre, even)
      return sums_of(*sharding.vary_alike(arguments), layout, last)

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
    shares = em_moments.shares(in_windows(chunk), beliefs, even, layout)
    return jax.lax.stop_gradient(shares) if last else shares

  assert parents is not None  # there is at least one iteration
  grid = windows.grid

  def as_matrices(x):
    return jnp.moveaxis(x.reshape(*grid, rows, columns, num_parents), -1, 2)

  each = coefficients if one_by_one else jax.vmap(coefficients)
  if len(chunks.poses) == 1:
    taken = each(first)
  else:
    taken = jax.lax.map(each, chunks)
  taken = taken.reshape(num_types, *kernel, *grid, num_parents)
  output = em.EMOutput(
    as_matrices(parents.means),
    jax.nn.sigmoid(parents.logits).reshape(*grid, num_parents),
    taken.transpose(3, 4, 1, 2, 0, 5),
    as_matrices(parents.variances),
  )
  return jax.tree.map(lambda x: x.astype(dtype), output)


def _largest_divisor(number, limit):
  return max(n for n in range(1, min(number, limit) + 1) if number % n == 0)


def _summed(function):
  """Sums a function of one type of children over several types."""

  def of_several(chunk):
    each = jax.vmap(function)(chunk)
    return jax.tree.map(lambda x: jnp.sum(x, axis=0), each)

  return of_several


class _Chunk(NamedTuple):
  """The children of one type, or of several types along leading axes.

  Attributes:
    poses: [H W P Q].
    activations: [H W].
    transforms: [T Q E].
  """

  poses: Float[Array, "*G H W P Q"]
  activations: Float[Array, "*G H W"]
  transforms: Float[Array, "*G T Q E"]
