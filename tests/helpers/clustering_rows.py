"""Routings that cluster votes, in `routing_rows`."""

import functools

import jax.numpy as jnp
import numpy as np
import routing_types
import scipy.special
from kernel_arguments import Case

from kernels import numerics, routing
from kernels.routing import em, em_convolution, heinsen, variational, windows

_WINDOWS = windows.over((3, 3), (2, 2), stride=1, padding="VALID")
_TEMPERATURES = (0.05, 0.1)
_EM = {"votes": "I J D", "activations": "I unit", "beta_a": "J", "beta_u": "J"}
_HEINSEN = {
  "activations": "I unit", "beta_use": "I J", "beta_ignore": "I J"
}  # fmt: skip
_VECTORS = _HEINSEN | {
  "parts": "I C", "prediction": "D C", "prediction_scale": "J C",
  "prediction_bias": "J C", "score_scale": "I J", "score_bias": "I J",
  "readout": "D", "bias": "J D",
}  # fmt: skip
_CONVOLUTION = {
  "poses": "3 3 I 2 2", "activations": "3 3 I unit",
  "transforms": "2 2 I J 2 2", "beta_a": "J", "beta_u": "J",
}  # fmt: skip


def _maximise(weights, votes, beta_a, beta_u):
  """The M-step about another centre than the mean.

  In float32, as `em_routing` calls it.
  """
  weights, votes, beta_a, beta_u = (
    numerics.widen(x) for x in (weights, votes, beta_a, beta_u)
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


def _variational_of_weights(votes, weights):
  return variational.variational_routing(votes, weights, num_iterations=2)


def _heinsen_em_of_weights(votes, weights):
  ones = jnp.ones(votes.shape[:2], votes.dtype)
  return heinsen.heinsen_em_routing(votes, weights, ones, ones)


def _heinsen_vectors_of_weights(votes, weights):
  """Heinsen's routing of 2022.

  Parts are the means of their votes, and parents predict parts like themselves.
  """
  num_parts, num_parents, size = votes.shape
  pairs = jnp.ones((num_parts, num_parents), votes.dtype)
  parents = jnp.ones((num_parents, size), votes.dtype)
  return heinsen.heinsen_vector_routing(
    votes, jnp.mean(votes, axis=1), weights, pairs, pairs / 2,
    prediction=jnp.eye(size, dtype=votes.dtype), prediction_scale=parents,
    prediction_bias=0 * parents, score_scale=pairs, score_bias=0 * pairs,
    readout=jnp.linspace(-1, 1, size, dtype=votes.dtype),
  )  # fmt: skip


def _variational(votes, poses, activations, bias, parameters):
  del poses
  return variational.variational_routing(
    votes + bias, activations, **parameters
  )


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


def _heinsen_em(votes, poses, activations, bias, parameters):
  del poses
  return heinsen.heinsen_em_routing(votes + bias, activations, **parameters)


def _heinsen_vectors(votes, poses, activations, bias, parameters):
  parts = poses.reshape(len(poses), -1)
  return heinsen.heinsen_vector_routing(
    votes, parts, activations, bias=bias, **parameters
  )


def _posterior(c, votes, activations, beta, gain):
  """The last update of variational routing with its default prior."""
  means, activity = [], []
  weights = c * activations[:, None]
  size = votes.shape[2]
  digamma = scipy.special.digamma
  total = digamma(2 + weights.sum())
  for j in range(2):
    mass, w = weights[:, j].sum(), weights[:, j, None]
    mean = np.sum(w * votes[:, j], axis=0) / (1 + mass)
    inverse = 1 + np.sum(w * (votes[:, j] - mean) ** 2, axis=0) + mean**2
    log_precision = sum(
      digamma((size + 1 + mass - d) / 2) + np.log(2) - np.log(inverse[d])
      for d in range(size)
    )
    entropy = size / 2 * (1 + np.log(2 * np.pi)) - log_precision / 2
    share = np.exp(digamma(1 + mass) - total)
    activity.append(scipy.special.expit(beta[j] - gain[j] * share * entropy))
    means.append(mean)
  return np.array(means), np.array(activity)


def _gaussians(c, votes, activations, beta_a, beta_u):
  """The last M-step of EM routing in the form of the paper."""
  means, activity = [], []
  for j in range(2):
    w = (c[:, j] * activations)[:, None]
    mass = w.sum() + 1e-7
    mean = np.sum(w * votes[:, j], axis=0) / mass
    variance = np.sum(w * (votes[:, j] - mean) ** 2, axis=0) / mass + 5e-4
    cost = mass * np.sum(beta_u[j] + np.log(variance) / 2)
    activity.append(scipy.special.expit(0.3 * (beta_a[j] - cost)))
    means.append(mean)
  return np.array(means), np.array(activity)


def _use_and_neglect(c, votes, activations, beta_use, beta_ignore):
  """The last M-step of Heinsen's EM."""
  use = c * activations[:, None]
  ignore = activations[:, None] - use
  scores = np.sum(beta_use * use - beta_ignore * ignore, axis=0)
  mass = use.sum(axis=0)[:, None] + 1e-5
  means = np.einsum("ij,ijd->jd", use, votes) / mass
  return means, scipy.special.expit(scores)


def _variational_last(votes, activations, beta, gain, **options):
  return routing.variational_routing(
    votes, activations, beta=beta, gain=gain, **options
  )


CASES = {
  "em.em_routing": Case(_em, _EM, largest=1e4, iterates=True),
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
    _em_convolution, _CONVOLUTION, forward=False, largest=1e2, iterates=True
  ),
  "em_convolution.em_convolution in forward mode": Case(
    functools.partial(_em_convolution, forward_mode=True),
    _CONVOLUTION,
    largest=1e2,
  ),
  "em_convolution.em_convolution of several types at once": Case(
    functools.partial(_em_convolution, types_at_once=2),
    _CONVOLUTION,
    forward=False,
    largest=1e2,
  ),
  "windows.compete": Case(
    lambda logits: windows.compete(logits, _WINDOWS),
    {"logits": "4 4 J"},
    children="J",
    largest=1e30,
  ),
  "variational.variational_routing": Case(
    variational.variational_routing,
    routing_types.VOTES | {"activations": "I unit", "beta": "J", "gain": "J"},
    largest=1e8,
    iterates=True,
  ),
  "heinsen.credit": Case(
    heinsen.credit, {"coefficients": "I J unit"} | _HEINSEN, largest=1e17
  ),
  "heinsen.compose_credit": Case(
    heinsen.compose_credit, {"first": "I J", "second": "J K"}, largest=1e17
  ),
  "heinsen.heinsen_em_routing": Case(
    heinsen.heinsen_em_routing,
    routing_types.VOTES | _HEINSEN,
    largest=1e4,
    iterates=True,
  ),
  "heinsen.heinsen_vector_routing": Case(
    heinsen.heinsen_vector_routing,
    routing_types.VOTES | _VECTORS,
    largest=1e6,
    iterates=True,
  ),
  "heinsen.heinsen_vector_routing of factors": Case(
    routing_types.linear(heinsen.heinsen_vector_routing),
    routing_types.FACTORS | _VECTORS,
    largest=1e4,
    iterates=True,
  ),
}

