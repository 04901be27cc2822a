"""Batch normalisation whose sums over a batch are fast on CPUs."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from capjax.kernels import broadcasting, checks, numerics


class BatchNorm(nnx.BatchNorm):
  """Batch normalisation of the last axis (Ioffe and Szegedy, 2015).

  As Flax's own, with the same variables. On CPUs most of its time goes to sums
  over all other axes; see `broadcasting.spread`.

  Differs from Flax: it normalises the last axis, over the whole of an array,
  without axis names and masks. The variance is the mean of squared differences,
  which loses no digits, and results are float32 at least.
  """

  def __init__(
    self,
    num_features: int,
    *,
    momentum: float = 0.99,
    epsilon: float = 1e-5,
    rngs: nnx.Rngs,
  ):
    """Initialises means and biases at 0, variances and scales at 1.

    Args:
      num_features: C, channels.
      momentum: share of the old running means and variances in the new ones.
      epsilon: added to variances.
      rngs: as for `nnx.BatchNorm`.
    """
    super().__init__(
      num_features, momentum=momentum, epsilon=epsilon, rngs=rngs
    )

  def __call__(  # type: ignore[override]  # no masks
    self,
    x: Float[Array, "*batch C"],
    use_running_average: bool | None = None,
  ) -> Float[Array, "*batch C"]:
    """Shifts and scales each channel to mean 0 and variance 1, then as learned.

    Args:
      x: any number of leading axes, with at least one number for each channel;
        in float32 of magnitude up to 1e15, with up to 1e8 rows, or the sums of
        squares overflow.
      use_running_average: whether to take the means and variances of training;
        by default what `train()` and `eval()` of the model say.

    Returns:
      Shaped like `x`.

    Raises:
      TypeError: if `x` does not hold floats.
      ValueError: if `x` has another number of channels or, in training, no
        rows; or if nothing says whether the model is trained.
    """
    checks.floats({"x": x})
    if x.shape[-1:] != (self.num_features,):
      raise ValueError(
        f"x is {list(x.shape)}; give {self.num_features} channels, along the "
        "last axis."
      )
    if use_running_average is None:
      use_running_average = self.use_running_average
    if use_running_average is None:
      raise ValueError(
        "use_running_average is None; call train() or eval() of the model."
      )
    if not use_running_average and 0 in x.shape:
      raise ValueError(
        f"x is {list(x.shape)}, an empty batch; give at least one row to train "
        "on."
      )
    rows = x.reshape(-1, x.shape[-1])
    rows = numerics.widen(rows)
    count = rows.shape[0]
    assert self.scale is not None and self.bias is not None
    if use_running_average:
      mean, variance = self.mean[...], self.var[...]
      differences = rows - mean
    else:
      mean = broadcasting.sum_rows(rows) / count
      differences = rows - broadcasting.spread(mean, before=(count,))
      variance = broadcasting.sum_rows(jnp.square(differences)) / count
      for running, value in ((self.mean, mean), (self.var, variance)):
        new = self.momentum * running[...] + (1 - self.momentum) * value
        running[...] = jax.lax.stop_gradient(new)
    factors = jax.lax.rsqrt(variance + self.epsilon) * self.scale[...]
    rows = differences * broadcasting.spread(factors, before=(count,))
    return broadcasting.add_bias(rows, self.bias[...]).reshape(x.shape)
