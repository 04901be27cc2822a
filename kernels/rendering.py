"""Drawing templates on a canvas; frames and axes as in `geometry`."""

import chex
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernels import geometry


def warp(
  template: Float[Array, "U V C"],
  pose: Float[Array, "3 3"],
  canvas: tuple[int, int],
) -> Float[Array, "H W C"]:
  """Draws a template in a pose (Jaderberg et al., 2015, Eq. 5).

  out[g] = sum_uv template[u, v] k(x - v) k(y - u), k(d) = max(0, 1 - |d|),
  where (x, y) is the template pixel at pose^-1 g. Linear in the template; the
  identity pose and equal sizes give the template back exactly.

  Args:
    template: [U, V, C], any range.
    pose: [3, 3], maps template to canvas, both frames [-1, 1]; its gradient
      where a sample falls on a pixel centre is the one to the right and below.
    canvas: (H, W).

  Returns:
    [H, W, C] in the dtype of `template`; zero outside of the template, fading
    over the first pixel spacing beyond its edge.

  Raises:
    ValueError: `canvas` has no pixels.

  Differs from paper: nothing; of its sum only the four terms that can differ
  from zero are formed.
  """
  chex.assert_shape([template, pose], [(None, None, None), (3, 3)])
  height, width = canvas
  if min(canvas) < 1:
    raise ValueError(f"canvas={canvas}; both sides must be at least 1.")
  rows, columns, channels = template.shape
  dtype = jnp.result_type(template, pose, jnp.float32)

  # In pixels from the middle, equal sizes make every ratio exactly 1.
  template_units = geometry.pixel_units(rows, columns)
  ratios = template_units[:, None] / geometry.pixel_units(height, width)
  to_template = geometry.invert(pose.astype(dtype)) * ratios.astype(dtype)
  offsets = geometry.pixel_offsets(height, width, dtype=dtype)
  samples = geometry.apply(to_template, offsets)

  # Everything outside lands in the border of zeros that the padding adds.
  x = jnp.clip(samples[..., 0] + (columns - 1) / 2, -1, columns)
  y = jnp.clip(samples[..., 1] + (rows - 1) / 2, -1, rows)
  left = jnp.minimum(jnp.floor(x), columns - 1)
  top = jnp.minimum(jnp.floor(y), rows - 1)
  right_weight, low_weight = (x - left)[..., None], (y - top)[..., None]

  # Four neighbours stored together cost one gather, and one scatter for the
  # gradient, in place of four.
  padded = jnp.pad(template.astype(dtype), ((1, 1), (1, 1), (0, 0)))
  upper, lower = padded[:-1], padded[1:]
  blocks = jnp.concatenate(
    [upper[:, :-1], upper[:, 1:], lower[:, :-1], lower[:, 1:]], axis=-1
  ).reshape((rows + 1) * (columns + 1), 4 * channels)
  index = ((top + 1) * (columns + 1) + left + 1).astype(jnp.int32)
  corners = jnp.split(blocks.at[index].get(mode="clip"), 4, axis=-1)
  upper_left, upper_right, lower_left, lower_right = corners

  above = (1 - right_weight) * upper_left + right_weight * upper_right
  below = (1 - right_weight) * lower_left + right_weight * lower_right
  out = (1 - low_weight) * above + low_weight * below
  return out.astype(template.dtype)


def transform(
  image: Float[Array, "H W C"],
  pose: Float[Array, "3 3"],
  *,
  canvas: tuple[int, int] | None = None,
) -> Float[Array, "H2 W2 C"]:
  """Draws an image in a pose that is given in pixels.

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
  canvas = image.shape[:2] if canvas is None else canvas
  units_from = geometry.pixel_units(*image.shape[:2])
  units_to = geometry.pixel_units(*canvas)
  units = jnp.asarray(units_from / units_to[:, None], pose.dtype)
  return warp(image, pose * units, canvas)
