"""Generative capsules with known templates, inferred by variational EM.

Nazabal, Tsagkas and Williams (2022), Inference and learning for generative
capsule models. Axes: M points of the image, N points of all templates, K
templates. One image, no batch axis: `jax.vmap` adds it.
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .. import checks, numerics, sharding
from . import similarities

_ABSENT = -1e30  # stands for log 0, but is finite
_DECIDED = 0.9  # least probability of an assignment that counts as certain


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


@numerics.full_products()
def update(
  log_assignments: Float[Array, "R N"],
  points: Float[Array, "M 2"],
  presence: Float[Array, " M"],
  template: similarities.Templates,
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
    points: x, [M 2]; in float32 of magnitude up to 1e8. Absent points may have
      any value.
    presence: [M]; a point is present if its presence is above 0.
    template: the templates.
    precision: lam, > 0.
    matching: see above.
    num_sweeps: sweeps of Sinkhorn and Knopp, over columns and then rows.

  Returns:
    See `Update`, in the dtype of `log_assignments`; no update lowers the
    bound if the number of sweeps suffices.

  Raises:
    ValueError: if `matching` is neither of the two, the number of rows does not
      fit it, a known precision is not above 0, a known presence is outside of
      [0, 1], or a known point that is present is not finite.
  """
  checks.arrays(
    {
      "points": (points, "M 2"),
      "presence": (presence, "M"),
    },
    empty="M",
  )
  points = similarities.present_points(points, presence)
  checks.arrays({"log_assignments": (log_assignments, "R N")}, empty="R")
  dtype = jnp.result_type(log_assignments)
  accumulation = numerics.accumulation_dtype(log_assignments, points)
  similarities.check_templates(template)
  checks.positive(precision=precision)
  log_assignments, points, presence, precision = (
    jnp.asarray(x, accumulation)
    for x in (log_assignments, points, presence, precision)
  )
  template = similarities.Templates(*(x.astype(accumulation) for x in template))
  x = similarities.as_complex(points)
  p = similarities.as_complex(template.points)
  num_rows = _num_rows(matching, len(x), len(p))
  if len(log_assignments) != num_rows:
    raise ValueError(
      f"log_assignments has {len(log_assignments)} rows; give {num_rows} with "
      f"matching={matching!r}."
    )
  present = presence > 0
  shares = jnp.exp(log_assignments[: len(x)]) * present[:, None]
  offset, turn, mean_cost, prior = similarities.posterior(
    shares, x, p, template.members, precision
  )
  placed = template.members.T @ offset + p * (template.members.T @ turn)
  squares = jnp.square(jnp.abs(x[:, None] - placed)) + mean_cost
  log_rho = jnp.zeros_like(log_assignments) - math.log(len(p))
  fit = jnp.where(present[:, None], -0.5 * precision * squares, 0.0)
  log_rho = log_rho.at[: len(x)].add(fit)
  if matching == "permutation":
    log_assignments = sinkhorn(log_rho, num_sweeps=num_sweeps)
  else:
    log_assignments = numerics.log_softmax(log_rho, 1)
    log_assignments = jnp.where(present[:, None], log_assignments, _ABSENT)
  assignments = jnp.exp(log_assignments)
  normaliser = jnp.sum(present) * jnp.log(precision / (2 * jnp.pi))
  matched = jnp.sum(assignments * (log_rho - log_assignments))
  elbo = normaliser + matched - prior
  output = Update(log_assignments, similarities.poses(offset, turn), elbo)
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
  template: similarities.Templates,
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
  the best bound is returned. Permutations of points that coincide, in the image
  or in a template, stay undecided: their searches take `max_updates`.

  Args:
    key: samples the first assignments.
    points: [M 2], in a frame where similarities are about N(0, 1): [-1, 1].
      Absent points may have any value.
    presence: [M]; a point is present if its presence is above 0.
    template: the templates; each is in the image at most once.
    matching: as for `update`.
    first_precision: precision of points at the start.
    last_precision: precision at the end, 1 / variance of the noise; may be
      traced.
    num_restarts: at least 1.
    max_updates: the most updates of each restart.
    tolerance: change of the bound, in nats, > 0.
    num_sweeps: as for `update`, at least 1.

  Returns:
    See `Inference`, in float32 or wider; without points all assignments are 0.

  Raises:
    ValueError: if `matching` is neither of the two, counts are below 1, a known
      precision or the tolerance is not above 0, a known presence is outside of
      [0, 1], a known point that is present is not finite, or there are more
      points than permutations can assign.

  Differs from the authors' code: the rule for starting again, written there for
  one fixed list of objects, works for any templates; the bounds of all restarts
  are compared at the last precision, also of those that did not reach it; two
  sweeps give results as good as theirs, which are repeated until the weights
  are balanced, at most 20 times.
  """
  checks.arrays(
    {"points": (points, "M 2"), "presence": (presence, "M")}, empty="M"
  )
  points = similarities.present_points(points, presence)
  num_points = len(points)
  num_rows = _num_rows(matching, num_points, len(template.points))
  checks.counts(
    num_restarts=num_restarts, max_updates=max_updates, num_sweeps=num_sweeps
  )
  similarities.check_templates(template)
  checks.positive(
    first_precision=first_precision,
    last_precision=last_precision,
    tolerance=tolerance,
  )
  dtype = numerics.accumulation_dtype(points)
  points, presence = points.astype(dtype), (presence > 0).astype(dtype)
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
  """The points of an image, the templates, and the options of `update`."""

  points: Float[Array, "M 2"]
  presence: Float[Array, " M"]
  template: similarities.Templates
  matching: Literal["permutation", "mixture"]
  num_rows: int
  num_sweeps: int

  def update(self, log_assignments, precision) -> Update:
    """Calls `update` for the points and templates of this problem."""
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
    """Normalises positive weights of points to log assignments [R N]."""
    num_points, size = shares.shape
    rest = jnp.full((self.num_rows - num_points, size), 1 / size, shares.dtype)
    shares = jnp.where(self.presence[:, None] > 0, shares, 1 / size)
    shares = jnp.log(jnp.concatenate([shares, rest]))
    if self.matching == "permutation":
      return sinkhorn(shares, num_sweeps=self.num_sweeps)
    return numerics.log_softmax(shares, 1)

  def random_assignments(self, key) -> Float[Array, "R N"]:
    """Samples the log assignments from which a search starts."""
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
  """Updates once; after convergence changes the precision, or starts again."""
  new = problem.update(search.log_assignments, search.precision)
  converged = jnp.abs(new.elbo - search.elbo) < tolerance
  assigned = jnp.exp(new.log_assignments[: len(problem.points)])
  assigned = assigned * (problem.presence[:, None] > 0)
  lonely = converged & _lonely(assigned, problem.template.members)
  at_end = search.precision >= last
  open_ = _undecided(assigned, problem.presence) & (
    problem.matching == "permutation"
  )
  perturbed = converged & ~lonely & at_end & open_
  done = converged & ~lonely & at_end & ~open_
  key, start_key, noise_key = jax.random.split(search.key, 3)
  noisy = problem.normalised(
    assigned + 0.1 * _shares(noise_key, assigned.shape, assigned.dtype)
  )
  log_assignments = jnp.select(
    [lonely, perturbed],
    [problem.random_assignments(start_key), noisy],
    new.log_assignments,
  )
  doubled = jnp.minimum(2 * search.precision, last)
  precision = jnp.select(
    [lonely, perturbed, converged & ~done],
    [first, search.precision / 2, doubled],
    search.precision,
  )
  elbo = jnp.where(converged & ~done, -jnp.inf, new.elbo)
  return _Search(
    key, log_assignments, precision, elbo, search.num_updates + 1, done
  )


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


def _shares(key, shape, dtype):
  """Samples random numbers from 1e-6 to 1."""
  return jax.random.uniform(key, shape, dtype, minval=1e-6)


def _lonely(assigned, members):
  """Whether a template has one decided point, but fewer than two in total.

  A point is decided if the probability of its assignment is above `_DECIDED`.
  Totals are sums of probabilities, so two points may add up to a little less
  than 2.
  """
  points = jnp.sum(assigned, axis=0) @ members.T
  peaks = jnp.max(jnp.max(assigned, axis=0, initial=0.0) * members, axis=1)
  return jnp.any((peaks > _DECIDED) & (points < 1.5))


def _undecided(assigned, presence):
  """Whether a present point has no assignment that is decided."""
  sure = jnp.max(assigned, axis=1) > _DECIDED
  return jnp.any((presence > 0) & ~sure)
