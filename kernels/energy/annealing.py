"""Annealed importance sampling, forwards and backwards.

One chain, no batch axis: `jax.vmap` over keys and initial states runs many.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from .. import numerics


class Annealed(NamedTuple):
  """The result of one chain.

  Attributes:
    log_weight: log w. Forwards E[w] = Z_1 / Z_0, backwards E[1 / w] = Z_0 /
      Z_1, with Z_0 at the first inverse temperature and Z_1 at the last.
    state: the final state of the chain, in the dtypes of the initial one.
  """

  log_weight: Float[Array, ""]
  state: Any


def anneal(
  key: Key[Array, ""],
  state: Any,
  inverse_temperatures: Sequence[float] | Float[Array, " T"],
  *,
  log_density: Callable[[Any, Float[Array, ""]], Float[Array, ""]],
  transition: Callable[[Key[Array, ""], Any, Float[Array, ""]], Any],
  backwards: bool = False,
) -> Annealed:
  """Runs one chain of annealed importance sampling (Neal, 2001).

  With inverse temperatures b_0 .. b_T', forwards
    log w = sum_t log p_{b_t}(x_{t-1}) - log p_{b_{t-1}}(x_{t-1}),
    x_t ~ transition at b_t from x_{t-1},
  from an exact sample x_0 at b_0. Backwards the chain starts from an exact
  sample at the last b and takes the same path in reverse: each transition comes
  before its weight (Burda, Grosse, Salakhutdinov, 2015; Grosse, Ghahramani,
  Adams, 2015).

  By Jensen's inequality the mean of log w is below log Z_1 / Z_0 forwards, and
  above it backwards: together they sandwich it.

  Args:
    key: random key of the chain.
    state: an exact sample at the first inverse temperature, or backwards at the
      last.
    inverse_temperatures: from first to last; commonly 0 to 1.
    log_density: `(state, inverse temperature)` -> log p up to log Z.
    transition: `(key, state, inverse temperature)` -> a state; it must leave
      the density unchanged and, with `backwards`, be reversible.
    backwards: walks from the last inverse temperature to the first.

  Returns:
    The log weight, summed in float32 or wider, and the final state.

  Raises:
    ValueError: if there are fewer than two inverse temperatures.
  """
  if len(inverse_temperatures) < 2:
    raise ValueError(
      f"inverse_temperatures has {len(inverse_temperatures)} entries, which "
      "make no path; give at least 2."
    )
  # Numbers of Python would be wider than the state if JAX has float64 enabled.
  inverse_temperatures = jnp.asarray(inverse_temperatures, _dtype(state))

  def gain(state, cold, hot):
    return log_density(state, hot) - log_density(state, cold)

  def step(carry, inputs):
    state, log_weight = carry
    key, cold, hot = inputs
    if backwards:
      state = _as_floats_of(state, transition(key, state, hot))
      return (state, log_weight + gain(state, cold, hot)), None
    log_weight += gain(state, cold, hot)
    state = _as_floats_of(state, transition(key, state, hot))
    return (state, log_weight), None

  keys = jax.random.split(key, len(inverse_temperatures) - 1)
  zero = jnp.zeros_like(log_density(state, inverse_temperatures[0]))
  zero = zero.astype(jnp.promote_types(zero.dtype, jnp.float32))
  (state, log_weight), _ = jax.lax.scan(
    step,
    (state, zero),
    (keys, inverse_temperatures[:-1], inverse_temperatures[1:]),
    reverse=backwards,
  )
  return Annealed(log_weight, state)


def _as_floats_of(state: Any, new: Any) -> Any:
  """Rounds the floats of `new` to the dtypes of `state`.

  They are wider if the inverse temperature is wider than the state.
  """

  def rounded(x, y):
    dtype = jnp.result_type(x)
    return jnp.asarray(y, dtype) if jnp.issubdtype(dtype, jnp.floating) else y

  return jax.tree.map(rounded, state, new)


def _dtype(state: Any) -> jnp.dtype:
  """The dtype of sums over the floating-point numbers of a state."""
  leaves = jax.tree.leaves(state)
  floats = (
    x for x in leaves if jnp.issubdtype(jnp.result_type(x), jnp.floating)
  )
  return numerics.accumulation_dtype(*floats)
