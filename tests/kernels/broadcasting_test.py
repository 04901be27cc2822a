"""Arrays repeated along new axes, and the sums that are their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from jax.test_util import check_grads

from kernels import broadcasting

_SHAPES = ((), (5,), (3, 2))
_AXES = (((), ()), ((4, 7), ()), ((), (6,)), ((2,), (3, 4)))


def _spread_oracle(x, before, after):
  out = np.zeros((*before, *x.shape, *after))
  for index in np.ndindex(*out.shape):
    own = index[len(before) : len(before) + x.ndim]
    out[index] = x[own]
  return out


class SpreadTest(parameterized.TestCase):
  @parameterized.product(shape=_SHAPES, axes=_AXES)
  def test_repeats_and_sums_as_the_oracle(self, shape, axes):
    before, after = axes
    x = jax.random.normal(jax.random.key(0), shape)

    def of(x):
      return broadcasting.spread(x, before=before, after=after)

    out, transpose = jax.vjp(of, x)
    np.testing.assert_array_equal(out, _spread_oracle(np.array(x), *axes))
    change = jax.random.normal(jax.random.key(1), out.shape)
    (sums,) = transpose(change)
    want = np.zeros(shape)
    for index in np.ndindex(*out.shape):
      own = index[len(before) : len(before) + len(shape)]
      want[own] += np.float64(change[index])
    np.testing.assert_allclose(sums, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.jvp(of, (x,), (x,))[1], out, rtol=1e-6)

  def test_has_derivatives_of_second_order(self):
    with jax.enable_x64():
      x = jax.random.normal(jax.random.key(0), (3,))

      def of(x):
        x = jnp.asarray(x)
        return jnp.sin(broadcasting.spread(x, before=(2,), after=(4,)))

      check_grads(of, (x,), order=2)

  def test_sums_of_narrow_numbers_are_wide(self):
    # 257 is rounded to 256 in bfloat16, so that narrow sums would give 768.
    def of(x):
      return broadcasting.spread(x, before=(3,), after=(257,))

    change = jnp.ones((3, 2, 257), jnp.bfloat16)
    (sums,) = jax.vjp(of, jnp.zeros(2, jnp.bfloat16))[1](change)
    self.assertEqual(sums.dtype, jnp.bfloat16)
    np.testing.assert_array_equal(sums, jnp.bfloat16(772))

  def test_takes_an_axis_of_no_numbers(self):
    x = jnp.ones(3)
    out, transpose = jax.vjp(lambda x: broadcasting.spread(x, before=(0,)), x)
    self.assertEqual(out.shape, (0, 3))
    np.testing.assert_array_equal(transpose(out)[0], 0)


class SumRowsTest(parameterized.TestCase):
  @parameterized.parameters(((1, 3),), ((40, 2),))
  def test_sums_as_the_oracle(self, shape):
    x = jax.random.normal(jax.random.key(0), shape)
    want = np.zeros(shape[1])
    for row in np.float64(x):
      want += row
    sums, change = jax.jvp(broadcasting.sum_rows, (x,), (2 * x,))
    np.testing.assert_allclose(sums, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(change, 2 * want, rtol=1e-5, atol=1e-6)
    weights = jnp.arange(1.0, shape[1] + 1)
    gradient = jax.grad(lambda x: weights @ broadcasting.sum_rows(x))(x)
    np.testing.assert_array_equal(gradient, np.tile(weights, (shape[0], 1)))

  def test_sums_of_narrow_numbers_are_wide(self):
    sums = broadcasting.sum_rows(jnp.ones((4096, 3), jnp.bfloat16))
    self.assertEqual(sums.dtype, jnp.float32)
    np.testing.assert_array_equal(sums, 4096)


class AddBiasTest(parameterized.TestCase):
  @parameterized.parameters(
    ((4, 5, 3), (3,)), ((6, 4, 2), (4, 2)), ((3,), (3,))
  )
  def test_is_a_sum(self, shape, bias_shape):
    x = jax.random.normal(jax.random.key(0), shape)
    bias = jax.random.normal(jax.random.key(1), bias_shape)
    weights = jax.random.normal(jax.random.key(2), shape)

    def of(add):
      return jax.value_and_grad(
        lambda *given: jnp.sum(weights * add(*given)), (0, 1)
      )(x, bias)

    value, gradients = of(broadcasting.add_bias)
    want, wanted = of(jnp.add)
    np.testing.assert_allclose(value, want, rtol=1e-5)
    for found, other in zip(gradients, wanted, strict=True):
      np.testing.assert_allclose(found, other, rtol=1e-5, atol=1e-6)

  def test_a_gradient_by_a_number(self):
    gradient = jax.grad(lambda b: jnp.sum(broadcasting.add_bias(x, b)))
    x = jnp.ones((2, 3))
    np.testing.assert_allclose(gradient(1.0), 6)

  def test_of_narrow_inputs_has_the_wider_dtype(self):
    total = broadcasting.add_bias(jnp.ones((2, 3), jnp.bfloat16), jnp.ones(3))
    self.assertEqual(total.dtype, jnp.float32)

  def test_refuses_other_sizes(self):
    for bias in (jnp.ones(4), jnp.ones((2, 2, 3)), jnp.ones(1)):
      with pytest.raises(ValueError, match="give a bias of the last axes"):
        broadcasting.add_bias(jnp.ones((2, 3)), bias)


def _plain_add(x, bias):
  return jax.grad(lambda bias: jnp.sum((x + bias) ** 2))(bias)


def _add_bias(x, bias):
  def loss(bias):
    return jnp.sum(broadcasting.add_bias(x, bias) ** 2)

  return jax.grad(loss)(bias)


def _plain_sum(x, bias):
  return jnp.sum(x, axis=0) + bias


def _sum_rows(x, bias):
  return broadcasting.sum_rows(x) + bias


@pytest.mark.skipif(
  jax.default_backend() != "cpu", reason="about programs for CPUs"
)
class ProgramTest(parameterized.TestCase):
  """XLA sums many rows on a CPU by windows, which is slow."""

  def _program(self, function):
    x, bias = jnp.ones((4096, 8)), jnp.ones(8)
    return jax.jit(function).lower(x, bias).compile().as_text()

  @parameterized.parameters(_plain_add, _plain_sum)
  def test_plain_sums_are_slow(self, function):
    self.assertIn("reduce-window", self._program(function))

  @parameterized.parameters(_add_bias, _sum_rows)
  def test_sums_as_products_are_not(self, function):
    self.assertNotIn("reduce-window", self._program(function))


if __name__ == "__main__":
  absltest.main()
