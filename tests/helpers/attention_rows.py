"""Routings by attention, prototypes and networks, in `routing_rows`."""

import jax.numpy as jnp
import numpy as np
import routing_types
import scipy.special
from kernel_arguments import Case

from kernels import routing
from kernels.routing import (
  attention,
  orthogonal,
  prototypes,
  slots,
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


def _prototype_of_weights(votes, weights):
  """A part is near the prototypes of parents for which it has long votes."""
  lengths = jnp.sum(jnp.square(votes), axis=2) / votes.shape[2]
  prototypes_of_all = jnp.eye(votes.shape[1], dtype=votes.dtype)
  return prototypes.prototype_routing(
    weights[:, None, None] * votes, lengths, prototypes_of_all
  )


def _shared_prototype_of_weights(votes, weights):
  """The votes of a part are its mean one, the prototypes those of parents."""
  shares = weights / jnp.maximum(jnp.sum(weights), 1e-6)
  return prototypes.shared_prototype_routing(
    weights[:, None] * jnp.mean(votes, axis=1),
    jnp.einsum("i,ijd->jd", shares, votes, precision="highest"),
  )


def _orthcaps_of_weights(votes, weights):
  votes = weights[:, None, None] * votes
  kept = (weights > 0).astype(votes.dtype)
  return orthogonal.sparse_attention_routing(votes, kept=kept)


def _self(votes, poses, activations, bias, parameters):
  flat = poses.reshape(len(poses), -1)
  logits = jnp.einsum("ic,ijc->ij", flat, parameters["weights"])
  logits += parameters["biases"]
  output = attention.self_routing(votes, logits, activations)
  return output._replace(poses=output.poses + bias)


def _inverted_attention(votes, poses, activations, bias, parameters):
  del poses, activations
  return attention.inverted_attention_routing(votes, offset=bias, **parameters)


def _self_attention(votes, poses, activations, bias, parameters):
  del poses, activations
  return attention.self_attention_routing(votes, bias=bias, **parameters)


def _prototype(votes, poses, activations, bias, parameters):
  del activations
  embeddings = poses.reshape(len(poses), -1) @ parameters["projection"]
  return prototypes.prototype_routing(
    votes, embeddings, parameters["prototypes"], bias=bias
  )


def _shared_prototype(votes, poses, activations, bias, parameters):
  del poses, activations
  return prototypes.shared_prototype_routing(
    votes[:, 0], parameters["prototypes"], bias=bias
  )


def _orthcaps(votes, poses, activations, bias, parameters):
  del activations
  parts = poses.reshape(len(poses), -1)
  return orthogonal.sparse_attention_routing(
    votes,
    kept=orthogonal.prune(parts, centre=jnp.mean(parts, axis=0)),
    bias=bias,
    **{n: orthogonal.householder(x) for n, x in parameters.items()},
  )


def _layer_norm(c, votes, readout, scale):
  poses = []
  for j in range(2):
    total = sum(c[i, j] * votes[i, j] for i in range(3))
    deviation = np.sqrt(np.mean((total - total.mean()) ** 2) + 1e-5)
    poses.append(scale * (total - total.mean()) / deviation)
  return np.array(poses), scipy.special.expit(np.array(poses) @ readout)


def _attention(votes, readout, scale, **options):
  return routing.inverted_attention_routing(
    votes, readout, scale=scale, **options
  )


CASES = {
  "attention.self_attention_routing": Case(
    attention.self_attention_routing,
    routing_types.VOTES | {"priors": "I J", "bias": "J D"},
    largest=1e17,
  ),
  "attention.self_attention_routing of factors": Case(
    routing_types.linear(attention.self_attention_routing),
    routing_types.FACTORS,
    largest=1e6,
  ),
  "attention.inverted_attention_routing": Case(
    attention.inverted_attention_routing,
    routing_types.VOTES | {"readout": "D", "scale": "D", "offset": "J D"},
    largest=1e6,
    iterates=True,
  ),
  "attention.inverted_attention_routing of factors": Case(
    routing_types.linear(attention.inverted_attention_routing),
    routing_types.FACTORS | {"readout": "D"},
    largest=1e6,
    iterates=True,
  ),
  "attention.self_routing": Case(
    attention.self_routing,
    routing_types.VOTES | {"logits": "I J", "activations": "I unit"},
    largest=1e17,
  ),
  "attention.self_routing of factors": Case(
    routing_types.linear(attention.self_routing),
    routing_types.FACTORS | {"logits": "I J", "activations": "I unit"},
    largest=1e6,
  ),
  "prototypes.prototype_routing": Case(
    prototypes.prototype_routing,
    routing_types.VOTES
    | {"embeddings": "I C", "prototypes": "J C", "bias": "J D"},
    largest=1e8,
  ),
  "prototypes.shared_prototype_routing": Case(
    prototypes.shared_prototype_routing,
    {"votes": "I D", "prototypes": "J D", "bias": "J D"},
    largest=1e17,
  ),
  "orthogonal.sparse_attention_routing": Case(
    orthogonal.sparse_attention_routing,
    routing_types.VOTES
    | {"kept": "I flag", "keys": "D D", "values": "D D", "bias": "J D"},
    largest=1e8,
  ),
  "prototypes.prototype_routing of factors": Case(
    routing_types.linear(prototypes.prototype_routing),
    routing_types.FACTORS
    | {"embeddings": "I C", "prototypes": "J C", "bias": "J D"},
    largest=1e8,
  ),
  "orthogonal.sparse_attention_routing of factors": Case(
    routing_types.linear(orthogonal.sparse_attention_routing),
    routing_types.FACTORS
    | {"kept": "I flag", "keys": "D D", "values": "D D", "bias": "J D"},
    largest=1e4,
  ),
  "orthogonal.prune": Case(orthogonal.prune, {"poses": "I C"}, largest=1e17),
  "orthogonal.householder": Case(
    orthogonal.householder, {"vectors": "K D"}, children="K", largest=1e8
  ),
  "orthogonal.entmax15": Case(orthogonal.entmax15, {"x": "I J"}, largest=1e30),
  "slots.slot_attention": Case(
    slots.slot_attention,
    {"queries": "J D", "keys": "I D", "values": "I C", "presence": "I unit"},
  ),
  "slots.slot_attention of frames": Case(
    slots.slot_attention,
    {"queries": "J D", "keys": "I J D", "values": "I J C"},
  ),
  "slots.slot_frames": Case(
    slots.slot_frames, {"weights": "I J unit", "points": "I 2"}
  ),
  "slots.relative_points": Case(
    lambda points, positions, scales: slots.relative_points(
      points, slots.Frames(positions, scales)
    ),
    {"points": "I 2", "positions": "J 2", "scales": "J 2 positive"},
  ),
}

PROPERTIES = {
  "self_attention": routing_types.Properties(
    _self_attention_of_weights, routing_types.rotation
  ),
  # The layer norm takes the mean over a pose's numbers, which a rotation
  # changes, and the readout knows their order. Agreement shows in the
  # direction of a pose, not in its length.
  "inverted_attention": routing_types.Properties(
    _inverted_attention_of_weights,
    routing_types.permutation,
    turned=("coefficients",),
    rewarded=("coefficients",),
  ),
  # Parts do not interact.
  "self": routing_types.Properties(
    _self_of_weights, routing_types.rotation, rewarded=(), splits=True
  ),
  # Parts do not interact.
  "prototype": routing_types.Properties(
    _prototype_of_weights, routing_types.rotation, rewarded=(), splits=True
  ),
  # A part has one vote, and agreement does not enter.
  "shared_prototype": routing_types.Properties(
    _shared_prototype_of_weights, routing_types.rotation, rewarded=()
  ),
  "orthcaps": routing_types.Properties(
    _orthcaps_of_weights, routing_types.rotation
  ),
}

LAYERS = {
  "self": routing_types.Layer(
    _self,
    {"weights": (6, 3, 3), "biases": (6, 3)},
    ("attention.self_routing of factors",),
    counts=True,
  ),
  "inverted_attention": routing_types.Layer(
    _inverted_attention,
    {"readout": (4,), "scale": (4,)},
    ("attention.inverted_attention_routing of factors",),
  ),
  "self_attention": routing_types.Layer(
    _self_attention,
    {"priors": (6, 3)},
    ("attention.self_attention_routing of factors",),
  ),
  "prototype": routing_types.Layer(
    _prototype,
    {"projection": (3, 3), "prototypes": (3, 3)},
    ("prototypes.prototype_routing of factors",),
  ),
  "shared_prototype": routing_types.Layer(
    _shared_prototype,
    {"prototypes": (3, 4)},
    ("prototypes.shared_prototype_routing",),
  ),
  "orthcaps": routing_types.Layer(
    _orthcaps,
    {"keys": (4, 4), "values": (4, 4)},
    ("orthogonal.sparse_attention_routing of factors",),
  ),
}

LAST = {
  "inverted_attention": routing_types.Last(
    _attention,
    _layer_norm,
    (
      routing_types.STORED,
      routing_types.normal(4, 4),
      routing_types.normal(5, 4),
    ),
  ),
}
