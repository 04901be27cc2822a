"""Known templates found by trying pairs of points (RANSAC).

Fischler and Bolles (1981); the baseline of Nazabal, Tsagkas and Williams
(2022). Axes: M points of the image, N points of all templates, K templates, C
candidates. One image, no batch axis: `jax.vmap` adds it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float, Int

from .. import checks, numerics, sharding
from . import similarities

_SMALLEST = 1e-6  # scale of a template


class Consensus(NamedTuple):
  """The templates that were found.

  Attributes:
    objects: [M], the template of each point: of the found templates, the one
      that holds the template point nearest to it; -1 for absent points, and if
      no template was found.
    poses: [K 4], similarities (tx, ty, s cos, s sin), as in
      `constellations.Inference`; 0 where the template was not found.
    scores: [K], see `match`; 0 where the template was not found.
  """

  objects: Int[Array, " M"]
  poses: Float[Array, "K 4"]
  scores: Float[Array, " K"]


def match(
  points: Float[Array, "M 2"],
  presence: Float[Array, " M"],
  template: similarities.Templates,
  *,
  tolerance: float = 0.1,
) -> Consensus:
  """Finds templates one after the other, the best first.

  Mapping the first point of a template, and the next that differs from it, to
  an ordered pair of image points predicts where its other points are. Such a
  candidate is valid if each template point has an image point within
  `tolerance`, and these are at least as many image points as template points.
  Its score is the sum of 1 - (distance / tolerance)^2 over the template points,
  or over the image points if that sum is smaller. The best candidate of all
  templates is accepted, its image points and its template are removed, and the
  search repeats.

  Args:
    points: [M 2]; absent points may have any value.
    presence: [M], 1 or 0.
    template: the templates; each is found at most once.
    tolerance: the largest distance of a point, in the units of the template, in
      which the root mean square distance of its points from the centre is 1.

  Returns:
    See `Consensus`, in float32 or wider; with fewer than two points no template
    is found.

  Raises:
    ValueError: if `tolerance` is not positive, the shapes do not fit, a known
      presence is outside of [0, 1], or a known point that is present is not
      finite.

  Differs from the authors' code: theirs searches for the cheapest set of
  candidates that explains all points, and its tolerance is in the units of the
  image.
  """
  checks.positive(tolerance=tolerance)
  checks.arrays(
    {
      "points": (points, "M 2"),
      "presence": (presence, "M"),
    },
    empty="M",
  )
  similarities.check_templates(template)
  points = similarities.present_points(points, presence)
  num_points, num_templates = len(points), len(template.members)
  dtype = numerics.accumulation_dtype(points)
  points = points.astype(dtype)
  template = jax.tree.map(lambda x: x.astype(dtype), template)
  if num_points < 2:
    return Consensus(
      jnp.full(num_points, -1),
      jnp.zeros((num_templates, 4), dtype),
      jnp.zeros(num_templates, dtype),
    )
  x = similarities.as_complex(points)
  p = similarities.as_complex(template.points)
  candidates = _candidates(x, p, template.members)
  found, scores = _search(x, p, presence, template, candidates, tolerance)
  rows = jnp.arange(num_templates)
  offset, turn = candidates.offset[rows, found], candidates.turn[rows, found]
  owner = jnp.argmax(template.members, axis=0)
  distances = jnp.abs(x[:, None] - (offset[owner] + turn[owner] * p))
  was_found = scores > 0
  distances = jnp.where(was_found[owner], distances, jnp.inf)
  objects = owner[jnp.argmin(distances, axis=1)]
  known = (presence > 0) & jnp.any(was_found)
  poses = similarities.poses(offset, turn)
  return Consensus(
    jnp.where(known, objects, -1),
    jnp.where(was_found[:, None], poses, 0.0),
    scores,
  )


class _Candidates(NamedTuple):
  """Similarities t + w p of each template, one for each ordered pair of points.

  Attributes:
    offset: t, [K C].
    turn: w, [K C].
    size: |w|, [K C].
  """

  offset: Complex[Array, "K C"]
  turn: Complex[Array, "K C"]
  size: Float[Array, "K C"]


def _candidates(
  x: Complex[Array, " M"], p: Complex[Array, " N"], members: Float[Array, "K N"]
) -> _Candidates:
  """Places two points of each template on each ordered pair of points."""
  pairs = np.stack(np.nonzero(~np.eye(len(x), dtype=bool)))
  # The first point of each template, and the next that differs from it.
  first = jnp.argmax(members > 0, axis=1)
  apart = jnp.abs(p[None] - p[first][:, None]) > 0
  next_ = jnp.argmax((members > 0) & apart, axis=1)
  base = p[jnp.stack([first, next_], axis=1)]
  start, end = x[pairs[0]], x[pairs[1]]
  turn = (end - start)[None] / (base[:, 1] - base[:, 0])[:, None]
  offset = start[None] - base[:, :1] * turn
  return _Candidates(offset, turn, jnp.abs(turn))


def _search(
  x: Complex[Array, " M"],
  p: Complex[Array, " N"],
  presence: Float[Array, " M"],
  template: similarities.Templates,
  candidates: _Candidates,
  tolerance: float,
) -> tuple[Int[Array, " K"], Float[Array, " K"]]:
  """Accepts the best candidate, then the best of the rest, and so on.

  A point belongs to one candidate at most, and each template is taken once.

  Returns:
    The candidate of each template, and its score; 0 where none was found.
  """
  offset, turn, size = candidates
  num_templates, dtype = len(template.members), template.points.dtype

  def fits(placed, size):
    """Scores [M N] in [0, 1] of points as matches of placed template points."""
    distances = jnp.abs(x[:, None] - placed) / jnp.maximum(size, _SMALLEST)
    return jnp.maximum(0.0, 1 - jnp.square(distances / tolerance))

  def score(offset, turn, size, members, free):
    """Scores one candidate."""
    fit = fits(offset + turn * p, size) * free[:, None] * members
    of_template, of_points = jnp.max(fit, axis=0), jnp.max(fit, axis=1)
    # At least as many image points are near the template as it has points.
    found = jnp.minimum(jnp.sum(of_template > 0), jnp.sum(of_points > 0))
    whole = (found >= jnp.sum(members)) & (size > _SMALLEST)
    total = jnp.minimum(jnp.sum(of_template), jnp.sum(of_points))
    return jnp.where(whole, total, 0.0)

  of_candidates = jax.vmap(score, (0, 0, 0, None, None))
  of_templates = jax.vmap(of_candidates, (0, 0, 0, 0, None))

  def take(carry, _):
    free, unused, found, scores = carry
    values = of_templates(offset, turn, size, template.members, free)
    values = values * unused[:, None]
    best = jnp.argmax(values)
    k, c = jnp.unravel_index(best, values.shape)
    value = values[k, c]
    taken = fits(offset[k, c] + turn[k, c] * p, size[k, c])
    taken = jnp.max(taken * template.members[k], axis=1) > 0
    free = jnp.where((value > 0) & taken, 0.0, free)
    unused = unused.at[k].set(jnp.where(value > 0, 0.0, unused[k]))
    found = found.at[k].set(jnp.where(value > 0, c.astype(jnp.int32), found[k]))
    scores = scores.at[k].add(value)
    return (free, unused, found, scores), None

  start = (
    (presence > 0).astype(dtype),
    jnp.ones(num_templates, dtype),
    jnp.zeros(num_templates, jnp.int32),
    jnp.zeros(num_templates, dtype),
  )
  start = sharding.vary_alike(start, presence, offset, template)
  (_, _, found, scores), _ = jax.lax.scan(take, start, length=num_templates)
  return found, scores
