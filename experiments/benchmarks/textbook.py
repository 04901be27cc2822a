"""Textbook forms, with which the benchmarks compare."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from capjax.kernels import geometry, numerics


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


def num_products(shape: tuple[int, int, int, int], num_iterations: int) -> int:
  """The multiplications of `dynamic_routing` for one image.

  Votes are formed once. Every iteration sums them by their coefficients, and
  all but the last compare them with the sums. Backward, each of these products
  has two transposes.

  Args:
    shape: I, J, C, D of the transforms.
    num_iterations: of the routing.
  """
  num_parts, num_objects, part_size, pose_size = shape
  votes = num_parts * num_objects * pose_size
  return votes * (part_size + 2 * num_iterations - 1)


def em_convolution(
  poses: jax.Array,
  activations: jax.Array,
  transforms: jax.Array,
  beta_a: jax.Array,
  beta_u: jax.Array,
  *,
  inverse_temperatures: Sequence[float],
  stride: int = 1,
) -> tuple[jax.Array, jax.Array]:
  """Procedure 1 of Hinton et al. (2018) as printed, with a variance floor.

  Votes [B oH oW kH kW I J D] are stored. The shares of a child sum to 1 over
  all parents that see it.

  Args:
    poses: [B H W I P Q].
    activations: [B H W I].
    transforms: [kH kW I J Q R].
    beta_a: [J].
    beta_u: [J].
    inverse_temperatures: lambda of each iteration.
    stride: of the windows, which lie within the grid.

  Returns:
    Means [B oH oW J D] and activations [B oH oW J].
  """
  y, x = (
    stride * jnp.arange((n - k) // stride + 1)[:, None] + jnp.arange(k)
    for n, k in zip(poses.shape[1:3], transforms.shape, strict=False)
  )
  seen = (slice(None), y[:, None, :, None], x[None, :, None, :])
  votes = jnp.einsum("byxvuipq,vuijqr->byxvuijpr", poses[seen], transforms)
  votes = votes.reshape(*votes.shape[:7], -1)
  windows = jnp.zeros(activations.shape[:3]).at[seen].add(1.0)[seen]
  shares = jnp.ones(votes.shape[:7]) / len(beta_a) / windows[..., None, None]
  for iteration, inverse_temperature in enumerate(inverse_temperatures):
    weights = (shares * activations[seen][..., None])[..., None]
    mass = jnp.sum(weights, (3, 4, 5)) + 1e-7
    means = jnp.sum(weights * votes, (3, 4, 5)) / mass
    squares = jnp.square(votes - means[:, :, :, None, None, None])
    variances = jnp.sum(weights * squares, (3, 4, 5)) / mass + 5e-4
    costs = mass * (beta_u[:, None] + jnp.log(variances) / 2)
    logits = inverse_temperature * (beta_a - jnp.sum(costs, -1))
    if iteration < len(inverse_temperatures) - 1:
      log_weights = jax.nn.log_sigmoid(logits) - jnp.sum(
        jnp.log(variances) / 2, -1
      )
      variances = variances[:, :, :, None, None, None]
      scores = log_weights[:, :, :, None, None, None] - jnp.sum(
        squares / variances / 2, -1
      )
      top = jnp.full(activations.shape, -jnp.inf)
      top = jax.lax.stop_gradient(top.at[seen].max(jnp.max(scores, -1)))
      weights = jnp.exp(scores - top[seen][..., None])
      total = jnp.zeros_like(activations).at[seen].add(jnp.sum(weights, -1))
      shares = weights / total[seen][..., None]
  return means, jax.nn.sigmoid(logits)


def warp(
  template: jax.Array, pose: jax.Array, canvas: tuple[int, int]
) -> jax.Array:
  """Renders a template [U V C] in a pose [3 3] by four gathers of pixels."""
  rows, columns, _ = template.shape
  points = geometry.apply(geometry.invert(pose), geometry.grid(*canvas))
  x = (points[..., 0] + 1) / 2 * (columns - 1)
  y = (points[..., 1] + 1) / 2 * (rows - 1)
  left, top = jnp.floor(x), jnp.floor(y)
  out = 0.0
  for row in (top, top + 1):
    for column in (left, left + 1):
      inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
      weight = (1 - jnp.abs(x - column)) * (1 - jnp.abs(y - row)) * inside
      pixel = template[row.astype(jnp.int32), column.astype(jnp.int32)]
      out = out + weight[..., None] * pixel
  return out
