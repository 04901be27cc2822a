"""Routings, poses and numbers, as rows of `kernel_cases`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from kernel_arguments import Case

from kernels import geometry, numerics, routing
from kernels.matching import constellations, ransac
from kernels.routing import attention, em, em_convolution, variational, windows

_POINTS = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], np.float64)


def _templates():
  """Not at import, which computes nothing."""
  return constellations.templates([_POINTS[:3], _POINTS])


_WINDOWS = windows.over((3, 3), (2, 2), stride=1, padding="VALID")
_TEMPERATURES = (0.05, 0.1)


def _linear(route):
  """Of votes as two factors."""

  def of_factors(poses, transforms, **arguments):
    return route(attention.LinearVotes(poses, transforms), **arguments)

  return of_factors


def _key():
  return jax.random.key(3)


def _maximise(weights, votes, beta_a, beta_u):
  """About another centre than the mean; in float32, as `em_routing` does."""
  weights, votes, beta_a, beta_u = (
    x.astype(numerics.accumulation_dtype(x))
    for x in (weights, votes, beta_a, beta_u)
  )
  centre = votes[0]
  moments = em.Moments(
    jnp.sum(weights, axis=0),
    jnp.sum(weights[:, None] * (votes - centre), axis=0),
    jnp.sum(weights[:, None] * jnp.square(votes - centre), axis=0),
  )
  return em.maximise(
    moments, centre, None, beta_a, beta_u, inverse_temperature=0.05,
    form=em.PAPER,
  )  # fmt: skip


def _update(points, presence, logs, precision, matching):
  return constellations.update(
    logs, points, presence, _templates(), precision, matching=matching
  )


def _infer(points, presence, matching):
  return constellations.infer(
    _key(), points, presence, _templates(), matching=matching,
    num_restarts=2, max_updates=4,
  )  # fmt: skip


def _em(**arguments):
  return em.em_routing(**arguments, inverse_temperatures=_TEMPERATURES)


def _em_convolution(**arguments):
  return em_convolution.em_convolution(
    **arguments, inverse_temperatures=_TEMPERATURES
  )


_VOTES = {"votes": "I J D"}
_FACTORS = {"poses": "I C", "transforms": "I J C D"}
_EM = {"votes": "I J D", "activations": "I unit", "beta_a": "J", "beta_u": "J"}
_CONVOLUTION = {
  "poses": "3 3 I 2 2", "activations": "3 3 I unit",
  "transforms": "2 2 I J 2 2", "beta_a": "J", "beta_u": "J",
}  # fmt: skip

CASES = {
  "attention.self_attention_routing": Case(
    attention.self_attention_routing,
    _VOTES | {"priors": "I J", "bias": "J D"},
    largest=1e17,
  ),
  "attention.self_attention_routing of factors": Case(
    _linear(attention.self_attention_routing), _FACTORS, largest=1e6
  ),
  "attention.inverted_attention_routing": Case(
    attention.inverted_attention_routing,
    _VOTES | {"readout": "D", "scale": "D", "offset": "J D"},
    largest=1e6,
  ),
  "attention.inverted_attention_routing of factors": Case(
    _linear(attention.inverted_attention_routing),
    _FACTORS | {"readout": "D"},
    largest=1e6,
  ),
  "attention.self_routing": Case(
    attention.self_routing,
    _VOTES | {"logits": "I J", "activations": "I unit"},
    largest=1e17,
  ),
  "attention.self_routing of factors": Case(
    _linear(attention.self_routing),
    _FACTORS | {"logits": "I J", "activations": "I unit"},
    largest=1e6,
  ),
  "em.em_routing": Case(_em, _EM, largest=1e4),
  "em.em_routing of the authors' code": Case(
    functools.partial(_em, form=em.OFFICIAL), _EM, largest=1e4
  ),
  "em.maximise": Case(
    _maximise,
    {"weights": "I J unit", "votes": "I D J", "beta_a": "J", "beta_u": "J"},
    largest=1e12,
  ),
  "em.coordinate_addition": Case(
    functools.partial(em.coordinate_addition, entries=(0, 1), pose_size=3),
    {"x": "W", "y": "H"},
    children="W",
  ),
  "em_convolution.em_convolution": Case(
    _em_convolution, _CONVOLUTION, forward=False, largest=1e2
  ),
  "em_convolution.em_convolution in forward mode": Case(
    functools.partial(_em_convolution, forward_mode=True),
    _CONVOLUTION,
    largest=1e2,
  ),
  "windows.compete": Case(
    lambda logits: windows.compete(logits, _WINDOWS),
    {"logits": "4 4 J"},
    children="J",
    largest=1e30,
  ),
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
  "numerics.safe_norm": Case(numerics.safe_norm, {"x": "I D"}, largest=1e37),
  "numerics.safe_log": Case(numerics.safe_log, {"x": "I positive"}),
  "numerics.squash": Case(numerics.squash, {"s": "I D"}, largest=1e37),
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
  "dynamic.dynamic_routing": Case(
    routing.dynamic_routing, _VOTES | {"bias": "J D"}, largest=1e17
  ),
  "dynamic.dynamic_routing with an orphan parent": Case(
    functools.partial(routing.dynamic_routing, leaky=True), _VOTES, largest=1e17
  ),
  "dynamic.transform_and_route": Case(
    functools.partial(routing.transform_and_route, chunk_size=2),
    _FACTORS | {"bias": "J D"},
    largest=1e8,
  ),
  "variational.variational_routing": Case(
    variational.variational_routing,
    _VOTES | {"activations": "I unit", "beta": "J", "gain": "J"},
    largest=1e8,
  ),
}
