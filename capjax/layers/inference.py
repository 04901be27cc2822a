"""A faster copy of a model for inference: kernels that are transformed once."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from capjax.layers import platforms, tiling
from capjax.layers.convolution import Conv


class Frozen(nnx.Variable):
  """Arrays of a copy for inference, which no optimiser may change."""


def transform_kernels(model: nnx.Module) -> nnx.Module:
  """Copies a model, and transforms its large kernels for many calls.

  On CPUs a convolution like that of CapsNet's primary capsules computes
  products at frequencies (`tiling.spectral`), and each call transforms the
  kernel first. The copy holds the transformed kernels, and uses them where that
  is faster. Other platforms convolve directly, and transform nothing.

  The copy has the outputs of the model, but for rounding, and their derivatives
  by its inputs and its other parameters. It does not follow the model's
  training, and is not for training or saving: its transformed kernels are no
  `nnx.Param`. Do not set its kernels.

  Args:
    model: any module, or a pytree of modules; it may be traced. Layers that are
      stacked along further axes (`nnx.vmap`) are left as they are.

  Returns:
    A copy that shares the arrays of the model, and has more of them: on each
    device 155 MB for the full CapsNet, whose kernel has 21 MB.
  """
  model = nnx.clone(model)
  if platforms.platform() != "cpu":
    return model
  for _, layer in nnx.iter_graph(model):
    if not isinstance(layer, Conv) or layer.transformed is not None:
      continue
    if layer.kernel.ndim == 4:
      found = _transform(layer.kernel[...], layer.dtype, layer.stride)
      if found is not None:
        layer.kernel = Frozen(layer.kernel[...])
        layer.transformed = Frozen(found)
  return model


@functools.partial(jax.jit, static_argnums=(1, 2))
def _transform(kernel, dtype, stride):
  wide = jnp.promote_types(dtype, jnp.float32)
  kernel = kernel.astype(dtype).astype(wide)
  return tiling.transform_kernel(kernel, stride=stride)
