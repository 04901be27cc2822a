"""An image as a mixture of rendered parts at each pixel."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import broadcasting, checks, numerics

_ABSENT = -1e30  # stands for log 0, but is finite


class ImageMixture(NamedTuple):
  """An image as a mixture of parts at each pixel.

  Attributes:
    log_prob: [], log-likelihood of the image, summed over pixels and channels,
      in nats.
    mean: [H W C], the expected intensity of the mixture.
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
  """Scores an image under rendered parts (Kosiorek et al., 2019, Eq. 5).

  log p(y) = sum_ijc log sum_m p_m(ij) N(y_ijc; parts_m(ijc), scale^2), with
  p_m = softmax_m(logits_m + log presence_m), the background being one more
  component, always present.

  Args:
    image: [H, W, C], y. In float32, y and the intensities may have magnitudes
      up to 1e15 `scale`, so that sums of 1e8 squares do not overflow, and
      logits up to 1e17.
    parts: [M, H, W, C], the intensity of each part at each pixel.
    logits: [M, H, W, C or 1]; rendered alphas, or intensities over a
      temperature.
    presence: [M] in [0, 1]; parts with 0 cover no pixel, whatever their logits.
    background: [C], the intensity where no part is.
    background_logit: [C] or [1].
    scale: standard deviation of a pixel, > 0.

  Returns:
    See `ImageMixture`; its numbers are in float32 or wider.

  Raises:
    ValueError: if `scale` is not a finite number above 0, the channels of the
      logits are neither 1 nor C, or a known presence is outside of [0, 1].

  Differs from paper: p_m of the paper is proportional to presence times alpha.
  Here, as in the authors' code, alphas are logits, so that a part still covers
  pixels outside of its template. The background and a mixture for each channel
  are those of that code too; the paper has no background.
  """
  checks.positive(scale=scale)
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
  checks.values(0.0, 1.0, presence=presence)
  for name, axis in (("logits", "L"), ("background_logit", "N")):
    if sizes[axis] not in (1, sizes["C"]):
      raise ValueError(
        f"{name} has {sizes[axis]} channels; give 1 or {sizes['C']}."
      )
  num_parts = sizes["M"]
  channels = max(sizes["L"], sizes["N"])
  dtype = numerics.accumulation_dtype(image, parts, logits)
  image, parts, logits = (x.astype(dtype) for x in (image, parts, logits))
  logits = jnp.broadcast_to(logits, (*logits.shape[:3], channels))
  presence = presence.astype(dtype)
  log_presence = jnp.where(presence <= 0, _ABSENT, numerics.safe_log(presence))
  logits = logits + broadcasting.spread(log_presence, after=logits.shape[1:])

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
    # At least about e^-8, unless rounding lost it; as in `numerics.share`.
    total = jnp.where(total > jnp.finfo(dtype).eps, total, 1.0)
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
