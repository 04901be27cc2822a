"""Residual convolutions, for deeper networks below the primary capsules.

Axes: B batch, H W image, C channels in, D channels out.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from capjax.kernels import checks
from capjax.layers import convolution


class ResidualBlock(nnx.Module):
  """Two 3x3 convolutions and a shortcut (He et al., 2016, ECCV, figure 1).

    y = shortcut(x) + gain conv(relu(conv(relu(x)))),
  the shortcut x itself, or a 1x1 convolution where the channels or the grid
  change. The gain is one number, which starts at 0 (De and Smith, 2020): the
  block starts as its shortcut, and needs no statistics of a batch.

  Differs from paper: the gain in place of batch normalisation.
  """

  def __init__(
    self,
    in_features: int,
    out_features: int,
    *,
    stride: int = 1,
    dtype: jax.typing.DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      in_features: C.
      out_features: D.
      stride: of the first convolution and of the shortcut; 2 halves the grid.
      dtype: dtype of the arithmetic and of the result; parameters stay float32.
      rngs: its `params` stream initialises the parameters.
    """
    options: dict[str, Any] = dict(padding="SAME", dtype=dtype, rngs=rngs)
    initial = nnx.initializers.he_normal()
    self.first = convolution.Conv(
      in_features, out_features, 3, stride=stride, kernel_init=initial,
      **options,
    )  # fmt: skip
    self.second = convolution.Conv(
      out_features, out_features, 3, kernel_init=initial, **options
    )
    self.shortcut = (
      convolution.Conv(in_features, out_features, 1, stride=stride, **options)
      if stride > 1 or in_features != out_features
      else None
    )
    self.gain = nnx.Param(jnp.zeros((), jnp.float32))

  def __call__(
    self, features: Float[Array, "B H W C"]
  ) -> Float[Array, "B oH oW D"]:
    """Adds the convolutions' result to the shortcut, without a final ReLU.

    Args:
      features: any floats, with `in_features` channels, of any size.

    Returns:
      [B ceil(H / stride) ceil(W / stride) D].

    Raises:
      TypeError: if the features are no floats.
      ValueError: if they have another number of channels.
    """
    kept = features if self.shortcut is None else self.shortcut(features)
    x = self.second(jax.nn.relu(self.first(jax.nn.relu(features))))
    return kept.astype(x.dtype) + self.gain[...].astype(x.dtype) * x


class ResidualStages(nnx.Module):
  """Stages of residual blocks, each of which halves the grid."""

  def __init__(
    self,
    in_features: int,
    stage_features: Sequence[int],
    *,
    num_blocks: int = 1,
    dtype: jax.typing.DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      in_features: C.
      stage_features: channels of each stage, from the lowest up.
      num_blocks: blocks of each stage; the first block has stride 2.
      dtype: as for `ResidualBlock`.
      rngs: its `params` stream initialises the parameters.

    Raises:
      ValueError: if a number is below 1.
    """
    checks.counts(
      stage_features=min(stage_features, default=0), num_blocks=num_blocks
    )
    sizes = (in_features, *stage_features)
    self.blocks = nnx.List(
      ResidualBlock(
        sizes[n] if first else sizes[n + 1],
        sizes[n + 1],
        stride=2 if first else 1,
        dtype=dtype,
        rngs=rngs,
      )
      for n in range(len(stage_features))
      for first in (True, *(False,) * (num_blocks - 1))
    )

  def __call__(
    self, features: Float[Array, "B H W C"]
  ) -> Float[Array, "B oH oW D"]:
    """Returns features of the last stage, before a ReLU.

    Args:
      features: as for `ResidualBlock`.

    Returns:
      Features; each stage halves the rows and columns, rounded up.
    """
    for block in self.blocks:
      features = block(features)
    return features