PROPERTIES = {
  # The precision is diagonal and the prior mean zero. An activation falls with
  # the share of its parent while the entropy is above zero, as for few parts.
  "variational": routing_types.Properties(
    _variational_of_weights,
    routing_types.signed_permutation,
    rewarded=("coefficients",),
    splits=True,
  ),
  # Variances are diagonal.
  "heinsen_em": routing_types.Properties(
    _heinsen_em_of_weights, routing_types.signed_permutation, splits=True
  ),
  # What predicts the parts is learned, not agreement of their votes; the layer
  # norm and the readout are as in inverted attention.
  "heinsen_vectors": routing_types.Properties(
    _heinsen_vectors_of_weights,
    routing_types.permutation,
    turned=("coefficients",),
    rewarded=(),
    splits=True,
  ),
}

LAYERS = {
  "variational": routing_types.Layer(
    _variational,
    {"beta": (3,), "gain": (3,)},
    ("variational.variational_routing",),
    counts=True,
  ),
  "em": routing_types.Layer(
    _em_by_name,
    {"beta_a": (3,), "beta_u": (3,)},
    ("em.em_routing",),
    counts=True,
  ),
  "heinsen_em": routing_types.Layer(
    _heinsen_em,
    {"beta_use": (6, 3), "beta_ignore": (6, 3)},
    ("heinsen.heinsen_em_routing",),
    counts=True,
  ),
  "heinsen_vectors": routing_types.Layer(
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
    ("heinsen.heinsen_vector_routing of factors",),
    counts=True,
  ),  # fmt: skip
}

LAST = {
  "variational": routing_types.Last(
    _variational_last, _posterior,
    (
      routing_types.STORED, routing_types.unit(6), routing_types.normal(7, 2),
      routing_types.normal(8, 2),
    ),
  ),
  "em": routing_types.Last(
    functools.partial(em.em_routing, inverse_temperatures=(0.1, 0.3)),
    _gaussians,
    (
      routing_types.STORED, routing_types.unit(6), routing_types.normal(7, 2),
      routing_types.normal(8, 2),
    ),
  ),
  "heinsen_em": routing_types.Last(
    heinsen.heinsen_em_routing, _use_and_neglect,
    (
      routing_types.STORED, routing_types.unit(6),
      routing_types.normal(7, (3, 2)), routing_types.normal(8, (3, 2)),
    ),
  ),
}  # fmt: skip
