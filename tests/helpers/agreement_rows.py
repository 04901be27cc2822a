"""Routings by agreement with the parents, in `routing_rows`."""

import functools

import jax.numpy as jnp
import numpy as np
import oracles
import routing_types
from kernel_arguments import Case

from kernels import routing
from kernels.routing import controls, sinkhorn


def _dynamic_of_weights(votes, weights):
  votes = weights[:, None, None] * votes
  return routing.dynamic_routing(votes, num_iterations=2)


def _transforms_of_weights(votes, weights):
  """The votes as products u_i W_ij of two-dimensional poses and matrices."""
  poses = jnp.stack([weights / 2, -weights / 2], axis=1)
  transforms = jnp.stack([votes, -votes], axis=2)
  return routing.transform_and_route(
    poses, transforms, chunk_size=3, num_iterations=2
  )


def _uniform_of_weights(votes, weights):
  return controls.uniform_routing(weights[:, None, None] * votes)


def _top1_of_weights(votes, weights):
  return controls.top1_routing(weights[:, None, None] * votes)


def _sinkhorn_of_weights(votes, weights):
  votes = weights[:, None, None] * votes
  return sinkhorn.sinkhorn_routing(votes, activations=weights)


def _dynamic(votes, poses, activations, bias, parameters):
  del poses, activations, parameters
  return routing.dynamic_routing(votes, bias=bias)


def _uniform(votes, poses, activations, bias, parameters):
  del poses, activations, parameters
  return controls.uniform_routing(votes, bias=bias)


def _top1(votes, poses, activations, bias, parameters):
  del poses, activations, parameters
  return controls.top1_routing(votes, bias=bias)


def _sinkhorn(votes, poses, activations, bias, parameters):
  del poses, parameters
  return sinkhorn.sinkhorn_routing(votes, activations=activations, bias=bias)


def _squashed(c, votes, bias):
  poses = [
    oracles.squash(bias[j] + sum(c[i, j] * votes[i, j] for i in range(3)))
    for j in range(2)
  ]
  return np.array(poses), np.linalg.norm(poses, axis=1)


def _of_factors(c, poses, transforms, bias):
  return _squashed(c, np.einsum("ic,ijcd->ijd", poses, transforms), bias)


def _with_bias(route):
  return lambda votes, bias, **options: route(votes, bias=bias, **options)


def _by_transforms(poses, transforms, bias, **options):
  return routing.transform_and_route(
    poses, transforms, bias=bias, chunk_size=2, **options
  )


def _grid(votes, bias, **options):
  """Two positions of a grid for parents of one type."""
  output = routing.grid_routing(
    votes.reshape(3, 2, 1, 1, 4), bias=bias, **options
  )
  return routing.RoutingOutput(
    *(x.reshape(y) for x, y in zip(output, [(2, 4), (2,), (3, 2)], strict=True))
  )


def _squashed_with_one_bias(c, votes, bias):
  return _squashed(c, votes, np.tile(bias, (2, 1)))


CASES = {
  "dynamic.dynamic_routing": Case(
    routing.dynamic_routing,
    routing_types.VOTES | {"bias": "J D"},
    largest=1e17,
    iterates=True,
  ),
  "dynamic.dynamic_routing with an orphan parent": Case(
    functools.partial(routing.dynamic_routing, leaky=True),
    routing_types.VOTES,
    largest=1e17,
  ),
  "dynamic.transform_and_route": Case(
    functools.partial(routing.transform_and_route, chunk_size=2),
    routing_types.FACTORS | {"bias": "J D"},
    largest=1e8,
    iterates=True,
  ),
  "controls.uniform_routing": Case(
    controls.uniform_routing,
    routing_types.VOTES | {"bias": "J D"},
    largest=1e30,
  ),
  "controls.top1_routing": Case(
    controls.top1_routing, routing_types.VOTES | {"bias": "J D"}, largest=1e17
  ),
  "controls.uniform_routing of factors": Case(
    routing_types.linear(controls.uniform_routing),
    routing_types.FACTORS | {"bias": "J D"},
    largest=1e8,
  ),
  "controls.top1_routing of factors": Case(
    routing_types.linear(controls.top1_routing),
    routing_types.FACTORS | {"bias": "J D"},
    largest=1e8,
  ),
  "grid.grid_routing": Case(
    routing.grid_routing,
    {"votes": "I H W J D", "bias": "J D"},
    largest=1e17,
    iterates=True,
  ),
  "sinkhorn.sinkhorn_routing": Case(
    sinkhorn.sinkhorn_routing,
    routing_types.VOTES | {"activations": "I unit", "bias": "J D"},
    largest=1e17,
    iterates=True,
  ),
  "sinkhorn.sinkhorn_routing of factors": Case(
    routing_types.linear(sinkhorn.sinkhorn_routing),
    routing_types.FACTORS | {"activations": "I unit", "bias": "J D"},
    largest=1e8,
    iterates=True,
  ),
}

PROPERTIES = {
  # Half a vote agrees with a parent by half, so that parts cannot be split.
  "dynamic": routing_types.Properties(
    _dynamic_of_weights, routing_types.rotation
  ),
  "dynamic_of_transforms": routing_types.Properties(
    _transforms_of_weights, routing_types.rotation
  ),
  # Without scores, or with scores whose scale is of no effect.
  "uniform": routing_types.Properties(
    _uniform_of_weights,
    routing_types.rotation,
    rewarded=("activations",),
    splits=True,
  ),
  "top1": routing_types.Properties(
    _top1_of_weights, routing_types.rotation, splits=True
  ),
  # Every parent gets as many parts, however well they agree.
  "sinkhorn": routing_types.Properties(
    _sinkhorn_of_weights, routing_types.rotation, rewarded=("activations",)
  ),
}

LAYERS = {
  "dynamic": routing_types.Layer(
    _dynamic, {}, ("dynamic.dynamic_routing", "dynamic.transform_and_route")
  ),
  "uniform": routing_types.Layer(
    _uniform, {}, ("controls.uniform_routing of factors",)
  ),
  "top1": routing_types.Layer(_top1, {}, ("controls.top1_routing of factors",)),
  "sinkhorn": routing_types.Layer(
    _sinkhorn, {}, ("sinkhorn.sinkhorn_routing of factors",)
  ),
}

LAST = {
  "dynamic": routing_types.Last(
    _with_bias(routing.dynamic_routing), _squashed,
    (routing_types.STORED, routing_types.BIAS),
  ),
  "transform_and_route": routing_types.Last(
    _by_transforms,
    _of_factors,
    (
      routing_types.normal(2, (3, 2)),
      routing_types.normal(3, (3, 2, 2, 4)),
      routing_types.BIAS,
    ),
  ),
  "grid": routing_types.Last(
    _grid, _squashed_with_one_bias,
    (routing_types.STORED, routing_types.BIAS[:1]),
  ),
  "sinkhorn": routing_types.Last(
    _with_bias(routing.sinkhorn_routing), _squashed,
    (routing_types.STORED, routing_types.BIAS),
  ),
}  # fmt: skip
