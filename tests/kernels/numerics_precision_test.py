"""How far products round: as `jax.default_matmul_precision` says, else not."""

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels import numerics

_HIGHEST = (jax.lax.Precision.HIGHEST,) * 2
_PRODUCTS = {
  "einsum": lambda a: numerics.einsum("ij,jk->ik", a, a),
  "matmul": lambda a: numerics.matmul(a, a),
  "JAX's own": numerics.full_products()(lambda a: a @ a),
}


@pytest.fixture
def matrix():
  return jnp.float32(np.random.default_rng(0).normal(size=(3, 3)))


@pytest.mark.parametrize("name", _PRODUCTS)
def test_products_follow_the_setting_of_jax(matrix, name):
  def found():
    function = jax.grad(lambda a: jnp.sum(jnp.cos(_PRODUCTS[name](a))))
    return set(cases.precisions(jax.make_jaxpr(function)(matrix)))

  assert found() == {_HIGHEST}
  for setting in (jax.lax.Precision.DEFAULT, jax.lax.Precision.HIGH):
    with jax.default_matmul_precision(setting.name.lower()):
      assert found() == {(setting,) * 2}
  assert found() == {_HIGHEST}


def test_a_compiled_function_follows_a_setting_that_changes(matrix):
  traced = []

  @jax.jit
  def product(a):
    traced.append(numerics.precision())
    return numerics.matmul(a, a)

  want = product(matrix)
  with jax.default_matmul_precision("default"):
    chex.assert_trees_all_equal(product(matrix), want)  # no CPU rounds
  product(matrix)
  assert traced == ["highest", None]


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_accelerators_are_told_the_precision(matrix, platform):
  def lowered():
    traced = jax.jit(lambda a: numerics.matmul(a, a)).trace(matrix)
    return traced.lower(lowering_platforms=(platform,)).as_text()

  assert "precision = [HIGHEST, HIGHEST]" in lowered()
  with jax.default_matmul_precision("default"):
    assert "HIGHEST" not in lowered()


def test_a_product_in_bfloat16_rounds_operands_and_result(matrix):
  def rounded(x):
    return np.float32(x.astype(jnp.bfloat16))

  got = numerics.einsum("ij,jk->ik", matrix, matrix, dtype=jnp.bfloat16)
  exact = np.float64(rounded(matrix)) @ rounded(matrix)
  chex.assert_type(got, jnp.float32)
  np.testing.assert_array_equal(got, rounded(got))
  np.testing.assert_allclose(got, exact, rtol=0.004, atol=1e-3)
  assert np.max(np.abs(got - exact)) > 1e-4
