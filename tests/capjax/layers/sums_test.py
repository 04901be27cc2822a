"""Layers whose gradients have none of the sums that CPUs compute slowly."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from capjax import layers

_IMAGES, _ROWS = (64, 8, 8, 8), (4096, 8)
_LAYERS = {
  "Linear": (lambda rngs: layers.Linear(8, 8, rngs=rngs), _ROWS),
  "Einsum": (
    lambda rngs: layers.Einsum("nc,cd->nd", (8, 8), (8,), rngs=rngs),
    _ROWS,
  ),
  "Conv": (lambda rngs: layers.Conv(8, 8, 1, rngs=rngs), _IMAGES),
  "BatchNorm": (lambda rngs: layers.BatchNorm(8, rngs=rngs), _IMAGES),
}


def _program(layer, shape):
  """Of the gradient of a layer by its parameters and its input."""
  graph, parameters, rest = nnx.split(layer, nnx.Param, ...)

  def loss(parameters, x):
    layer = nnx.merge(graph, parameters, rest, copy=True)
    return jnp.vdot(layer(x), jnp.sin(x))

  gradient = jax.jit(jax.grad(loss, (0, 1)))
  return gradient.lower(parameters, jnp.ones(shape)).compile().as_text()


class _Plain(nnx.Module):
  """A bias that is added with a plain sum: the test can fail."""

  def __init__(self):
    self.bias = nnx.Param(jnp.zeros(8))

  def __call__(self, x):
    return x + self.bias[...]


@pytest.mark.skipif(
  jax.default_backend() != "cpu", reason="about programs for CPUs"
)
@pytest.mark.parametrize("name", _LAYERS)
def test_gradients_have_no_sums_by_windows(name):
  make, shape = _LAYERS[name]
  assert "reduce-window" not in _program(make(nnx.Rngs(0)), shape)
  assert "reduce-window" in _program(_Plain(), shape)
