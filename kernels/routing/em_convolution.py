"""Convolutional EM routing, whose parents at all positions compete.

Votes are never stored: they are recomputed wherever they are needed, for the
children of one type at a time.

Axes: T places in a window, S positions of parents, both in rows; H W grid of
children; I types of children below, J types of parents above; P Q pose matrix
of a child, P R of a parent and D its numbers in a row; E = R J, the numbers of
one row of the poses of all parents, column after column. One example, no batch
axis: `jax.vmap` adds it.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
    types_at_once: the most types of children to process together; the largest
      such number that divides I is used. Their votes are computed at once, and
      the backward pass stores them: fewer and larger operations for
      accelerators. None processes one type after another, which suits CPUs.

  Returns:
    For each position of the parents [oH oW ...]: poses [J P R], activations
    [J], variances [J P R], and the coefficients [kH kW I J] of the last M-step.

  Raises:
    ValueError: if there are no inverse temperatures, the stride or
      `types_at_once` is below 1, the padding or `gradient` is unknown, no
      window fits, or a known activation is outside of [0, 1].

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
  checks.values(0.0, 1.0, activations=activations)
  em.require_iterations(inverse_temperatures, gradient=gradient)
  em.require_form(form)
  if types_at_once is not None:
    checks.counts(types_at_once=types_at_once)
  dtype = jnp.result_type(poses)
  accumulation = numerics.accumulation_dtype(poses, activations, transforms)
  poses, activations, transforms, beta_a, beta_u = (
    x.astype(accumulation)
    for x in (poses, activations, transforms, beta_a, beta_u)
  )
  windows = em_windows.over(
    activations.shape[:2], transforms.shape[:2], stride=stride, padding=padding
  )
  children = _Children.of(
    windows.surround(poses), windows.surround(activations), transforms
  )
  types = _Types.of(children, types_at_once)
  grid = _Grid.of(windows, children, len(beta_a), form)
  last = gradient == "last"
  layout = em_moments.Layout(windows, len(beta_a), loops=not types.together)
  plain = forward_mode or types.together
  sums_of = em_moments.plain_moments if plain else em_moments.moments
  beliefs: em_moments.Beliefs | None = None
  parents: em.Gaussians | None = None
  for inverse_temperature in inverse_temperatures:
    if parents is None:
      mass, votes = jax.lax.stop_gradient(types.sum(grid.even_moments))
      centre = votes / (mass + form.mass_floor)[:, None, None]
    else:
      if last:
        parents = jax.lax.stop_gradient(parents)
      beliefs = grid.beliefs(parents)
      centre = jax.lax.stop_gradient(beliefs.means)

    def moments(children, beliefs=beliefs, centre=centre):
      arguments = (grid.seen(children), beliefs, centre, grid.even)
      return sums_of(*sharding.vary_alike(arguments), layout, last)

    sums = types.sum(moments)
    parents = em.maximise(
      em.Moments(sums[0], *map(grid.by_parent, sums[1:])),
      grid.by_parent(centre),
      parents,
      beta_a,
      beta_u,
      inverse_temperature=inverse_temperature,
      form=form,
    )

  @jax.checkpoint
  def coefficients(children):
    shares = em_moments.shares(grid.seen(children), beliefs, grid.even, layout)
    return jax.lax.stop_gradient(shares) if last else shares

  assert parents is not None  # there is at least one iteration
  taken = types.map(coefficients)
  output = em.EMOutput(
    grid.as_matrices(parents.means),
    grid.at_positions(jax.nn.sigmoid(parents.logits)),
    grid.by_place(taken),
    grid.as_matrices(parents.variances),
  )
  return jax.tree.map(lambda x: x.astype(dtype), output)


class _Children(NamedTuple):
  """The children of one type, or of several types along leading axes.

  Attributes:
    poses: [H W P Q].
    activations: [H W].
    transforms: [T Q E].
  """

  poses: Float[Array, "*G H W P Q"]
  activations: Float[Array, "*G H W"]
  transforms: Float[Array, "*G T Q E"]

  @classmethod
  def of(
    cls,
    poses: Float[Array, "H W I P Q"],
    activations: Float[Array, "H W I"],
    transforms: Float[Array, "kH kW I J Q R"],
  ) -> "_Children":
    """Arranges the children of I types along a leading axis."""
    num_types, num_parents, inner, columns = transforms.shape[2:]
    return cls(
      jnp.moveaxis(poses, 2, 0),
      jnp.moveaxis(activations, 2, 0),
      transforms.transpose(2, 0, 1, 4, 5, 3).reshape(
        num_types, -1, inner, columns * num_parents
      ),
    )


class _Grid(NamedTuple):
  """The parents at all positions, and the windows in which they see children.

  Attributes:
    windows: which children the parents see.
    rows: P of the poses of parents.
    num_parents: J.
    even: the shares of a child in the first iteration.
  """

  windows: em_windows.Windows
  rows: int
  num_parents: int
  even: Float[Array, "T S"]

  @classmethod
  def of(
    cls,
    windows: em_windows.Windows,
    children: _Children,
    num_parents: int,
    form: em.Form,
  ) -> "_Grid":
    """Divides each child evenly among the parents that compete for it."""
    rivals = windows.num_seeing() if form.even_over_positions else 1.0
    even = jnp.broadcast_to(1 / (num_parents * rivals), windows.shape)
    even = even.astype(children.poses.dtype)
    return cls(windows, children.poses.shape[-2], num_parents, even)

  def seen(self, children: _Children) -> em_moments.Seen:
    """Gathers the children of one type in all windows."""
    return em_moments.Seen(
      self.windows.gather(children.poses),
      self.windows.gather(children.activations),
      children.transforms,
    )

  def even_moments(self, children: _Children) -> tuple[jax.Array, jax.Array]:
    """Mass [S] and weighted sum [S P E] of the votes in the first iteration."""
    seen = self.seen(children)
    weights = seen.activations * self.even
    votes = numerics.einsum(
      "tspq,tqe->spe", weights[..., None, None] * seen.poses, seen.transforms
    )
    return jnp.sum(weights, axis=0), votes

  def beliefs(self, parents: em.Gaussians) -> em_moments.Beliefs:
    """Converts Gaussians to the quantities that the E-step needs."""
    shape = (self.windows.shape[1], self.rows, -1)
    return em_moments.Beliefs(
      parents.log_weights(),
      parents.means.reshape(shape),
      (1 / parents.variances).reshape(shape),
    )

  def by_parent(self, x: Float[Array, "S P E"]) -> Float[Array, "S D J"]:
    """Separates the parents of a position."""
    return x.reshape(self.windows.shape[1], -1, self.num_parents)

  def at_positions(self, x: Float[Array, "S J"]) -> Float[Array, "oH oW J"]:
    """Separates the rows and columns of positions."""
    return x.reshape(*self.windows.grid, self.num_parents)

  def as_matrices(
    self, x: Float[Array, "S D J"]
  ) -> Float[Array, "oH oW J P R"]:
    """Separates positions, and the rows and columns of a pose."""
    shape = (*self.windows.grid, self.rows, -1, self.num_parents)
    return jnp.moveaxis(x.reshape(shape), -1, 2)

  def by_place(self, x: jax.Array) -> Float[Array, "oH oW kH kW I J"]:
    """Arranges the shares [... T S J] of all types by position and place."""
    windows = self.windows
    shape = (-1, *windows.kernel, *windows.grid, self.num_parents)
    return x.reshape(shape).transpose(3, 4, 1, 2, 0, 5)


class _Types(NamedTuple):
  """The types of children in chunks, which are taken one after the other.

  Attributes:
    chunks: along the leading axis; where `together`, a second axis holds the
      types of a chunk.
    together: whether a chunk holds types along an axis, not one type.
  """

  chunks: _Children
  together: bool

  @classmethod
  def of(cls, children: _Children, at_once: int | None) -> "_Types":
    """Divides types along the leading axis into chunks of at most `at_once`."""
    if at_once is None:
      return cls(children, together=False)
    count = len(children.poses)
    size = max(n for n in range(1, min(count, at_once) + 1) if count % n == 0)
    return cls(
      jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), children),
      together=True,
    )

  def sum(self, function: Callable[[_Children], Any]) -> Any:
    """Sums the results of a function of the children of one type.

    The backward pass computes the function again.
    """

    def of_chunk(chunk):
      if not self.together:
        return function(chunk)
      each = jax.vmap(function)(chunk)
      return jax.tree.map(lambda x: jnp.sum(x, axis=0), each)

    of_chunk = jax.checkpoint(of_chunk)

    def add(total, chunk):
      return jax.tree.map(operator.add, total, of_chunk(chunk)), None

    if len(self.chunks.poses) == 1:
      return of_chunk(self._first())
    # Under `jax.shard_map` these types name axes of the mesh; zeros must too.
    start = jax.eval_shape(of_chunk, self._first())
    start = jax.tree.map(jnp.zeros_like, start)
    return jax.lax.scan(add, start, self.chunks)[0]

  def map(self, function: Callable[[_Children], jax.Array]) -> jax.Array:
    """Calls a function of the children of one type, for each type.

    Results have the leading axes of `chunks`, without the first where there is
    one chunk.
    """
    of_chunk = jax.vmap(function) if self.together else function
    if len(self.chunks.poses) == 1:
      return of_chunk(self._first())
    return jax.lax.map(of_chunk, self.chunks)

  def _first(self) -> _Children:
    return jax.tree.map(lambda x: x[0], self.chunks)
