"""Batch normalisation, beside Flax's own."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from flax import nnx

from capjax import layers

_SHAPES = ((6, 3), (4, 5, 5, 3))


def _pair(seed=0):
  """Two layers of the same random scale and bias."""
  layer, other = (
    kind(3, momentum=0.9, epsilon=1e-3, rngs=nnx.Rngs(seed))
    for kind in (layers.BatchNorm, nnx.BatchNorm)
  )
  for name, key in zip(
    ("scale", "bias"), jax.random.split(jax.random.key(seed)), strict=True
  ):
    for of in (layer, other):
      getattr(of, name)[...] = jax.random.normal(key, (3,))
  return layer, other


def _gradients(layer, x):
  """Of a function that is not symmetric in the batch, by x and parameters."""
  weights = jax.random.normal(jax.random.key(9), x.shape)
  graph, state, rest = nnx.split(layer, nnx.Param, ...)

  def loss(x, state):
    out = nnx.merge(graph, state, rest, copy=True)(x)
    return jnp.sum(weights * jnp.square(out))

  return jax.tree.leaves(jax.grad(loss, (0, 1))(x, state))


class BatchNormTest(parameterized.TestCase):
  @parameterized.product(shape=_SHAPES, training=(True, False))
  def test_is_that_of_flax(self, shape, training):
    x = 2 + 3 * jax.random.normal(jax.random.key(1), shape)
    pair = _pair()
    for layer in pair:
      layer(x - 1)  # so that the running means are not those of a new layer
      layer.set_attributes(use_running_average=not training)
    for found, want in zip(*(_gradients(of, x) for of in pair), strict=True):
      np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)
    found, want = (layer(x) for layer in pair)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
    states = (jax.tree.leaves(nnx.state(layer)) for layer in pair)
    for found, want in zip(*states, strict=True):
      np.testing.assert_allclose(found, want, rtol=1e-5)

  def test_oracle(self):
    layer, _ = _pair()
    x = jax.random.normal(jax.random.key(1), (4, 2, 3))
    rows = np.float64(x).reshape(-1, 3)
    mean = rows.sum(axis=0) / 8
    variance = ((rows - mean) ** 2).sum(axis=0) / 8
    want = (rows - mean) / np.sqrt(variance + 1e-3)
    want = want * np.float64(layer.scale[...]) + np.float64(layer.bias[...])
    np.testing.assert_allclose(layer(x).reshape(-1, 3), want, rtol=1e-5)
    np.testing.assert_allclose(layer.mean[...], 0.1 * mean, rtol=1e-5)
    np.testing.assert_allclose(layer.var[...], 0.9 + 0.1 * variance, rtol=1e-5)

  def test_far_from_zero_it_does_not_cancel(self):
    # E[x^2] - E[x]^2 of these is of the size of their rounding errors.
    layer, _ = _pair()
    noise = jax.random.normal(jax.random.key(1), (64, 3))
    x = 1024 + jnp.round(64 * noise) / 64
    np.testing.assert_allclose(layer(x), layer(x - 1024), atol=1e-4)

  def test_exports_any_batch(self):
    layer, _ = _pair()
    layer.set_attributes(use_running_average=True)
    (count,) = jax.export.symbolic_shape("b")
    shape = jax.ShapeDtypeStruct((count, 3), jnp.float32)
    exported = jax.export.export(jax.jit(layer))(shape)
    x = jax.random.normal(jax.random.key(1), (5, 3), jnp.float32)
    np.testing.assert_allclose(exported.call(x), layer(x), rtol=1e-5)

  def test_equal_inputs_are_safe(self):
    layer, _ = _pair()
    for x in (jnp.zeros((4, 3)), jnp.ones((4, 3), jnp.bfloat16)):
      for gradient in (layer(x), *_gradients(layer, x)):
        self.assertTrue(bool(jnp.all(jnp.isfinite(gradient))))
    self.assertEqual(layer(x).dtype, jnp.float32)

  def test_bad_inputs_are_refused_and_change_nothing(self):
    layer, _ = _pair()
    call = inspect.unwrap(layers.BatchNorm.__call__)
    for x, error, message in (
      (jnp.ones((4, 1)), ValueError, r"x is \[4, 1\]; give 3 channels"),
      (jnp.ones((0, 3)), ValueError, r"x is \[0, 3\], an empty batch"),
      (jnp.ones((4, 3), jnp.int32), TypeError, "x holds int32"),
    ):
      with self.assertRaisesRegex(error, message):
        call(layer, x)
    layer.use_running_average = None
    with self.assertRaisesRegex(ValueError, r"call train\(\) or eval\(\)"):
      layer(jnp.ones((4, 3)))
    np.testing.assert_array_equal(layer.mean[...], 0)
    layer.eval()
    self.assertEqual(layer(jnp.ones((0, 3))).shape, (0, 3))


if __name__ == "__main__":
  absltest.main()
