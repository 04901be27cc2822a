"""Rendering templates on a canvas; frames and axes as in `geometry`."""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import checks, geometry, numerics

_FURTHEST = 1e30  # pixels; far outside of any canvas


def warp(
  template: Float[Array, "U V C"],
  pose: Float[Array, "3 3"],
  canvas: tuple[int, int],
  *,
  template_gradient: Literal["scatter", "products"] = "scatter",
) -> Float[Array, "H W C"]:
  """Renders a template in a pose (Jaderberg et al., 2015, Eq. 5).

  out[g] = sum_uv template[u, v] k(x - v) k(y - u), k(d) = max(0, 1 - |d|),
  where (x, y) is the template pixel at pose^-1 g. Linear in the template; the
  identity pose and equal sizes give the template back exactly.

  Args:
    template: [U, V, C], any range.
    pose: [3, 3], maps template to canvas, both frames [-1, 1], entries as for
      `geometry.invert`. Where a sample falls on a pixel centre, the gradient is
      the one-sided derivative to the right and below.
    canvas: (H, W).
    template_gradient: how the gradient of the template is summed: "scatter"
      adds each pixel's share to its four neighbours, fastest on a CPU;
      "products" multiplies matrices, for accelerators, where a scatter in a
      fixed order has to sort all pixels. Its memory holds U + V + 6 weights and
      twice (V + 3) C numbers for each pixel, and the gradient of a pixel must
      be finite, else that of the whole template is not.

  Returns:
    [H, W, C] in the dtype of `template`; zero outside of the template, fading
    over the first pixel spacing beyond its edge.

  Raises:
    TypeError: if the sides of `canvas` are no whole numbers.
    ValueError: if `canvas` has no pixels, or `template_gradient` is unknown.

  Differs from paper: nothing; only the four terms of the sum that can be
  nonzero are computed.
  """
  checks.arrays({"template": (template, "U V C"), "pose": (pose, "3 3")})
  height, width = _sides(canvas)
  if template_gradient not in ("scatter", "products"):
    raise ValueError(
      f"template_gradient={template_gradient!r}; pass 'scatter' or 'products'."
    )
  rows, columns, channels = template.shape
  dtype = jnp.result_type(template, pose, jnp.float32)

  # In pixels from the middle, equal sizes make every ratio exactly 1.
  template_units = geometry.pixel_units(rows, columns)
  ratios = template_units[:, None] / geometry.pixel_units(height, width)
  to_template = geometry.invert(pose.astype(dtype)) * ratios.astype(dtype)
  middle = jnp.array([[0, 0, columns - 1], [0, 0, rows - 1]], dtype) / 2
  to_corner = to_template[:2] + middle
  # Sums of infinities would be NaN.
  to_corner = jnp.clip(to_corner, -_FURTHEST, _FURTHEST)
  offsets = geometry.pixel_offsets(height, width, dtype=dtype).reshape(-1, 2)
  points = jnp.concatenate([offsets.T, jnp.ones((1, len(offsets)), dtype)])
  # As a product of matrices, which XLA computes once. XLA would compute a sum
  # twice, for the corners and for their weights, with different rounding, so
  # that near a pixel centre the weights could belong to another corner. The
  # steps from here to the weights are exact, so computing them twice is safe.
  # Never rounded, at any setting: points would be off by parts of a pixel.
  x, y = jnp.matmul(to_corner, points, precision="highest")

  # Everything outside lands in the border of zeros that the padding adds.
  x, y = _clip(x, -1, columns), _clip(y, -1, rows)
  left, top = jnp.floor(x), jnp.floor(y)
  padded = jnp.pad(template.astype(dtype), ((1, 2), (1, 2), (0, 0)))
  # As integers: floats are not exact for templates of many pixels.
  corner = tuple(x.astype(jnp.int32) + 1 for x in (top, left))
  out = _sample(template_gradient, padded, corner, (y - top, x - left))
  out = jnp.moveaxis(out.reshape(channels, height, width), 0, -1)
  return out.astype(jnp.result_type(template))


