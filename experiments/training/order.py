"""Which examples a step trains on: a function of the key and the step alone."""

import jax


def of_epoch(key: jax.Array, epoch: jax.Array, total: int) -> jax.Array:
  """The order [N] of all examples in an epoch.

  Args:
    key: of the state of training.
    epoch: its number, from 0.
    total: N.
  """
  order_key, _ = jax.random.split(key)
  return jax.random.permutation(jax.random.fold_in(order_key, epoch), total)


def keys_of_step(
  key: jax.Array, step: jax.Array, batch_size: int
) -> tuple[jax.Array, jax.Array]:
  """The random keys [B] of the examples of a step, and the key of its loss."""
  _, step_key = jax.random.split(key)
  sample_key, loss_key = jax.random.split(jax.random.fold_in(step_key, step))
  return jax.random.split(sample_key, batch_size), loss_key
