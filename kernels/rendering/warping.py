"""Rendering templates on a canvas; frames and axes as in `geometry`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import checks, geometry

_FURTHEST = 1e30  # pixels; far outside of any canvas


def warp(
  template: Float[Array, "U V C"],
  pose: Float[Array, "3 3"],
  canvas: tuple[int, int],
) -> Float[Array, "H W C"]:
  """Renders a template in a pose (Jaderberg et al., 2015, Eq. 5).

  out[g] = sum_uv template[u, v] k(x - v) k(y - u), k(d) = max(0, 1 - |d|),
  where (x, y) is the template pixel at pose^-1 g. Linear in the template; the
  identity pose and equal sizes give the template back exactly.

  Args:
    template: [U, V, C], any range.
    pose: [3, 3], maps template to canvas, both frames [-1, 1], entries as for
      `geometry.invert`; its gradient where a sample falls on a pixel centre is
      the one to the right and below.
    canvas: (H, W).

  Returns:
    [H, W, C] in the dtype of `template`; zero outside of the template, fading
    over the first pixel spacing beyond its edge.

  Raises:
    ValueError: `canvas` has no pixels.

  Differs from paper: nothing; of its sum only the four terms that can differ
  from zero are formed.
  """
  checks.arrays({"template": (template, "U V C"), "pose": (pose, "3 3")})
  height, width = canvas
  if min(canvas) < 1:
    raise ValueError(f"canvas={canvas}; both sides must be at least 1.")
  rows, columns, channels = template.shape
  dtype = jnp.result_type(template, pose, jnp.float32)

  # In pixels from the middle, equal sizes make every ratio exactly 1.
  template_units = geometry.pixel_units(rows, columns)
  ratios = template_units[:, None] / geometry.pixel_units(height, width)
  to_template = geometry.invert(pose.astype(dtype)) * ratios.astype(dtype)
  middle = jnp.array([columns - 1, rows - 1], dtype) / 2
  to_corner = to_template[:2].at[:, 2].add(middle)
  # Sums of infinite numbers would not be numbers.
  to_corner = jnp.clip(to_corner, -_FURTHEST, _FURTHEST)
  offsets = geometry.pixel_offsets(height, width, dtype=dtype).reshape(-1, 2)
  points = jnp.concatenate([offsets.T, jnp.ones((1, len(offsets)), dtype)])
  # As a product of matrices, which XLA computes once. XLA would compute a sum
  # twice, for the corners and for their weights, with different rounding, so
  # that near a pixel centre the weights could belong to another corner. The
  # steps from here to the weights are exact, so computing them twice is safe.
  # Never rounded, whatever is set: places would be wrong by parts of a pixel.
  x, y = jnp.matmul(to_corner, points, precision="highest")

  # Everything outside lands in the border of zeros that the padding adds.
  x, y = jnp.clip(x, -1, columns), jnp.clip(y, -1, rows)
  left, top = jnp.floor(x), jnp.floor(y)
  right_weight, low_weight = x - left, y - top

  padded = jnp.pad(template.astype(dtype), ((1, 2), (1, 2), (0, 0)))
  # As integers: floats are not exact for templates of many pixels.
  row, column = (x.astype(jnp.int32) + 1 for x in (top, left))
  index = row * (columns + 2) + column
  weights = jnp.stack(
    [
      (1 - low_weight) * (1 - right_weight),
      (1 - low_weight) * right_weight,
      low_weight * (1 - right_weight),
      low_weight * right_weight,
    ],
    axis=-1,
  )
  out = _sample(padded, index, weights)
  out = jnp.moveaxis(out.reshape(channels, height, width), 0, -1)
  return out.astype(template.dtype)


@jax.custom_jvp
def _sample(padded, index, weights):
  """Sums of four neighbours in a template [U V C], weighted by [N 4]: [C N].

  The index [N] is that of the upper left one, without the last row and column.
  Neighbours are stored side by side, so that one gather finds them.
  """
  return _weigh(_gather(padded, index), weights)


@_sample.defjvp
def _sample_jvp(primals, tangents):
  """The tangent as one sum over the neighbours, as they are stored.

  A CPU then scatters the gradients at four neighbours at once.
  """
  (padded, index, weights), (d_padded, _, d_weights) = primals, tangents
  corners = _gather(padded, index)
  shape = (len(index), padded.shape[-1], 4)
  changes = weights[:, None] * _gather(d_padded, index).reshape(shape)
  changes = changes + d_weights[:, None] * corners.reshape(shape)
  return _weigh(corners, weights), jnp.sum(changes, axis=-1).T


def _weigh(corners, weights):
  # Sums of columns are twice as fast on a CPU as those of blocks of columns,
  # and what follows reads each channel faster where its pixels stand together.
  sums = (
    sum(weights[:, n] * corners[:, first + n] for n in range(4))
    for first in range(0, corners.shape[1], 4)
  )
  return jnp.stack(tuple(sums))


def _gather(padded, index):
  """Four neighbours of each channel, side by side: [N C*4]."""
  upper, lower = padded[:-1], padded[1:]
  corners = (upper[:, :-1], upper[:, 1:], lower[:, :-1], lower[:, 1:])
  corners = jnp.stack(corners, axis=-1)  # [U-1 V-1 C 4]
  corners = corners.reshape(-1, 4 * padded.shape[-1])
  return corners.at[index].get(mode="promise_in_bounds")


def transform(
  image: Float[Array, "H W C"],
  pose: Float[Array, "3 3"],
  *,
  canvas: tuple[int, int] | None = None,
) -> Float[Array, "H2 W2 C"]:
  """Renders an image in a pose that is given in pixels.

  Args:
    image: [H, W, C], any range.
    pose: [3, 3], maps (x, y, 1) in pixels right of and below the middle of the
      image to the same about the middle of the canvas.
    canvas: (rows, columns); by default those of the image.

  Returns:
    [*canvas, C], in the dtype of `image`.

  Raises:
    ValueError: `canvas` has no pixels.
  """
  checks.arrays({"image": (image, "H W C"), "pose": (pose, "3 3")})
  height, width, _ = image.shape
  canvas = (height, width) if canvas is None else canvas
  units_from = geometry.pixel_units(height, width)
  units_to = geometry.pixel_units(*canvas)
  dtype = jnp.result_type(pose, jnp.float32)
  units = jnp.asarray(units_from / units_to[:, None], dtype)
  return warp(image, pose.astype(dtype) * units, canvas)