def _clip(x, low, high):
  """As `jnp.clip`, but at both ends the gradient is 1, not 1/2."""
  return jnp.where(x < low, low, jnp.where(x > high, high, x))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _sample(gradient, padded, corner, beyond):
  """Computes weighted sums [C N] of four neighbours in a template [U V C].

  `corner` holds the row and the column [N] of the upper left neighbour, which
  is never in the last row or column; `beyond` holds how far [N], in [0, 1], the
  sample is below and to the right of it. Neighbours are stored side by side, so
  that one gather finds them.
  """
  del gradient
  return _weigh(_gather(padded, corner), _weights(beyond))


@_sample.defjvp
def _sample_jvp(gradient, primals, tangents):
  """Computes the tangent as one sum over the stored neighbours.

  A CPU then scatters the gradients at four neighbours at once.
  """
  (padded, corner, beyond), (d_padded, _, d_beyond) = primals, tangents
  corners = _gather(padded, corner)
  weights, d_weights = jax.jvp(_weights, (beyond,), (d_beyond,))
  shape = (len(corners), padded.shape[-1], 4)
  changes = d_weights[:, None] * corners.reshape(shape)
  if gradient == "scatter":
    changes += weights[:, None] * _gather(d_padded, corner).reshape(shape)
    changes = jnp.sum(changes, axis=-1).T
  else:
    changes = jnp.sum(changes, axis=-1).T + _products(d_padded, corner, beyond)
  return _weigh(corners, weights), changes


def _weights(beyond):
  """The weights [N 4] of the four neighbours."""
  low, right = beyond
  return jnp.stack(
    [
      (1 - low) * (1 - right),
      (1 - low) * right,
      low * (1 - right),
      low * right,
    ],
    axis=-1,
  )


def _products(padded, corner, beyond):
  """Computes `_sample` as products with the weights of all rows and columns."""
  rows, columns, channels = padded.shape

  def weights(count, at, beyond):
    places, at, beyond = jnp.arange(count), at[:, None], beyond[:, None]
    weight = jnp.where(places == at + 1, beyond, 0.0)
    return jnp.where(places == at, 1 - beyond, weight)

  of_rows, of_columns = map(weights, (rows, columns), corner, beyond)
  found = numerics.matmul(of_rows, padded.reshape(rows, -1))
  found = found.reshape(-1, columns, channels)
  return jnp.sum(of_columns[..., None] * found, axis=1).T


def _weigh(corners, weights):
  # Sums of columns are twice as fast on a CPU as those of blocks of columns.
  # The next steps read a channel faster if its pixels are adjacent in memory.
  sums = (
    sum(weights[:, n] * corners[:, first + n] for n in range(4))
    for first in range(0, corners.shape[1], 4)
  )
  return jnp.stack(tuple(sums))


def _gather(padded, corner):
  """Four neighbours of each channel, side by side: [N C*4]."""
  row, column = corner
  index = row * (padded.shape[1] - 1) + column
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
    pose: [3, 3], maps (x, y, 1), in pixels right of and below the middle of the
      image, to pixels right of and below the middle of the canvas.
    canvas: (rows, columns); by default those of the image.

  Returns:
    [*canvas, C], in the dtype of `image`.

  Raises:
    TypeError: if the sides of `canvas` are no whole numbers.
    ValueError: if `canvas` has no pixels.
  """
  checks.arrays({"image": (image, "H W C"), "pose": (pose, "3 3")})
  height, width, _ = image.shape
  canvas = (height, width) if canvas is None else canvas
  units_from = geometry.pixel_units(height, width)
  units_to = geometry.pixel_units(*_sides(canvas))
  dtype = jnp.result_type(pose, jnp.float32)
  units = jnp.asarray(units_from / units_to[:, None], dtype)
  return warp(image, pose.astype(dtype) * units, canvas)


def _sides(canvas):
  """Returns the rows and columns of a canvas, after a check of both."""
  if np.shape(canvas) != (2,):
    raise ValueError(f"canvas={canvas}; give the numbers of rows and columns.")
  checks.sequences(canvas=canvas)
  return canvas
