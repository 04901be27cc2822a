"""Generative capsules with known templates, inferred by variational EM.

Nazabal, Tsagkas and Williams (2022), Inference and learning for generative
capsule models. Axes: M points of the image, N points of all templates, K
templates. One image, no batch axis: `jax.vmap` adds it.

Points are complex numbers x + iy within this file: a similarity is then t + w p
with two complex numbers, and the paper's y = (tx, ty, s cos, s sin) is
(Re t, Im t, Re w, -Im w).
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Complex, Float, Int, PRNGKeyArray

from .. import checks, numerics, sharding

_ABSENT = -1e30  # stands for log 0, but is finite
_DECIDED = 0.9  # least probability of an assignment that counts as certain


class Templates(NamedTuple):
  """The points of known objects, each in the object's own frame.

  Attributes:
    points: [N 2], of one template after the other; each template is centred,
      and the root mean square distance of its points from the centre is 1.
    members: [K N], 1 where point n belongs to template k, else 0.
  """

  points: Float[Array, "N 2"]
  members: Float[Array, "K N"]


class Inference(NamedTuple):
  """The result of variational inference.

  Attributes:
    assignments: [M N] in [0, 1], the probability that point m of the image is
      point n of the templates; rows of absent points are 0, the others sum to
      1.
    objects: [M K], the same for whole templates.
    poses: [K 4], means (tx, ty, s cos, s sin) of the templates' similarities:
      point (px, py) lands on (tx + px s cos + py s sin, ty - px s sin +
      py s cos).
    elbo: [], the bound on the log-likelihood that was maximised, in nats, at
      the last precision.
    num_updates: [], the number of updates of the best restart.
  """

  assignments: Float[Array, "M N"]
  objects: Float[Array, "M K"]
  poses: Float[Array, "K 4"]
  elbo: Float[Array, ""]
  num_updates: Int[Array, ""]


class Update(NamedTuple):
  """One round of the updates of q.

  Attributes:
    log_assignments: [R N], of the points of the image and, for permutations, of
      the extra rows to which unseen template points are assigned.
    poses: [K 4], the means of the similarities.
    elbo: [], the bound with these assignments and poses, in nats.
  """

  log_assignments: Float[Array, "R N"]
  poses: Float[Array, "K 4"]
  elbo: Float[Array, ""]


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
    if not radius > 0:
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


@numerics.full_products()
def update(
  log_assignments: Float[Array, "R N"],
  points: Float[Array, "M 2"],
  presence: Float[Array, " M"],
  template: Templates,
  precision: Float[Array, ""],
  *,
  matching: Literal["permutation", "mixture"] = "permutation",
  num_sweeps: int = 2,
) -> Update:
  """Updates the similarities, then the assignments (section 4.2).

  With lam the precision of a point about its predicted position, y_k the
  similarity of template k, F_kn y_k the predicted position of its point n, and
  q(y_k) = N(mu_k, Lambda_k^-1):
    Lambda_k = I + lam sum_mn r_mn F_kn' F_kn,
    mu_k = Lambda_k^-1 lam sum_mn r_mn F_kn' x_m,
    log rho_mn = -log N - lam/2 (|x_m - F mu|^2 + tr(F' F Lambda^-1)),
  and r is rho with each row divided by its sum ("mixture", where several points
  may be the same template point), or rho scaled to be doubly stochastic by
  Sinkhorn and Knopp's sweeps ("permutation"), where extra rows of log rho =
  -log N stand for template points that are not seen.

  Args:
    log_assignments: the previous log r; M rows for mixtures, N for
      permutations.
    points: x, [M 2]; in float32 of magnitude up to 1e8.
    presence: [M], 1 or 0.
    template: the templates.
    precision: lam, > 0.
    matching: see above.
    num_sweeps: sweeps of Sinkhorn and Knopp, over columns and then rows.

  Returns:
    See `Update`, in the dtype of `log_assignments`; no update lowers the
    bound if the number of sweeps suffices.

  Raises:
    ValueError: if `matching` is neither of the two, the number of rows does not
      fit it, a known precision is not above 0, or a known presence is outside
      of [0, 1].
  """
  checks.arrays(
    {
      "points": (points, "M 2"),
      "presence": (presence, "M"),
    },
    empty="M",
  )
  checks.values(0.0, 1.0, presence=presence)
  checks.arrays({"log_assignments": (log_assignments, "R N")}, empty="R")
  dtype = jnp.result_type(log_assignments)
  accumulation = numerics.accumulation_dtype(log_assignments, points)
  _check(template, precision=precision)
  log_assignments, points, presence, precision = (
    jnp.asarray(x, accumulation)
    for x in (log_assignments, points, presence, precision)
  )
  template = Templates(*(x.astype(accumulation) for x in template))
  x, p = _complex(points), _complex(template.points)
  num_rows = _num_rows(matching, len(x), len(p))
  if len(log_assignments) != num_rows:
    raise ValueError(
      f"log_assignments has {len(log_assignments)} rows; give {num_rows} with "
      f"matching={matching!r}."
    )
  there = presence > 0
  shares = jnp.exp(log_assignments[: len(x)]) * there[:, None]
  posterior = _similarities(shares, x, p, template.members, precision)
  offset, turn, mean_cost, prior = posterior
  placed = template.members.T @ offset + p * (template.members.T @ turn)
  squares = jnp.square(jnp.abs(x[:, None] - placed)) + mean_cost
  log_rho = jnp.zeros_like(log_assignments) - math.log(len(p))
  fit = jnp.where(there[:, None], -0.5 * precision * squares, 0.0)
  log_rho = log_rho.at[: len(x)].add(fit)
  if matching == "permutation":
    log_assignments = sinkhorn(log_rho, num_sweeps=num_sweeps)
  else:
    log_assignments = numerics.log_softmax(log_rho, 1)
    log_assignments = jnp.where(there[:, None], log_assignments, _ABSENT)
  assignments = jnp.exp(log_assignments)
  normaliser = jnp.sum(presence) * jnp.log(precision / (2 * jnp.pi))
  matched = jnp.sum(assignments * (log_rho - log_assignments))
  elbo = normaliser + matched - prior
  output = Update(log_assignments, _poses(offset, turn), elbo)
  return jax.tree.map(lambda x: x.astype(dtype), output)


def sinkhorn(
  log_weights: Float[Array, "R N"], *, num_sweeps: int = 2
) -> Float[Array, "R N"]:
  """Scales columns and rows to sum to 1, in turn (Sinkhorn and Knopp, 1967).

  Args:
    log_weights: logarithms of the weights.
    num_sweeps: sweeps over all columns and then all rows; with 0 the weights
      are not changed.

  Returns:
    Logarithms of weights whose rows sum to 1, and whose columns nearly do.
  """
  checks.arrays({"log_weights": (log_weights, "R N")}, empty="R")
  checks.counts(at_least=0, num_sweeps=num_sweeps)

  def sweep(_, x):
    return numerics.log_softmax(numerics.log_softmax(x, 0), 1)

  return jax.lax.fori_loop(0, num_sweeps, sweep, log_weights)


@numerics.full_products()
def infer(
  key: PRNGKeyArray,
  points: Float[Array, "M 2"],
  presence: Float[Array, " M"],
  template: Templates,
  *,
  matching: Literal["permutation", "mixture"] = "permutation",
  first_precision: float = 500.0,
  last_precision: ArrayLike = 1e4,
  num_restarts: int = 5,
  max_updates: int = 500,
  tolerance: float = 1e-3,
  num_sweeps: int = 2,
) -> Inference:
  """Assigns each point to a template (Nazabal et al., 2022, Algorithm 1).

  From random assignments, q is updated until the bound changes by less than
  `tolerance`; then the precision is doubled, up to the last. Where an object
  ends with fewer than two points, which do not determine its similarity, the
  search starts again; where a permutation is undecided at the last precision,
  its assignments are perturbed and the precision is halved. The restart with
  the best bound is returned.

  Args:
    key: samples the first assignments.
    points: [M 2], in a frame where similarities are about N(0, 1): [-1, 1].
    presence: [M], 1 or 0.
    template: the templates; each is in the image at most once.
    matching: as for `update`.
    first_precision: precision of points at the start.
    last_precision: precision at the end, 1 / variance of the noise; may be
      traced.
    num_restarts: at least 1.
    max_updates: the most updates of each restart.
    tolerance: change of the bound, in nats.
    num_sweeps: as for `update`.

  Returns:
    See `Inference`, in float32 or wider; without points all assignments are 0.

  Raises:
    ValueError: if `matching` is neither of the two, counts are below 1, a known
      precision is not above 0, a known presence is outside of [0, 1], or there
      are more points than permutations can assign.

  Differs from the authors' code: the rule for starting again, written there for
  one fixed list of objects, works for any templates; the bounds of all restarts
  are compared at the last precision, also of those that did not reach it; two
  sweeps give results as good as theirs, which are repeated until the weights
  are balanced, at most 20 times.
  """
  checks.arrays(
    {"points": (points, "M 2"), "presence": (presence, "M")}, empty="M"
  )
  checks.values(0.0, 1.0, presence=presence)
  num_points = len(points)
  num_rows = _num_rows(matching, num_points, len(template.points))
  checks.counts(num_restarts=num_restarts, max_updates=max_updates)
  checks.counts(at_least=0, num_sweeps=num_sweeps)
  _check(
    template, first_precision=first_precision, last_precision=last_precision
  )
  dtype = numerics.accumulation_dtype(points)
  points, presence = points.astype(dtype), presence.astype(dtype)
  last = jnp.asarray(last_precision, dtype)
  problem = _Problem(points, presence, template, matching, num_rows, num_sweeps)
  first = jnp.minimum(jnp.asarray(first_precision, dtype), last)

  def search(key):
    first_key, key = jax.random.split(key)
    assignments = problem.random_assignments(first_key)
    begin = (
      assignments, first, jnp.asarray(-jnp.inf, dtype), jnp.int32(0),
      jnp.array(False),
    )  # fmt: skip
    inputs = (assignments, points, presence, template, last)
    found = jax.lax.while_loop(
      lambda x: ~x.done & (x.num_updates < max_updates),
      lambda x: _advance(problem, x, first, last, tolerance),
      _Search(key, *sharding.vary_alike(begin, inputs)),
    )
    end = problem.update(found.log_assignments, last)
    return end, found.num_updates

  ends, counts = jax.vmap(search)(jax.random.split(key, num_restarts))
  best = jnp.argmax(ends.elbo)
  end = jax.tree.map(lambda x: x[best], ends)
  assignments = jnp.exp(end.log_assignments[:num_points]) * presence[:, None]
  objects = assignments @ template.members.T
  return Inference(assignments, objects, end.poses, end.elbo, counts[best])


class _Problem(NamedTuple):
  """Points whose templates are sought, and the way to update assignments."""

  points: Float[Array, "M 2"]
  presence: Float[Array, " M"]
  template: Templates
  matching: Literal["permutation", "mixture"]
  num_rows: int
  num_sweeps: int

  def update(self, log_assignments, precision) -> Update:
    """Updates once."""
    return update(
      log_assignments,
      self.points,
      self.presence,
      self.template,
      precision=precision,
      matching=self.matching,
      num_sweeps=self.num_sweeps,
    )

  def normalised(self, shares: Float[Array, "M N"]) -> Float[Array, "R N"]:
    """Makes assignments from shares of the points."""
    num_points, size = shares.shape
    rest = jnp.full((self.num_rows - num_points, size), 1 / size, shares.dtype)
    shares = jnp.where(self.presence[:, None] > 0, shares, 1 / size)
    shares = jnp.log(jnp.concatenate([shares, rest]))
    if self.matching == "permutation":
      return sinkhorn(shares, num_sweeps=self.num_sweeps)
    return numerics.log_softmax(shares, 1)

  def random_assignments(self, key) -> Float[Array, "R N"]:
    """Samples assignments from which a search starts."""
    size = len(self.points), len(self.template.points)
    return self.normalised(_shares(key, size, self.points.dtype))


class _Search(NamedTuple):
  """The state of one restart."""

  key: PRNGKeyArray
  log_assignments: Float[Array, "R N"]
  precision: Float[Array, ""]
  elbo: Float[Array, ""]
  num_updates: Int[Array, ""]
  done: Bool[Array, ""]


def _advance(
  problem: _Problem, search: _Search, first, last, tolerance
) -> _Search:
  """Updates once; after convergence doubles the precision or starts again."""
  new = problem.update(search.log_assignments, search.precision)
  settled = jnp.abs(new.elbo - search.elbo) < tolerance
  assigned = jnp.exp(new.log_assignments[: len(problem.points)])
  assigned = assigned * (problem.presence[:, None] > 0)
  lonely = settled & _lonely(assigned, problem.template.members)
  at_end = search.precision >= last
  open_ = _undecided(assigned, problem.presence) & (
    problem.matching == "permutation"
  )
  shaken = settled & ~lonely & at_end & open_
  done = settled & ~lonely & at_end & ~open_
  key, start_key, shake_key = jax.random.split(search.key, 3)
  shake = problem.normalised(
    assigned + 0.1 * _shares(shake_key, assigned.shape, assigned.dtype)
  )
  log_assignments = jnp.select(
    [lonely, shaken],
    [problem.random_assignments(start_key), shake],
    new.log_assignments,
  )
  doubled = jnp.minimum(2 * search.precision, last)
  precision = jnp.select(
    [lonely, shaken, settled & ~done],
    [first, search.precision / 2, doubled],
    search.precision,
  )
  elbo = jnp.where(settled & ~done, -jnp.inf, new.elbo)
  return _Search(
    key, log_assignments, precision, elbo, search.num_updates + 1, done
  )


def _check(template, **precisions):
  """Checks templates and precisions."""
  checks.arrays(
    {
      "template.points": (template.points, "N 2"),
      "template.members": (template.members, "K N"),
    }
  )
  checks.positive(**precisions)


def _num_rows(matching, num_points, size):
  """Rows of assignments: one for each point, or for each template point."""
  rows = {"permutation": size, "mixture": num_points}
  if matching not in rows:
    raise ValueError(f"matching={matching!r}; pass 'permutation' or 'mixture'.")
  if num_points > rows[matching]:
    raise ValueError(
      f"{num_points} points are too many for a permutation of {size} template "
      "points; pass matching='mixture'."
    )
  return rows[matching]


class _Posterior(NamedTuple):
  """q of similarities t + w p: means, tr(F'F Lambda^-1), KL to the prior."""

  offset: Complex[Array, " K"]
  turn: Complex[Array, " K"]
  spread: Float[Array, " N"]
  divergence: Float[Array, ""]


def _similarities(shares, x, p, members, precision) -> _Posterior:
  """Posterior of similarities from shares [M N] of points x, template points p.

  The prior is N(0, I).

  The 4x4 matrix Lambda of the paper is the complex [[a, b], [b*, c]].
  """
  mass = jnp.sum(shares, axis=0)
  target = shares.T.astype(x.dtype) @ x
  weigh = precision * members
  a = 1 + weigh @ mass
  b = weigh @ (mass * p)
  c = 1 + weigh @ (mass * jnp.square(jnp.abs(p)))
  determinant = a * c - jnp.square(jnp.abs(b))
  first, second = weigh @ target, weigh @ (jnp.conj(p) * target)
  offset = (c * first - b * second) / determinant
  turn = (a * second - jnp.conj(b) * first) / determinant
  of_point = members.T @ jnp.stack([a, c, b.real, b.imag, determinant], -1)
  point_a, point_c, real, imaginary, point_determinant = of_point.T
  crossed = p.real * real + p.imag * imaginary
  spread = point_c + point_a * jnp.square(jnp.abs(p)) - 2 * crossed
  size = jnp.square(jnp.abs(offset)) + jnp.square(jnp.abs(turn))
  each = (a + c) / determinant + size / 2 - 2 + jnp.log(determinant)
  return _Posterior(offset, turn, 2 * spread / point_determinant, jnp.sum(each))


def _shares(key, shape, dtype):
  """Positive random numbers."""
  return jax.random.uniform(key, shape, dtype, minval=1e-6)


def _lonely(assigned, members):
  """Whether a template has a certain point, but fewer than two in total."""
  points = jnp.sum(assigned, axis=0) @ members.T
  peaks = jnp.max(jnp.max(assigned, axis=0, initial=0.0) * members, axis=1)
  return jnp.any((peaks > _DECIDED) & (points < 2))


def _undecided(assigned, presence):
  """Whether a present point has no certain assignment."""
  sure = jnp.max(assigned, axis=1) > _DECIDED
  return jnp.any((presence > 0) & ~sure)


def _complex(points: Float[Array, "N 2"]) -> Complex[Array, " N"]:
  return jax.lax.complex(points[:, 0], points[:, 1])


def _poses(offset, turn) -> Float[Array, "K 4"]:
  return jnp.stack([offset.real, offset.imag, turn.real, -turn.imag], axis=-1)
