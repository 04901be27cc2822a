"""Residual blocks against their equation, in float64 NumPy."""

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from flax import nnx

from capjax import layers


def _inputs(channels=3):
  random = np.random.default_rng(1)
  return jnp.array(random.normal(size=(2, 5, 6, channels)), jnp.float32)


@jax.jit
def _call(layer, x):
  return layer(x)


def _convolve(x, layer, stride=1):
  found = oracles.convolve(x, layer.kernel[...], stride=stride, padding="SAME")
  return found + np.float64(layer.bias[...])


def _oracle(block, x, stride):
  x = np.float64(x)
  inner = np.maximum(_convolve(np.maximum(x, 0), block.first, stride), 0)
  changed = _convolve(inner, block.second)
  if block.shortcut is not None:
    x = _convolve(x, block.shortcut, stride)
  return x + float(block.gain[...]) * changed


_SIZES = [(3, 3, 1), (3, 4, 1), (3, 3, 2)]


@pytest.mark.parametrize(("below", "above", "stride"), _SIZES)
def test_a_block_matches_its_equation(below, above, stride):
  block = cases.perturbed(
    layers.ResidualBlock(below, above, stride=stride, rngs=nnx.Rngs(0))
  )
  assert (block.shortcut is None) == ((below, stride) == (above, 1))
  got, want = _call(block, _inputs()), _oracle(block, _inputs(), stride)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
  with pytest.raises(AssertionError):
    block.gain = nnx.Param(-block.gain[...])
    np.testing.assert_allclose(_call(block, _inputs()), want, atol=1e-2)


def test_a_block_starts_as_its_shortcut():
  block = layers.ResidualBlock(3, 3, rngs=nnx.Rngs(0))
  np.testing.assert_array_equal(_call(block, _inputs()), _inputs())


@pytest.mark.parametrize(("below", "above", "stride"), _SIZES)
def test_the_result_has_the_dtype_of_the_block(below, above, stride):
  block = layers.ResidualBlock(
    below, above, stride=stride, dtype=jnp.bfloat16, rngs=nnx.Rngs(0)
  )
  assert jax.eval_shape(block, _inputs()).dtype == jnp.bfloat16


def test_each_stage_halves_the_grid():
  stages = layers.ResidualStages(3, (4, 5), num_blocks=2, rngs=nnx.Rngs(0))
  assert len(stages.blocks) == 4
  got = _call(stages, _inputs())
  chex.assert_shape(got, (2, 2, 2, 5))
  x = _inputs()
  for block in stages.blocks:
    x = _call(block, x)
  np.testing.assert_allclose(got, x, atol=1e-6)


def test_gradients_reach_every_parameter():
  stages = cases.perturbed(
    layers.ResidualStages(3, (4,), num_blocks=2, rngs=nnx.Rngs(0))
  )
  found = jax.jit(jax.grad(lambda s, x: jnp.sum(jnp.cos(s(x)))))(
    stages, _inputs()
  )
  chex.assert_tree_all_finite(found)
  assert all(np.any(leaf) for leaf in jax.tree.leaves(found))


def test_bfloat16_stays_close():
  make = layers.ResidualStages
  got, want = (
    _call(
      cases.perturbed(make(3, (4,), dtype=dtype, rngs=nnx.Rngs(0))), _inputs()
    )
    for dtype in (jnp.bfloat16, jnp.float32)
  )
  assert got.dtype == jnp.bfloat16
  np.testing.assert_allclose(np.float32(got), want, rtol=0.1, atol=0.3)


@pytest.mark.parametrize(
  ("options", "words"),
  [
    (dict(stage_features=(4, 0)), "stage_features is 0; give at least 1"),
    (dict(stage_features=()), "stage_features is 0; give at least 1"),
    (dict(stage_features=(4,), num_blocks=0), "num_blocks is 0; give at least"),
  ],
)
def test_numbers_that_do_not_fit_are_refused(options, words):
  with pytest.raises(ValueError, match=words):
    layers.ResidualStages(3, **options, rngs=nnx.Rngs(0))


def test_products_are_not_rounded():
  stages = layers.ResidualStages(3, (4,), rngs=nnx.Rngs(0))
  cases.assert_products_are_not_rounded(stages, _inputs())
