"""Constructs generative capsules with their recognition networks.

Smith et al. (2020), section 2.2; model and guide are in `model` and `guides`.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from capjax.generative import guides
from capjax.generative.model import GenerativeCapsules
from capjax.kernels import checks
from capjax.layers import dense


def amortised_capsules(
  image_shape: Sequence[int] = (28, 28, 1),
  *,
  num_capsules: Sequence[int] = (16, 16),
  template_size: int = 11,
  conv_features: Sequence[int] = (128, 128, 128, 128),
  width: int = 128,
  temperature: float = 0.5,
  pixel_scale: float = 0.15,
  scale_floor: float = 0.1,
  scale_prior: float | None = None,
  off_scale: float = 2.0,
  gaussian_poses: bool = False,
  dtype: jax.typing.DTypeLike = jnp.float32,
  rngs: nnx.Rngs,
) -> guides.AmortisedCapsules:
  """Constructs a generative model and its guide, with initialised parameters.

  Args:
    image_shape: height, width and channels.
    num_capsules: capsules of each layer, from the parts up.
    template_size: rows and columns of a template.
    conv_features: channels of the guide's convolutions.
    width: numbers of a token of its set transformers.
    temperature: temperature of relaxed presences, in the model and in the
      guide.
    pixel_scale: as for `GenerativeCapsules`.
    scale_floor: as for `GenerativeCapsules`.
    scale_prior: as for `GenerativeCapsules`.
    off_scale: as for `GenerativeCapsules`.
    gaussian_poses: whether the guide has Gaussian poses instead of point
      estimates.
    dtype: dtype of the products of the guide, as for `layers.dense.set_dtype`;
      the model, its likelihoods and the samples are in float32.
    rngs: its `params` stream initialises the parameters.

  Raises:
    ValueError: as for `GenerativeCapsules` and the encoders.
  """
  checks.rngs(rngs)
  checks.sequences(conv_features=conv_features)
  checks.counts(width=width)
  capsules = GenerativeCapsules(
    image_shape,
    num_capsules=num_capsules,
    template_size=template_size,
    temperature=temperature,
    pixel_scale=pixel_scale,
    scale_floor=scale_floor,
    scale_prior=scale_prior,
    off_scale=off_scale,
    rngs=rngs,
  )
  encoders: list[guides.PartEncoder | guides.ObjectEncoder] = [
    guides.PartEncoder(
      image_shape, num_capsules[0], features=conv_features, rngs=rngs
    )
  ]
  for children, parents in zip(
    num_capsules[:-1], num_capsules[1:], strict=True
  ):
    encoders.append(
      guides.ObjectEncoder(
        children,
        parents,
        width=width,
        out_features=2 * width,
        hidden=width,
        rngs=rngs,
      )
    )
  guide = guides.CapsuleGuide(encoders, temperature=temperature)
  if gaussian_poses:
    guide.add_scales(rngs=rngs)
  dense.set_dtype(guide, dtype)
  return guides.AmortisedCapsules(capsules, guide)
