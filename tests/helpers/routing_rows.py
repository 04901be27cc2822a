"""All routings: rows of the tests that hold them all.

`CASES` are rows of `kernel_cases`; `PROPERTIES` say what holds of a routing,
for `all_routings_test`; `LAYERS` what layers compute with a routing by name.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import cases
import jax.numpy as jnp
import numpy as np
from kernel_arguments import Case

from kernels import numerics, routing
from kernels.routing import (
  attention,
  controls,
  em,
  em_convolution,
  heinsen,
  linear_votes,
  prototypes,
  sinkhorn,
  variational,
  windows,
)

_WINDOWS = windows.over((3, 3), (2, 2), stride=1, padding="VALID")
_TEMPERATURES = (0.05, 0.1)
_POSE_SIZE = cases.VOTES_SHAPE[2]


def _linear(route):
  """Of votes as two factors."""

  def of_factors(poses, transforms, **arguments):
    return route(linear_votes.LinearVotes(poses, transforms), **arguments)

  return of_factors


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


def _em(**arguments):
  return em.em_routing(**arguments, inverse_temperatures=_TEMPERATURES)


def _em_convolution(**arguments):
  return em_convolution.em_convolution(
    **arguments, inverse_temperatures=_TEMPERATURES
  )


_VOTES = {"votes": "I J D"}
_FACTORS = {"poses": "I C", "transforms": "I J C D"}
_EM = {"votes": "I J D", "activations": "I unit", "beta_a": "J", "beta_u": "J"}
_HEINSEN = {
  "activations": "I unit", "beta_use": "I J", "beta_ignore": "I J"
}  # fmt: skip
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
  "controls.uniform_routing": Case(
    controls.uniform_routing, _VOTES | {"bias": "J D"}, largest=1e30
  ),
  "controls.top1_routing": Case(
    controls.top1_routing, _VOTES | {"bias": "J D"}, largest=1e17
  ),
  "sinkhorn.sinkhorn_routing": Case(
    sinkhorn.sinkhorn_routing,
    _VOTES | {"activations": "I unit", "bias": "J D"},
    largest=1e17,
  ),
  "heinsen.credit": Case(
    heinsen.credit, {"coefficients": "I J unit"} | _HEINSEN, largest=1e17
  ),
  "heinsen.compose_credit": Case(
    heinsen.compose_credit, {"first": "I J", "second": "J K"}, largest=1e17
  ),
  "heinsen.heinsen_em_routing": Case(
    heinsen.heinsen_em_routing, _VOTES | _HEINSEN, largest=1e4
  ),
  "heinsen.heinsen_vector_routing": Case(
    heinsen.heinsen_vector_routing,
    _VOTES
    | _HEINSEN
    | {
      "parts": "I C",
      "prediction": "D C",
      "prediction_scale": "J C",
      "prediction_bias": "J C",
      "score_scale": "I J",
      "score_bias": "I J",
      "readout": "D",
      "bias": "J D",
    },
    largest=1e4,
  ),  # fmt: skip
  "prototypes.prototype_routing": Case(
    prototypes.prototype_routing,
    _VOTES | {"embeddings": "I C", "prototypes": "J C", "bias": "J D"},
    largest=1e8,
  ),
}


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


def _self_attention_of_weights(votes, weights):
  return attention.self_attention_routing(weights[:, None, None] * votes)


def _inverted_attention_of_weights(votes, weights):
  readout = jnp.linspace(-1, 1, votes.shape[2], dtype=votes.dtype)
  votes = weights[:, None, None] * votes
  return attention.inverted_attention_routing(votes, readout)


def _self_of_weights(votes, weights):
  """The routing network sees the lengths of the votes."""
  logits = jnp.sum(jnp.square(votes), axis=2) / votes.shape[2]
  return attention.self_routing(votes, logits, weights)


def _variational_of_weights(votes, weights):
  return variational.variational_routing(votes, weights, num_iterations=2)


def _uniform_of_weights(votes, weights):
  return controls.uniform_routing(weights[:, None, None] * votes)


def _top1_of_weights(votes, weights):
  return controls.top1_routing(weights[:, None, None] * votes)


def _sinkhorn_of_weights(votes, weights):
  votes = weights[:, None, None] * votes
  return sinkhorn.sinkhorn_routing(votes, activations=weights)


def _heinsen_em_of_weights(votes, weights):
  ones = jnp.ones(votes.shape[:2], votes.dtype)
  return heinsen.heinsen_em_routing(votes, weights, ones, ones)


def _heinsen_vectors_of_weights(votes, weights):
  """Parts are the means of their votes, predicted as the parents are."""
  num_parts, num_parents, size = votes.shape
  pairs = jnp.ones((num_parts, num_parents), votes.dtype)
  parents = jnp.ones((num_parents, size), votes.dtype)
  return heinsen.heinsen_vector_routing(
    votes, jnp.mean(votes, axis=1), weights, pairs, pairs / 2,
    prediction=jnp.eye(size, dtype=votes.dtype), prediction_scale=parents,
    prediction_bias=0 * parents, score_scale=pairs, score_bias=0 * pairs,
    readout=jnp.linspace(-1, 1, size, dtype=votes.dtype),
  )  # fmt: skip


def _prototype_of_weights(votes, weights):
  """A part is near the prototypes of parents for which it has long votes."""
  lengths = jnp.sum(jnp.square(votes), axis=2) / votes.shape[2]
  prototypes_of_all = jnp.eye(votes.shape[1], dtype=votes.dtype)
  return prototypes.prototype_routing(
    weights[:, None, None] * votes, lengths, prototypes_of_all
  )


def rotation(random):
  return np.linalg.qr(random.normal(size=(_POSE_SIZE, _POSE_SIZE)))[0]


def _permutation(random):
  return random.permutation(np.eye(_POSE_SIZE))


def _signed_permutation(random):
  return random.choice([-1, 1], _POSE_SIZE) * _permutation(random)


class Properties(NamedTuple):
  """A routing and what holds of it.

  Attributes:
    route: routes votes [I J D] of parts with weights [I]: activations where the
      routing takes them, lengths of the votes elsewhere.
    turn: draws a matrix [D D] with which votes may turn, and poses with them.
    turned: the outputs beside the poses that it leaves as they are.
    rewarded: the outputs that are larger where votes agree.
    splits: whether a part may be cut in two that share its weight.
  """

  route: Callable
  turn: Callable
  turned: tuple[str, ...] = ("activations", "coefficients")
  rewarded: tuple[str, ...] = ("activations", "coefficients")
  splits: bool = False


PROPERTIES: dict[str, Properties] = {
  # Half a vote agrees with a parent by half, so that parts cannot be split.
  "dynamic": Properties(_dynamic_of_weights, rotation),
  "dynamic_of_transforms": Properties(_transforms_of_weights, rotation),
  "self_attention": Properties(_self_attention_of_weights, rotation),
  # The layer norm takes the mean over a pose's numbers, which a rotation
  # changes, and the readout knows their order. Agreement shows in the
  # direction of a pose, not in its length.
  "inverted_attention": Properties(
    _inverted_attention_of_weights,
    _permutation,
    turned=("coefficients",),
    rewarded=("coefficients",),
  ),
  # Parts do not ask each other.
  "self": Properties(_self_of_weights, rotation, rewarded=(), splits=True),
  # The precision is diagonal and the prior mean zero. An activation falls with
  # the share of its parent while the entropy is above zero, as for few parts.
  "variational": Properties(
    _variational_of_weights,
    _signed_permutation,
    rewarded=("coefficients",),
    splits=True,
  ),
  # Without scores, or with scores whose scale is of no effect.
  "uniform": Properties(
    _uniform_of_weights, rotation, rewarded=("activations",), splits=True
  ),
  "top1": Properties(_top1_of_weights, rotation, splits=True),
  # Every parent gets as many parts, however well they agree.
  "sinkhorn": Properties(
    _sinkhorn_of_weights, rotation, rewarded=("activations",)
  ),
  # Variances are diagonal.
  "heinsen_em": Properties(
    _heinsen_em_of_weights, _signed_permutation, splits=True
  ),
  # What predicts the parts is learned, not agreement of their votes; the layer
  # norm and the readout are as in inverted attention.
  "heinsen_vectors": Properties(
    _heinsen_vectors_of_weights,
    _permutation,
    turned=("coefficients",),
    rewarded=(),
    splits=True,
  ),
  # Parts do not ask each other.
  "prototype": Properties(
    _prototype_of_weights, rotation, rewarded=(), splits=True
  ),
}


class Layer(NamedTuple):
  """What a layer computes with a routing by name.

  Attributes:
    route: of votes [I J D], poses [I ...] and activations [I] of the parts,
      bias [J D], and the parameters by name.
    shapes: of the parameters, for 6 parts of length 3 and 3 objects of 4.
    counts: whether parts that are not active are without effect.
  """

  route: Callable[..., routing.RoutingOutput]
  shapes: dict[str, tuple[int, ...]]
  counts: bool = False


def _dynamic(votes, poses, activations, bias, parameters):
  del poses, activations, parameters
  return routing.dynamic_routing(votes, bias=bias)


def _self(votes, poses, activations, bias, parameters):
  flat = poses.reshape(len(poses), -1)
  logits = jnp.einsum("ic,ijc->ij", flat, parameters["weights"])
  logits += parameters["biases"]
  output = attention.self_routing(votes, logits, activations)
  return output._replace(poses=output.poses + bias)


def _inverted_attention(votes, poses, activations, bias, parameters):
  del poses, activations
  return attention.inverted_attention_routing(votes, offset=bias, **parameters)


def _variational(votes, poses, activations, bias, parameters):
  del poses
  return variational.variational_routing(
    votes + bias, activations, **parameters
  )


def _self_attention(votes, poses, activations, bias, parameters):
  del poses, activations
  return attention.self_attention_routing(votes, bias=bias, **parameters)


def _em_by_name(votes, poses, activations, bias, parameters):
  del poses
  temperatures = em.inverse_temperature_schedule(3)
  num_parts, num_parents, _ = votes.shape
  output = em.em_routing(
    votes + bias,
    activations,
    parameters["beta_a"] / temperatures[-1],
    parameters["beta_u"],
    inverse_temperatures=temperatures,
    form=em.PAPER._replace(cost_scale=100 * num_parents / num_parts),
  )
  return routing.RoutingOutput(*output[:3])


def _uniform(votes, poses, activations, bias, parameters):
  del poses, activations, parameters
  return controls.uniform_routing(votes, bias=bias)


def _top1(votes, poses, activations, bias, parameters):
  del poses, activations, parameters
  return controls.top1_routing(votes, bias=bias)


def _sinkhorn(votes, poses, activations, bias, parameters):
  del poses, parameters
  return sinkhorn.sinkhorn_routing(votes, activations=activations, bias=bias)


def _heinsen_em(votes, poses, activations, bias, parameters):
  del poses
  return heinsen.heinsen_em_routing(votes + bias, activations, **parameters)


def _heinsen_vectors(votes, poses, activations, bias, parameters):
  parts = poses.reshape(len(poses), -1)
  return heinsen.heinsen_vector_routing(
    votes, parts, activations, bias=bias, **parameters
  )


def _prototype(votes, poses, activations, bias, parameters):
  del activations
  embeddings = poses.reshape(len(poses), -1) @ parameters["projection"]
  return prototypes.prototype_routing(
    votes, embeddings, parameters["prototypes"], bias=bias
  )


LAYERS = {
  "dynamic": Layer(_dynamic, {}),
  "self": Layer(_self, {"weights": (6, 3, 3), "biases": (6, 3)}, counts=True),
  "inverted_attention": Layer(
    _inverted_attention, {"readout": (4,), "scale": (4,)}
  ),
  "variational": Layer(_variational, {"beta": (3,), "gain": (3,)}, counts=True),
  "self_attention": Layer(_self_attention, {"priors": (6, 3)}),
  "em": Layer(_em_by_name, {"beta_a": (3,), "beta_u": (3,)}, counts=True),
  "uniform": Layer(_uniform, {}),
  "top1": Layer(_top1, {}),
  "sinkhorn": Layer(_sinkhorn, {}),
  "heinsen_em": Layer(
    _heinsen_em, {"beta_use": (6, 3), "beta_ignore": (6, 3)}, counts=True
  ),
  "heinsen_vectors": Layer(
    _heinsen_vectors,
    {
      "beta_use": (6, 3),
      "beta_ignore": (6, 3),
      "prediction": (4, 3),
      "prediction_scale": (3, 3),
      "prediction_bias": (3, 3),
      "score_scale": (6, 3),
      "score_bias": (6, 3),
      "readout": (4,),
    },
    counts=True,
  ),  # fmt: skip
  "prototype": Layer(_prototype, {"projection": (3, 3), "prototypes": (3, 3)}),
}
