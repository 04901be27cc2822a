"""Textbook forms: what the benchmarks race against."""

import jax
import jax.numpy as jnp

from kernels import numerics


def dynamic_routing(
  poses: jax.Array,
  transforms: jax.Array,
  bias: jax.Array | None = None,
  num_iterations: int = 3,
) -> jax.Array:
  """Procedure 1 as printed: stored votes [B I J D] and logits [B I J].

  Args:
    poses: [B I C].
    transforms: [I J C D].
    bias: [J D].
    num_iterations: at least 1.

  Returns:
    [B J D].
  """
  votes = jnp.einsum("bic,ijcd->bijd", poses, transforms)
  logits = jnp.zeros(votes.shape[:3])
  for iteration in range(num_iterations):
    coefficients = jax.nn.softmax(logits, axis=2)
    totals = jnp.einsum("bij,bijd->bjd", coefficients, votes)
    outputs = numerics.squash(totals if bias is None else totals + bias)
    if iteration < num_iterations - 1:
      logits += jnp.einsum("bijd,bjd->bij", votes, outputs)
  return outputs
