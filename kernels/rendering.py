"""Drawing templates on a canvas; frames and axes as in `geometry`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernels import checks, geometry, numerics

_ABSENT = -1e30  # a logarithm of nothing that is still a number
_FURTHEST = 1e30  # pixels; nothing that is drawn is nearly as far


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
  # As a product of matrices, which XLA computes once. A sum it would compute
  # anew for the corners and for their weights, each rounded in its own way, so
  # that near a pixel centre the weights could be those of another corner. All
  # that follows up to the weights is exact: computed anew, it is the same.
  x, y = jnp.matmul(to_corner, points, precision="highest")

  # Everything outside lands in the border of zeros that the padding adds.
  x, y = jnp.clip(x, -1, columns), jnp.clip(y, -1, rows)
  left, top = jnp.floor(x), jnp.floor(y)
  right_weight, low_weight = x - left, y - top

  # Four neighbours stored together cost one gather, and one scatter for the
  # gradient, in place of four.
  padded = jnp.pad(template.astype(dtype), ((1, 2), (1, 2), (0, 0)))
  upper, lower = padded[:-1], padded[1:]
  blocks = jnp.concatenate(
    [upper[:, :-1], upper[:, 1:], lower[:, :-1], lower[:, 1:]], axis=-1
  ).reshape((rows + 2) * (columns + 2), 4 * channels)
  index = ((top + 1) * (columns + 2) + left + 1).astype(jnp.int32)
  corners = blocks.at[index].get(mode="promise_in_bounds")  # [H W, 4 C]

  weights = jnp.stack(
    [
      (1 - low_weight) * (1 - right_weight),
      (1 - low_weight) * right_weight,
      low_weight * (1 - right_weight),
      low_weight * right_weight,
    ],
    axis=-1,
  )
  weighted = jnp.repeat(weights, channels, axis=-1) * corners
  if channels == 1:
    out = jnp.sum(weighted, axis=-1)
  else:
    # As a product: a CPU then computes the gradient at a pixel once, not anew
    # for each of the numbers that are scattered. Of one channel it is slower.
    same_channel = jnp.tile(jnp.eye(channels, dtype=dtype), (4, 1))
    out = jnp.matmul(weighted, same_channel, precision="highest")
  return out.reshape(height, width, channels).astype(template.dtype)


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
  checks.arrays({"image": (image, "H W C"), "pose": (pose, "3 3")})
  canvas = image.shape[:2] if canvas is None else canvas
  units_from = geometry.pixel_units(*image.shape[:2])
  units_to = geometry.pixel_units(*canvas)
  units = jnp.asarray(units_from / units_to[:, None], pose.dtype)
  return warp(image, pose * units, canvas)


class ImageMixture(NamedTuple):
  """An image as a mixture of parts at each pixel.

  Attributes:
    log_prob: [], of the image, summed over pixels and channels, in nats.
    mean: [H W C], the intensity that the mixture expects.
    coefficients: [M + 1, H, W, C or 1], how much of a pixel each part makes up;
      sums to 1 over the parts and, last, the background.
  """

  log_prob: Float[Array, ""]
  mean: Float[Array, "H W C"]
  coefficients: Float[Array, "components H W #C"]


def explain_image(
  image: Float[Array, "H W C"],
  parts: Float[Array, "M H W C"],
  logits: Float[Array, "M H W #C"],
  presence: Float[Array, " M"],
  background: Float[Array, " C"],
  background_logit: Float[Array, " #C"],
  *,
  scale: float = 1.0,
) -> ImageMixture:
  """Scores an image under parts drawn on it (Kosiorek et al., 2019, Eq. 5).

  log p(y) = sum_ijc log sum_m p_m(ij) N(y_ijc; parts_m(ijc), scale^2), with
  p_m = softmax_m(logits_m + log presence_m), the background being one more
  component, always present.

  Args:
    image: [H, W, C], y; in float32 it and the intensities are of magnitude up
      to 1e17 `scale`, whose squares do not overflow, and logits up to 1e17.
    parts: [M, H, W, C], the intensities that each part would give each pixel.
    logits: [M, H, W, C or 1]; rendered alphas, or intensities over a
      temperature.
    presence: [M] in [0, 1]; parts with 0 cover nothing, whatever their logits.
    background: [C], the intensity where no part is.
    background_logit: [C] or [1].
    scale: standard deviation of a pixel, > 0.

  Returns:
    See `ImageMixture`.

  Raises:
    ValueError: if `scale` is not above 0.

  Differs from paper: it has no background, which is its code's; channels are
  mixed one by one, as there.
  """
  if isinstance(scale, float | int) and not scale > 0:
    raise ValueError(f"scale is {scale}; give a number above 0.")
  sizes = checks.arrays(
    {
      "image": (image, "H W C"),
      "parts": (parts, "M H W C"),
      "logits": (logits, "M H W L"),
      "presence": (presence, "M"),
      "background": (background, "C"),
      "background_logit": (background_logit, "N"),
    }
  )
  for name, axis in (("logits", "L"), ("background_logit", "N")):
    if sizes[axis] not in (1, sizes["C"]):
      raise ValueError(
        f"{name} has {sizes[axis]} channels; give 1 or {sizes['C']}."
      )
  num_parts = sizes["M"]
  dtype = numerics.accumulation_dtype(image, parts, logits)
  image, parts, logits = (x.astype(dtype) for x in (image, parts, logits))
  presence = presence.astype(dtype)
  log_presence = jnp.where(presence > 0, numerics.safe_log(presence), _ABSENT)
  logits = logits + log_presence[:, None, None, None]

  def log_density(mean):
    return -0.5 * jnp.square((image - mean) / scale)

  def sum_over(part_logits, background_logit):
    # As [M, pixels]: sums over M are slow where the last axis is short.
    shape = part_logits.shape[1:]
    part_logits = part_logits.reshape(num_parts, -1)
    rest = jnp.broadcast_to(background_logit, shape).reshape(-1)
    largest = jnp.maximum(jnp.max(part_logits, axis=0), rest)
    largest = jax.lax.stop_gradient(largest)
    weights = numerics.exp_below(part_logits, largest)
    rest = numerics.exp_below(rest, largest)
    total = jnp.sum(weights, axis=0) + rest
    total = jnp.where(total < 1, 1.0, total)
    return (
      (largest + jnp.log(total)).reshape(shape),
      (weights / total).reshape(-1, *shape),
      (rest / total).reshape(shape),
    )

  background = background.astype(dtype)
  background_logit = background_logit.astype(dtype)
  log_total, shares, rest = sum_over(logits, background_logit)
  log_prob, _, _ = sum_over(
    logits + log_density(parts), background_logit + log_density(background)
  )
  constant = jnp.log(scale) + 0.5 * jnp.log(2 * jnp.pi)
  return ImageMixture(
    jnp.sum(log_prob - log_total - constant),
    jnp.sum(shares * parts, axis=0) + rest * background,
    jnp.concatenate([shares, rest[None]]),
  )
