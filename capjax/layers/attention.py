"""Attention of queries to the members of a set, with presences.

Axes: B batch, N tokens (members of the set), F features, Q queries, S heads, D
numbers of a head.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from capjax.kernels import checks, numerics
from capjax.layers.dense import Linear

Masking = Literal["log_presence", "near_hard"]
# Subtracted from the logit of an absent token in the authors' code.
_HARD = 1e32
# Of the layer norm, as in the authors' code.
_EPSILON = 1e-5
_KERNEL_INIT = nnx.initializers.lecun_normal()


class MultiHeadAttention(nnx.Module):
  """Scaled dot-product attention of several heads to the tokens present.

  With s the scaled products of a query and the keys, and d the presences,
    w_n = d_n e^s_n / sum_n' d_n' e^s_n',
  that is, log d is added to the logits: an absent token has weight 0, and if
  all tokens are absent the heads return 0.

  `masking="near_hard"` is that of the authors' code, which subtracts
  (1 - d) 1e32 from the products before they are scaled. In float32 the products
  are then lost to rounding unless d is 1: only tokens with the largest presence
  get weight, all the same weight if that presence is below 1. No gradient flows
  through this mask, where it would overflow.
  """

  def __init__(
    self,
    query_features: int,
    features: int,
    *,
    num_heads: int,
    masking: Masking = "log_presence",
    kernel_init: nnx.Initializer = _KERNEL_INIT,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      query_features: length of a query.
      features: length of a token and of a result.
      num_heads: number of heads; each has ceil(query_features / num_heads)
        numbers in queries and keys, and ceil(features / num_heads) in values.
      masking: how presences change the logits, see the class.
      kernel_init: initialiser of all kernels.
      rngs: its `params` stream initialises the parameters.

    Raises:
      ValueError: if `num_heads` is below 1 or `masking` is neither of the two.
    """
    checks.counts(num_heads=num_heads)
    if masking not in ("log_presence", "near_hard"):
      raise ValueError(
        f"masking={masking!r}; pass 'log_presence' or 'near_hard'."
      )
    key_size = num_heads * -(-query_features // num_heads)
    value_size = num_heads * -(-features // num_heads)
    sizes = (
      (query_features, key_size),
      (features, key_size),
      (features, value_size),
      (value_size, features),
    )
    self.query, self.key, self.value, self.output = (
      Linear(*size, kernel_init=kernel_init, rngs=rngs) for size in sizes
    )
    self.num_heads = num_heads
    self.masking = masking

  def __call__(
    self,
    queries: Float[Array, "*batch Q G"],
    tokens: Float[Array, "B N F"],
    presence: Float[Array, "B N"],
  ) -> Float[Array, "B Q F"]:
    """Returns the attention-weighted values for each query.

    Args:
      queries: [B Q G], or [Q G] for the same queries of every set.
      tokens: members of the sets.
      presence: in [0, 1].
    """

    def attend(queries, keys, values, presence):
      products = numerics.einsum("qsd,nsd->sqn", queries, keys)
      weights = self._weigh(products, presence)
      return numerics.einsum("sqn,nse->qse", weights, values)

    read = jax.vmap(attend, (0 if queries.ndim == 3 else None, 0, 0, 0))(
      self._heads(self.query(queries)),
      self._heads(self.key(tokens)),
      self._heads(self.value(tokens)),
      presence,
    )
    return self.output(read.reshape(*read.shape[:-2], -1))

  def pool(
    self,
    queries: Float[Array, "Q G"],
    narrow: Float[Array, "B N T"],
    presence: Float[Array, "B N"],
    *,
    widen: Linear,
  ) -> Float[Array, "B Q F"]:
    """Computes `self(queries, widen(narrow), presence)` in fewer operations.

    Everything here is linear except the weights, so the kernels are multiplied
    with each other first. Then tokens, keys and values of F numbers are never
    computed.

    Args:
      queries: the same for every set.
      narrow: members of the sets, with fewer numbers than a token.
      presence: in [0, 1].
      widen: the layer that makes tokens from the members.
    """
    queries = self._heads(self.query(queries))  # [Q S D]
    # Weights do not change with the bias of the keys.
    keys, _ = self._after(widen, self.key)
    products = numerics.einsum(
      "sqt,bnt->bsqn",
      numerics.einsum("qsd,tsd->sqt", queries, keys),
      narrow,
      dtype=self.key.dtype,
    )
    weights = jax.vmap(self._weigh)(products, presence)
    read = numerics.einsum("bsqn,bnt->bsqt", weights, narrow)
    values, value_bias = self._after(widen, self.value)
    output = self.output.kernel[...].reshape(*value_bias.shape, -1)  # [S D F]
    read = numerics.einsum(
      "bsqt,stf->bqf",
      read,
      numerics.einsum("tsd,sdf->stf", values, output),
      dtype=self.output.dtype,
    )
    # Weights sum to 1, or to 0 where all tokens are absent.
    bias = numerics.einsum("sd,sdf->sf", value_bias, output)
    read += numerics.einsum("bsq,sf->bqf", jnp.sum(weights, axis=-1), bias)
    rest = self.output.bias
    return read if rest is None else read + rest[...]

  def _heads(self, x):
    return x.reshape(*x.shape[:-1], self.num_heads, -1)

  def _after(self, first, second):
    """Kernel [T S D] and bias [S D] of two layers, one after the other."""
    kernel = numerics.matmul(first.kernel[...], second.kernel[...])
    bias = second.bias[...]
    if first.bias is not None:
      bias += numerics.matmul(first.bias[...], second.kernel[...])
    return self._heads(kernel), self._heads(bias)

  def _weigh(self, products, presence):
    """Weights [S Q N] of tokens, from products of queries and keys."""
    scale = (self.key.out_features // self.num_heads) ** -0.5
    weigh = _weigh if self.masking == "log_presence" else _weigh_near_hard
    return weigh(products, presence, scale)


def norm(width: int, rngs: nnx.Rngs) -> Callable:
  """A layer norm with scale and offset, of tokens of `width` numbers.

  Args:
    width: numbers of a token.
    rngs: initialises the scale and the offset.
  """
  # The fast variance of Flax is a difference of squares, which loses digits.
  return nnx.LayerNorm(
    width, epsilon=_EPSILON, use_fast_variance=False, rngs=rngs
  )


def _weigh(
  products: Float[Array, "S Q N"], presence: Float[Array, " N"], scale: float
) -> Float[Array, "S Q N"]:
  """Weights of tokens, with log presences added to the scaled products."""
  presence = numerics.widen(presence)
  present = presence > 0
  logits = products * scale + numerics.safe_log(presence)
  top = jnp.max(logits, axis=-1, keepdims=True, where=present, initial=-1e30)
  top = jax.lax.stop_gradient(top)
  weights = numerics.exp_below(jnp.where(present, logits, top), top)
  weights = jnp.where(present, weights, 0.0)
  # All weights are 0 where all tokens are absent.
  return numerics.share(weights, jnp.sum(weights, axis=-1, keepdims=True))


def _weigh_near_hard(
  products: Float[Array, "S Q N"], presence: Float[Array, " N"], scale: float
) -> Float[Array, "S Q N"]:
  """Weights as in the authors' code; only tokens of largest presence count."""
  presence = jax.lax.stop_gradient(presence)
  absence = 1 - numerics.widen(presence)
  return numerics.softmax((products - _HARD * absence) * scale)
