"""A small training state, whole and as a list of arrays."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx


class State(NamedTuple):
  step: jax.Array
  model: nnx.Module
  opt_state: optax.OptState
  key: jax.Array


def state_of(seed: int) -> State:
  model = nnx.Linear(3, 2, rngs=nnx.Rngs(seed))
  return State(
    jnp.int32(seed), model, optax.adam(0.1).init(model), jax.random.key(seed)
  )


def leaves(state: State) -> list:
  return jax.tree.leaves(state._replace(key=jax.random.key_data(state.key)))
