"""Bounds on log-likelihoods from samples."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from capjax.kernels import numerics


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
    ValueError: if there is no sample.
  """
  num_samples = log_weights.shape[-1]
  if num_samples < 1:
    raise ValueError(f"log_weights has {num_samples} samples; give at least 1.")
  total = numerics.logsumexp(log_weights, axis=-1)
  return Bound(jnp.mean(log_weights, axis=-1), total - math.log(num_samples))
