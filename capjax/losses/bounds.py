"""Bounds on log-likelihoods from samples."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from capjax.kernels import checks, numerics


class Bound(NamedTuple):
  """Lower bounds on log-likelihoods.

  Attributes:
    elbo: the mean over samples of log p(x, h) - log q(h | x).
    importance: the log of the mean of their exponentials, which is tighter
      (Burda, Grosse, Salakhutdinov, 2016).
  """

  elbo: Float[Array, "..."]
  importance: Float[Array, "..."]


def likelihood_bound(log_weights: Float[Array, "... S"]) -> Bound:
  """Bounds log p(x) of each image by S samples of a recognition model.

  Args:
    log_weights: log p(x, h) - log q(h | x).

  Raises:
    TypeError: if the weights are no array of floats.
    ValueError: if there is no sample.
  """
  num_samples = checks.arrays({"log_weights": (log_weights, "... S")})["S"]
  total = numerics.logsumexp(log_weights, axis=-1)
  return Bound(jnp.mean(log_weights, axis=-1), total - math.log(num_samples))
