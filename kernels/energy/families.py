"""Exponential families by their natural parameters, for units of energy models.

A unit has p(x) = exp(sum_r a_r s_r(x) + log f(x) - A(a)), with s_1(x) = x (Li
and Zhu, 2019, section 2.1). The R natural parameters and the R statistics come
first in every array: [R ...].

Axes: R parameters of a unit; the other axes are any shape of units. No batch
axis.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key


class Family(NamedTuple):
  """One exponential family, as functions of units of any shape.

  Attributes:
    statistics: `values [...] -> [R ...]`, s_r(x); the first is x.
    log_base: `values [...] -> [...]`, log f(x).
    log_partition: `parameters [R ...] -> [...]`, A(a).
    moments: `parameters [R ...] -> [R ...]`, the means of the statistics: the
      gradient of A.
    sample: `(key, parameters [R ...]) -> values [...]`.
  """

  statistics: Callable[[Float[Array, " ..."]], Float[Array, "R ..."]]
  log_base: Callable[[Float[Array, " ..."]], Float[Array, " ..."]]
  log_partition: Callable[[Float[Array, "R ..."]], Float[Array, " ..."]]
  moments: Callable[[Float[Array, "R ..."]], Float[Array, "R ..."]]
  sample: Callable[
    [Key[Array, ""], Float[Array, "R ..."]], Float[Array, " ..."]
  ]

  def __reduce__(self) -> str | tuple[Any, ...]:
    """Copies and pickles of a family of this module are the family itself."""
    for name in ("BERNOULLI", "GAUSSIAN"):
      if self is globals()[name]:
        return name
    return type(self), tuple(self)


def _bernoulli_sample(key, parameters):
  (logits,) = parameters
  probabilities = jax.nn.sigmoid(logits.astype(jnp.float32))
  return (_uniform(key, logits.shape) < probabilities).astype(logits.dtype)


def _uniform(key, shape):
  # A hash of the key gives two words, and each word gives two numbers, the
  # second with its halves exchanged. This takes a quarter of the hashes of
  # jax.random.uniform, which took a third of a training iteration on a CPU.
  # Each number alone is uniform; of two from one word, the first 16 bits are
  # independent.
  size = math.prod(shape)
  keys = jax.random.split(key, -(-size // 4))
  # Keys of XLA's own generator have four words; the last two may repeat the
  # first two.
  words = jax.random.key_data(keys)[:, :2].ravel()
  words = jnp.concatenate([words, words >> 16 | words << 16])[:size]
  return (words >> 8).astype(jnp.float32).reshape(shape) * 2**-24


def _gaussian_moments(parameters):
  linear, quadratic = parameters
  variance = -1 / (2 * quadratic)
  mean = linear * variance
  return jnp.stack([mean, mean**2 + variance])


def _gaussian_sample(key, parameters):
  linear, quadratic = parameters
  variance = -1 / (2 * quadratic)
  noise = jax.random.normal(key, linear.shape, linear.dtype)
  return linear * variance + jnp.sqrt(variance) * noise


def _gaussian_log_partition(parameters):
  linear, quadratic = parameters
  return (jnp.log(math.pi / -quadratic) - linear**2 / (2 * quadratic)) / 2


BERNOULLI = Family(
  statistics=lambda values: values[None],
  log_base=jnp.zeros_like,
  log_partition=lambda parameters: jax.nn.softplus(parameters[0]),
  moments=jax.nn.sigmoid,
  sample=_bernoulli_sample,
)
"""Values 0 and 1; the parameter is the log odds."""

GAUSSIAN = Family(
  statistics=lambda values: jnp.stack([values, values**2]),
  log_base=jnp.zeros_like,
  log_partition=_gaussian_log_partition,
  moments=_gaussian_moments,
  sample=_gaussian_sample,
)
"""Parameters mean x precision, and -precision / 2, which must be below 0.

In float32 means are of magnitude up to 1e17, whose squares do not overflow.
"""
