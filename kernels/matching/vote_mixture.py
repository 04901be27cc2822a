"""Likelihood of parts under votes of objects, with the objects summed out."""

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .. import checks, numerics

# Log weight and log density of the dummy component: each log(1 / 100).
DUMMY = -2 * 2.302585092994046
_FARTHEST = 1e15  # largest error, in standard deviations; larger ones are cut
_NARROWEST = 1e-18  # least scale: the square of its inverse is still finite


class Explanation(NamedTuple):
  """The likelihood of parts under votes, and which vote explains each part.

  Attributes:
    log_prob: [], log-likelihood of all parts, in nats.
    posterior: [K M], the probability that part m belongs to the object of vote
      k; sums to 1 over k together with `dummy`.
    dummy: [M], the probability that part m belongs to no object.
    winner: [M], the k of the largest posterior of each part; it is right even
      if all posteriors of a part underflow to 0.
  """

  log_prob: Float[Array, ""]
  posterior: Float[Array, "K M"]
  dummy: Float[Array, " M"]
  winner: Int[Array, " M"]


NORMALISATIONS = "none", "votes", "all"  # of the weights of votes


def explain_parts(
  parts: Float[Array, "M D"],
  presence: Float[Array, " M"],
  votes: Float[Array, "K M D"],
  scales: Float[Array, "K M"],
  log_weights: Float[Array, "K M"],
  *,
  normalise: Literal["none", "votes", "all"] = "none",
  dummy_log_weight: float = DUMMY,
  dummy_log_density: float = DUMMY,
) -> Explanation:
  """Scores parts under a mixture of votes (Kosiorek et al., 2019, Eq. 9).

  log p = sum_m presence_m log( sum_k w_km N(part_m; vote_km, scale_km^2 I)
  + dummy ); the posterior is each summand's share. If any of N votes may
  explain a point, as in constellations, pass votes that do not depend on m.

  Args:
    parts: [M, D], poses of parts, or points. Distances from a vote above 1e15
      standard deviations count as 1e15.
    presence: [M] in [0, 1]; absent parts do not count.
    votes: [K, M, D], the mean of part m according to vote k.
    scales: [K, M], standard deviations, > 0; those below 1e-18 count as 1e-18.
    log_weights: [K, M], log w.
    normalise: "none" takes w as they are, as the code does for images; "votes"
      divides them by their sum over k and the dummy's, as it does for
      constellations; "all" by their sum over k and m, as in the paper.
    dummy_log_weight: log weight of the dummy component, which explains any
      part.
    dummy_log_density: log density of the dummy component, uniform.

  Returns:
    See `Explanation`; its numbers are in float32 or wider.

  Raises:
    ValueError: if `normalise` is none of the three, or a known presence is
      outside of [0, 1].

  Differs from paper: the dummy component is that of the authors' code; the
  paper has none.
  """
  sizes = checks.arrays(
    {
      "parts": (parts, "M D"),
      "presence": (presence, "M"),
      "votes": (votes, "K M D"),
      "scales": (scales, "K M"),
      "log_weights": (log_weights, "K M"),
    }
  )
  checks.values(0.0, 1.0, presence=presence)
  checks.choice(NORMALISATIONS, normalise=normalise)
  num_parts, size = sizes["M"], sizes["D"]
  dtype = numerics.accumulation_dtype(parts, votes, scales, log_weights)
  scales = jnp.maximum(scales.astype(dtype), _NARROWEST)
  log_weights = log_weights.astype(dtype)
  dummy = jnp.full(num_parts, dummy_log_weight, dtype)
  if normalise == "votes":
    log_total = numerics.logsumexp(jnp.vstack([log_weights, dummy]), 0)
    log_weights, dummy = log_weights - log_total, dummy - log_total
  elif normalise == "all":
    log_weights = numerics.log_softmax(log_weights, None)
  dummy = dummy + dummy_log_density

  errors = (parts.astype(dtype) - votes) / scales[..., None]
  # Keeps squares finite; the dummy alone explains parts at such distances.
  errors = jnp.clip(errors, -_FARTHEST, _FARTHEST)
  constant = size * (jnp.log(scales) + 0.5 * jnp.log(2 * jnp.pi))
  log_joint = log_weights - constant - 0.5 * jnp.sum(jnp.square(errors), -1)
  winner = jnp.argmax(log_joint, axis=0)
  log_joint = jnp.vstack([log_joint, dummy])
  log_parts = numerics.logsumexp(log_joint, 0)
  posterior = numerics.softmax(log_joint, 0)
  return Explanation(
    jnp.sum(presence.astype(dtype) * log_parts),
    posterior[:-1],
    posterior[-1],
    winner,
  )
