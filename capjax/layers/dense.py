"""Dense layers whose products are rounded as those of capsules are.

Flax's own round float32 by JAX's default, which keeps fewer digits on
accelerators than `kernels.numerics.precision` says.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from capjax.kernels import broadcasting, checks, numerics


class Linear(nnx.Linear):
  """A dense layer over the last axis.

  With `dtype` bfloat16 the inputs and the kernel are rounded to it, and so is
  their product before the bias is added. Parameters stay in float32.
  """

  def __init__(
    self,
    in_features: int,
    out_features: int,
    *,
    use_bias: bool = True,
    kernel_init: Callable = nnx.initializers.lecun_normal(),
    bias_init: Callable = nnx.initializers.zeros,
    dtype: jax.typing.DTypeLike | None = None,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      in_features: length of the inputs.
      out_features: length of the outputs.
      use_bias: whether a bias is added.
      kernel_init: initialiser of the kernel [in out].
      bias_init: initialiser of the bias [out].
      dtype: dtype of the product, such as bfloat16; None for that of the inputs
        and the kernel.
      rngs: its `params` stream initialises the parameters.

    Raises:
      TypeError: if `rngs` are no streams.
    """
    checks.rngs(rngs)
    super().__init__(
      in_features,
      out_features,
      use_bias=use_bias,
      kernel_init=kernel_init,
      bias_init=bias_init,
      dtype=dtype,
      rngs=rngs,
    )

  def __call__(  # type: ignore[override]  # how it rounds is no argument
    self, inputs: Float[Array, "*batch in"]
  ) -> Float[Array, "..."]:
    """Computes the product with the kernel, and adds the bias.

    Args:
      inputs: any floats, with `in_features` numbers along the last axis.

    Returns:
      [... `out_features`], in the dtype to which inputs and kernel promote.

    Raises:
      TypeError: if the inputs are no floats.
      ValueError: if their last axis has another size.
    """
    outputs = numerics.einsum(
      "...i,io->...o", inputs, self.kernel[...], dtype=self.dtype
    )
    if self.bias is None:
      return outputs
    return broadcasting.add_bias(outputs, self.bias[...])


class Einsum(nnx.Einsum):
  """A dense layer of any axes, as `nnx.Einsum`; otherwise as `Linear`."""

  def __init__(
    self,
    subscripts: str,
    kernel_shape: tuple[int, ...],
    bias_shape: tuple[int, ...] | None = None,
    *,
    kernel_init: Callable = nnx.initializers.lecun_normal(),
    bias_init: Callable = nnx.initializers.zeros,
    dtype: jax.typing.DTypeLike | None = None,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      subscripts: of the inputs, the kernel and the outputs.
      kernel_shape: shape of the kernel.
      bias_shape: shape of the bias, the last axes of the outputs; None for no
        bias.
      kernel_init: initialiser of the kernel.
      bias_init: initialiser of the bias.
      dtype: as for `Linear`.
      rngs: its `params` stream initialises the parameters.
    """
    super().__init__(
      subscripts,
      kernel_shape,
      bias_shape,
      kernel_init=kernel_init,
      bias_init=bias_init,
      dtype=dtype,
      rngs=rngs,
    )

  def __call__(  # type: ignore[override]  # how it rounds is no argument
    self, inputs: Float[Array, "..."]
  ) -> Float[Array, "..."]:
    """Computes the sums of products with the kernel, and adds the bias.

    Args:
      inputs: any floats, of the axes that the subscripts name first.

    Returns:
      Outputs of the axes that the subscripts name last, in the dtype to which
      inputs and kernel promote.

    Raises:
      TypeError: if the inputs are no floats.
      ValueError: if their shape does not fit the subscripts.
    """
    outputs = numerics.einsum(
      self.einsum_str, inputs, self.kernel[...], dtype=self.dtype
    )
    if self.bias is None:
      return outputs
    return broadcasting.add_bias(outputs, self.bias[...])


def set_dtype(model: nnx.Module, dtype: jax.typing.DTypeLike) -> None:
  """Sets the dtype of the products of all dense layers and convolutions.

  Norms, sums and results stay in float32, as do the parameters.

  Args:
    model: a new module, which is changed.
    dtype: bfloat16, or float32, which leaves the module as it is.

  Raises:
    ValueError: if the dtype is another.
  """
  checks.dtype(dtype)
  if jnp.dtype(dtype) == jnp.float32:
    return
  norms = (
    nnx.BatchNorm, nnx.LayerNorm, nnx.GroupNorm, nnx.RMSNorm,
    nnx.InstanceNorm,
  )  # fmt: skip
  model.set_attributes(
    lambda path, module: not isinstance(module, norms), dtype=dtype
  )
