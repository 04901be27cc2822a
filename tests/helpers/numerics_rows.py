"""Poses, numbers and matching of points, as rows of `kernel_cases`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from kernel_arguments import Case

from kernels import broadcasting, geometry, numerics
from kernels.matching import constellations, ransac, similarities

_POINTS = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], np.float64)


def _templates():
  """Two templates; a function, so that the import computes nothing."""
  return similarities.templates([_POINTS[:3], _POINTS])


def _key():
  return jax.random.key(3)


def _update(points, presence, logs, precision, matching):
  return constellations.update(
    logs, points, presence, _templates(), precision, matching=matching
  )


def _infer(points, presence, matching):
  return constellations.infer(
    _key(), points, presence, _templates(), matching=matching,
    num_restarts=2, max_updates=4,
  )  # fmt: skip


CASES = {
  "constellations.update": Case(
    functools.partial(_update, matching="mixture"),
    {
      "points": "I 2",
      "presence": "I flag",
      "logs": "I 7 log",
      "precision": "positive",
    },
    largest=1e8,
  ),
  "constellations.update of permutations": Case(
    functools.partial(_update, matching="permutation"),
    {
      "points": "I 2",
      "presence": "I flag",
      "logs": "7 7 log",
      "precision": "positive",
    },
    largest=1e8,
  ),
  "constellations.sinkhorn": Case(
    constellations.sinkhorn, {"log_weights": "I J"}
  ),
  "constellations.infer": Case(
    functools.partial(_infer, matching="mixture"),
    {"points": "I 2", "presence": "I flag"},
    forward=False,
    reverse=False,
    random=True,
    tolerance=2e-3,
    largest=1e2,
  ),
  "geometry.affine_matrix": Case(
    geometry.affine_matrix,
    {
      "scale_x": "I",
      "scale_y": "I",
      "theta": "I",
      "shear": "I",
      "tx": "I",
      "ty": "I",
    },
    largest=1e17,
  ),
  "geometry.pose_matrix": Case(geometry.pose_matrix, {"params": "I 6"}),
  "geometry.pose_matrix of similarities": Case(
    functools.partial(geometry.pose_matrix, kind="similarity"),
    {"params": "I 6"},
  ),
  "geometry.compose": Case(
    geometry.compose, {"a": "I 3 3", "b": "I 3 3"}, largest=1e17
  ),
  "geometry.invert": Case(geometry.invert, {"pose": "I 3 3"}, largest=1e17),
  "geometry.apply": Case(
    geometry.apply, {"pose": "3 3", "points": "I 2"}, largest=1e17
  ),
  "numerics.einsum": Case(
    lambda x, y: numerics.einsum("ij,jd->id", x, y),
    {"x": "I J", "y": "J D"},
    largest=1e17,
  ),
  "numerics.matmul": Case(
    numerics.matmul, {"a": "I J", "b": "J D"}, largest=1e17
  ),
  "broadcasting.spread": Case(
    lambda x: broadcasting.spread(x, before=(2,), after=(3,)), {"x": "I D"}
  ),
  "broadcasting.add_bias": Case(
    broadcasting.add_bias, {"x": "I D", "bias": "D"}
  ),
  "broadcasting.sum_rows": Case(
    broadcasting.sum_rows, {"x": "I D"}, largest=1e30
  ),
  "numerics.safe_norm": Case(numerics.safe_norm, {"x": "I D"}, largest=1e37),
  "numerics.unit_vectors": Case(
    numerics.unit_vectors, {"x": "I D"}, largest=1e37
  ),
  "numerics.safe_log": Case(numerics.safe_log, {"x": "I positive"}),
  "numerics.squash": Case(numerics.squash, {"s": "I D"}, largest=1e37),
  "numerics.layer_norm": Case(numerics.layer_norm, {"x": "I D"}, largest=1e17),
  "numerics.exponential_squash": Case(
    numerics.exponential_squash, {"s": "I D"}, largest=1e37
  ),
  "numerics.exp_below": Case(
    lambda x: numerics.exp_below(x, jnp.max(x, axis=0)),
    {"x": "I J"},
    smooth=False,
    largest=1e30,
  ),
  "numerics.share": Case(
    lambda weights: numerics.share(weights, 1 + jnp.sum(weights)),
    {"weights": "I unit"},
  ),
  "numerics.softmax": Case(numerics.softmax, {"x": "J I"}, largest=1e30),
  "numerics.log_softmax": Case(
    numerics.log_softmax, {"x": "J I"}, largest=1e30
  ),
  "numerics.logsumexp": Case(numerics.logsumexp, {"x": "J I"}, largest=1e30),
  "numerics.excess": Case(numerics.excess, {"x": "I D"}, largest=1e30),
  "ransac.match": Case(
    lambda points, presence: ransac.match(points, presence, _templates()),
    {"points": "I 2", "presence": "I flag"},
    forward=False,
    reverse=False,
  ),
}
