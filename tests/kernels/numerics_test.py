"""Norms, logarithms and squashing against float64, at every magnitude."""

import functools

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import widths
from absl.testing import absltest, parameterized
from jax.test_util import check_grads

from kernels import numerics

_SEEDS = (0, 1)
# 0, below the smallest normal float32, tiny, ordinary, huge.
_MAGNITUDES = (0.0, 1e-40, 1e-30, 1e-20, 1e-10, 1.0, 1e10, 1e19, 1e30)
_squash = jax.jit(numerics.squash, static_argnums=1)
_exponential_squash = jax.jit(numerics.exponential_squash, static_argnums=1)
_safe_norm = jax.jit(numerics.safe_norm, static_argnums=1)
_with_jacobians = tuple(
  jax.jit(lambda x, f=f: (f(x), jax.jacrev(f)(x), jax.jacfwd(f)(x)))
  for f in (numerics.squash, numerics.safe_norm, numerics.exponential_squash)
)


def _vectors(seed, shape=(6, 5), dtype=jnp.float32):
  """Vectors whose lengths spread over several orders of magnitude."""
  direction_key, length_key = jax.random.split(jax.random.key(seed))
  logs = jax.random.uniform(length_key, shape[:-1], dtype, -3.0, 3.0)
  return jax.random.normal(direction_key, shape, dtype) * 10 ** logs[..., None]


def _float64(x):
  return np.float64(x.astype(jnp.float32))


def _norm_oracle(x):
  return np.array([np.sqrt(sum(value**2 for value in row)) for row in x])


def _rows(oracle, x):
  return np.array([oracle(row) for row in x])


def check_squash_matches_oracle(squash, seed=0):
  s = _vectors(seed)
  np.testing.assert_allclose(
    squash(s), _rows(oracles.squash, _float64(s)), rtol=1e-5
  )


def check_exponential_squash_matches_oracle(squash, seed=0):
  for magnitude in (1e-4, 1e-2, 1.0):
    s = magnitude * _vectors(seed)
    want = _rows(oracles.exponential_squash, _float64(s))
    np.testing.assert_allclose(squash(s), want, rtol=1e-5)


def check_length_is_below_one(squash, seed=0, limit=1000):
  s = _vectors(seed)
  lengths = _norm_oracle(_float64(squash(s)))
  np.testing.assert_array_less(-1e-30, lengths)
  # Beyond some length the difference from 1 is a rounding error.
  near = _norm_oracle(_float64(s)) < limit
  np.testing.assert_array_less(lengths[near], 1)
  np.testing.assert_array_less(lengths, 1 + 1e-6)


def check_direction_is_kept(squash, seed=0):
  s = _vectors(seed)
  got, s = _float64(squash(s)), _float64(s)
  got, s = (x / _norm_oracle(x)[:, None] for x in (got, s))
  np.testing.assert_allclose(got, s, atol=1e-6)


def check_length_grows_with_length(squash):
  lengths = np.geomspace(1e-3, 1e3, 60)
  s = jnp.float32(lengths[:, None] * np.array([[0.6, 0.0, -0.8]]))
  got = _norm_oracle(_float64(squash(s)))
  np.testing.assert_array_less(got[:-1], got[1:])


def check_rotation_passes_through(squash, seed=0):
  s = _vectors(seed)
  rotation, _ = jnp.linalg.qr(jax.random.normal(jax.random.key(seed), (5, 5)))
  chex.assert_trees_all_close(squash(s @ rotation), squash(s) @ rotation,
                              atol=1e-6)  # fmt: skip


def check_axis(squash, seed=0):
  s = _vectors(seed, (3, 4, 5))
  for axis in (0, 1, 2, -1, -2):
    want = np.moveaxis(squash(jnp.moveaxis(s, axis, -1)), -1, axis)
    np.testing.assert_allclose(squash(s, axis), want, rtol=1e-5)


def check_norm_matches_oracle(safe_norm, seed=0):
  for magnitude in _MAGNITUDES[2:]:
    x = _vectors(seed) * magnitude / 1e3
    want = _norm_oracle(_float64(x))
    np.testing.assert_allclose(safe_norm(x), want, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-37, 1.0, 1e37, 8e37])
def test_unit_vectors_have_the_direction_alone(scale):
  x = jnp.array(np.float32([[3, 4], [-1, 0], [0, 0]]) * np.float32(scale))
  want = [[0.6, 0.8], [-1, 0], [0, 0]]
  np.testing.assert_allclose(numerics.unit_vectors(x), want, 1e-6)
  got = jax.jit(numerics.unit_vectors)(x)
  np.testing.assert_allclose(got, want, 1e-6)


def test_unit_vectors_at_zero_and_of_nan():
  zero = jnp.zeros(3)
  assert not np.any(jax.jacobian(numerics.unit_vectors)(zero))
  assert np.all(np.isnan(numerics.unit_vectors(jnp.array([jnp.nan, 3.0]))))
  half = jnp.full(7, 3.0, jnp.bfloat16)
  got = numerics.unit_vectors(half)
  assert got.dtype == jnp.bfloat16
  np.testing.assert_allclose(np.float32(got), 7**-0.5, rtol=2**-8)
  with pytest.raises(TypeError, match="x"):
    numerics.unit_vectors(jnp.array([1, 2]))


def check_norm_is_zero_at_zero(safe_norm):
  np.testing.assert_array_equal(safe_norm(jnp.zeros((2, 3))), [0, 0])


def check_norm_gradient_is_the_direction(safe_norm):
  unit = np.array([0.6, 0.0, -0.8])
  for magnitude in _MAGNITUDES:
    x = jnp.float32(unit * magnitude)
    # Subnormal numbers count as zero on CPUs and accelerators alike.
    want = unit * (magnitude > np.finfo(np.float32).tiny)
    np.testing.assert_allclose(jax.grad(safe_norm)(x), want, atol=1e-6)


def check_log_matches_oracle(safe_log):
  x = jnp.float32(np.geomspace(1e-37, 1e38, 100))
  np.testing.assert_allclose(safe_log(x), np.log(_float64(x)), rtol=1e-6)


def check_log_has_a_floor(safe_log):
  floor = np.log(np.finfo(np.float32).tiny)
  got = safe_log(jnp.array([0.0, 1e-45, 1e-40]))
  np.testing.assert_allclose(got, floor, rtol=1e-6)


def check_log_gradient(safe_log):
  x = jnp.array([0.0, 1e-45, 1e-30, 1e-3, 1.0, 1e30])
  got = jax.vmap(jax.grad(safe_log))(x)
  np.testing.assert_allclose(got, [0, 0, 1e30, 1e3, 1, 1e-30], rtol=1e-6)


def _naive_norm(x, axis=-1):
  return jnp.sqrt(jnp.sum(jnp.square(x), axis))


def _guarded_norm(x, axis=-1):
  return jnp.sqrt(jnp.sum(jnp.square(x), axis) + 1e-7)


def _city_block(x, axis=-1):
  return jnp.sum(jnp.abs(x), axis)


def _tanh(s, axis=-1):
  del axis
  return jnp.tanh(s)


def _unit(s, axis=-1):
  return s / jnp.linalg.norm(s, axis=axis, keepdims=True)


def _not_normalised(s, axis=-1):
  squares = jnp.sum(jnp.square(s), axis, keepdims=True)
  return s * squares / (1 + squares)


def _not_squared(s, axis=-1):
  return s / (1 + jnp.linalg.norm(s, axis=axis, keepdims=True))


def _falls_again(s, axis=-1):
  return s / (1 + jnp.sum(jnp.square(s), axis, keepdims=True))


def _reflected(s, axis=-1):
  return -numerics.squash(s, axis)


def _last_axis(s, axis=-1):
  del axis
  return numerics.squash(s)


def _not_negated(s, axis=-1):
  norm = jnp.linalg.norm(s, axis=axis, keepdims=True)
  return (jnp.exp(norm) - 1) * s / norm


def _of_the_square(s, axis=-1):
  squares = jnp.sum(jnp.square(s), axis, keepdims=True)
  return -jnp.expm1(-squares) * s / jnp.sqrt(squares)


check_exponential_length_is_below_one = functools.partial(
  check_length_is_below_one, limit=12
)
_EVERY_SQUASH_CHECKS = (
  check_direction_is_kept,
  check_rotation_passes_through,
  check_axis,
)
_SQUASH_CHECKS = (
  check_squash_matches_oracle,
  check_length_is_below_one,
  *_EVERY_SQUASH_CHECKS,
)
_EXPONENTIAL_SQUASH_CHECKS = (
  check_exponential_squash_matches_oracle,
  check_exponential_length_is_below_one,
  *_EVERY_SQUASH_CHECKS,
)


class NumericsTest(chex.TestCase):
  @parameterized.product(check=_SQUASH_CHECKS, seed=_SEEDS)
  def test_squash(self, check, seed):
    check(_squash, seed=seed)

  @parameterized.product(check=_EXPONENTIAL_SQUASH_CHECKS, seed=_SEEDS)
  def test_exponential_squash(self, check, seed):
    check(_exponential_squash, seed=seed)

  def test_squash_grows(self):
    check_length_grows_with_length(_squash)

  def test_exponential_squash_grows(self):
    lengths = jnp.float32(np.geomspace(1e-6, 12, 60))
    s = lengths[:, None] * jnp.float32([0.6, 0.0, -0.8])
    got = _norm_oracle(_float64(_exponential_squash(s)))
    np.testing.assert_array_less(got[:-1], got[1:])

  @parameterized.parameters(
    check_norm_matches_oracle,
    check_norm_is_zero_at_zero,
    check_norm_gradient_is_the_direction,
  )
  def test_safe_norm(self, check):
    check(_safe_norm)

  @parameterized.parameters(
    check_log_matches_oracle, check_log_has_a_floor, check_log_gradient
  )
  @widths.limits_of_float32
  def test_safe_log(self, check):
    check(numerics.safe_log)

  @parameterized.parameters(
    (check_squash_matches_oracle, _unit),
    (check_squash_matches_oracle, _not_squared),
    (check_squash_matches_oracle, _reflected),
    (check_length_is_below_one, _unit),
    (check_length_is_below_one, _not_normalised),
    (check_direction_is_kept, _tanh),
    (check_direction_is_kept, _reflected),
    (check_length_grows_with_length, _falls_again),
    (check_rotation_passes_through, _tanh),
    (check_axis, _last_axis),
    (check_exponential_squash_matches_oracle, _squash),
    (check_exponential_squash_matches_oracle, _not_negated),
    (check_exponential_squash_matches_oracle, _of_the_square),
    (check_exponential_length_is_below_one, _unit),
    (check_exponential_length_is_below_one, _not_negated),
    (check_norm_matches_oracle, _naive_norm),
    (check_norm_matches_oracle, _guarded_norm),
    (check_norm_matches_oracle, _city_block),
    (check_norm_is_zero_at_zero, _guarded_norm),
    (check_norm_gradient_is_the_direction, _naive_norm),
    (check_norm_gradient_is_the_direction, _guarded_norm),
    (check_log_matches_oracle, lambda x: jnp.log(x + 1e-7)),
    (check_log_has_a_floor, jnp.log),
    (check_log_gradient, jnp.log),
  )
  @pytest.mark.long_after_first
  def test_broken_copy_fails(self, check, broken):
    with self.assertRaises(AssertionError):
      check(broken)

  @parameterized.parameters(*_MAGNITUDES)
  def test_every_magnitude_is_finite(self, magnitude):
    for direction in ([0.6, 0.0, -0.8], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0]):
      x = jnp.float32(np.array(direction) * magnitude)
      for function in _with_jacobians:
        chex.assert_tree_all_finite(function(x))

  @parameterized.parameters(1e-30, 1e-10, 1e10, 1e30, 1e37)
  def test_squash_of_extreme_lengths(self, length):
    got = numerics.squash(jnp.float32([0.6 * length, 0.0, -0.8 * length]))
    squashed = 1 if length > 1 else length**2
    want = squashed * np.array([0.6, 0.0, -0.8])
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-37)

  @parameterized.parameters(1e37, 1e38, 2e38, 3e38)
  def test_norm_up_to_the_largest_numbers(self, length):
    got = _safe_norm(jnp.float32([0.6 * length, 0.0, -0.8 * length]))
    np.testing.assert_allclose(got, length, rtol=1e-6)

  @parameterized.parameters(1e-30, 1e-10, 1e10, 1e30, 1e37)
  def test_exponential_squash_of_extreme_lengths(self, length):
    unit = np.array([0.6, 0.0, -0.8])
    got = _exponential_squash(jnp.float32(length * unit))
    want = min(length, 1) * unit
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-37)

  @pytest.mark.long
  def test_exponential_squash_where_its_form_changes(self):
    """Values and derivatives of series and quotient, in both precisions."""
    for dtype in (jnp.float32, jnp.float64):
      with jax.enable_x64(dtype == jnp.float64):
        eps = float(jnp.finfo(dtype).eps)
        for length in eps ** (1 / 3) * np.array([0.1, 0.999, 1.001, 10]):
          s = jnp.array([length, 0.0], dtype)
          jacobian = jax.jacrev(numerics.exponential_squash)(s)
          along, across = np.exp(-length), -np.expm1(-length) / length
          np.testing.assert_allclose(
            jacobian, np.diag([along, across]), atol=10 * eps ** (2 / 3)
          )
          got = numerics.exponential_squash(s)[0]
          np.testing.assert_allclose(got, -np.expm1(-length), rtol=2 * eps)

  def test_gradient_of_exponential_squash_is_the_identity_at_zero(self):
    for jacobian in _with_jacobians[2](jnp.zeros(3))[1:]:
      np.testing.assert_array_equal(jacobian, np.eye(3))

  def test_gradient_of_squash_vanishes_at_zero(self):
    for jacobian in _with_jacobians[0](jnp.zeros(3))[1:]:
      np.testing.assert_array_equal(jacobian, np.zeros((3, 3)))

  def test_gradient_of_squash_at_length_one(self):
    """Where 1 / (|s| + 1 / |s|) turns: both derivatives are a half."""
    for direction in np.eye(3, dtype=np.float32):
      for jacobian in _with_jacobians[0](jnp.array(direction))[1:]:
        np.testing.assert_allclose(jacobian, np.eye(3) / 2, atol=1e-6)

  @parameterized.parameters(*_SEEDS)
  def test_gradients(self, seed):
    with jax.enable_x64(True):
      x = _vectors(seed, (3, 4), jnp.float64)
      x = x / jnp.sqrt(jnp.linalg.norm(x, axis=-1, keepdims=True))
      check_grads(jax.jit(numerics.squash), (x,), order=2)
      check_grads(jax.jit(numerics.exponential_squash), (x,), order=2)
      check_grads(jax.jit(numerics.safe_norm), (x,), order=2)
      check_grads(jax.jit(numerics.safe_log), (jnp.abs(x) + 0.1,), order=2)

  def test_norm_keeps_axes_on_request(self):
    x = _vectors(0, (3, 4, 5))
    for axis in (0, 1, -1):
      want = jnp.expand_dims(numerics.safe_norm(x, axis), axis)
      got = numerics.safe_norm(x, axis, keepdims=True)
      chex.assert_trees_all_equal(got, want)

  @chex.variants(with_jit=True, without_jit=True)
  @pytest.mark.long_after_first
  def test_batch_is_a_loop(self):
    s = _vectors(0)
    for function in (
      numerics.squash,
      numerics.exponential_squash,
      numerics.safe_norm,
      numerics.safe_log,
    ):
      function = self.variant(function)
      want = jnp.stack([function(jnp.abs(row)) for row in s])
      got = jax.vmap(function)(jnp.abs(s))
      chex.assert_trees_all_close(got, want, rtol=1e-6)
      chex.assert_trees_all_close(function(jnp.abs(s)), want, rtol=1e-6)

  @parameterized.product(dtype=[jnp.float32, jnp.bfloat16], seed=_SEEDS)
  def test_low_precision_rounds_only_inputs_and_outputs(self, dtype, seed):
    s = _vectors(seed, (6, 300), dtype)
    tolerance = dict(rtol=max(1e-6, float(jnp.finfo(dtype).eps) / 2 * 1.01))
    for function, oracle in [
      (numerics.squash, functools.partial(_rows, oracles.squash)),
      (
        numerics.exponential_squash,
        functools.partial(_rows, oracles.exponential_squash),
      ),
      (numerics.safe_norm, _norm_oracle),
    ]:
      got = function(s)
      chex.assert_type(got, dtype)
      want = oracle(_float64(s))
      np.testing.assert_allclose(_float64(got), want, **tolerance)
    got = numerics.safe_log(jnp.abs(s))
    chex.assert_type(got, dtype)
    # The logarithm itself is taken in `dtype`.
    want = np.log(np.abs(_float64(s)))
    np.testing.assert_allclose(_float64(got), want, rtol=0.01, atol=0.01)

  def test_gradients_in_a_loop_are_differentiated_again(self):
    """By forward mode, of which a rule for `exp_below` alone lost a part."""
    x = jnp.float32(np.random.default_rng(0).normal(size=(3, 4)))
    direction = jnp.cos(jnp.arange(12.0)).reshape(3, 4)

    def change(over_rows):
      def energy(x):
        logs = over_rows(numerics.logsumexp, x)
        return jnp.sum(over_rows(numerics.softmax, x) ** 2) + jnp.sum(logs**2)

      return jax.jvp(jax.grad(energy), (x,), (direction,))[1]

    want = change(lambda function, x: jax.vmap(function)(x))
    np.testing.assert_allclose(change(jax.lax.map), want, atol=1e-5)

  def test_einsum_is_a_sum_of_products_that_are_not_rounded(self):
    x, y = jnp.float32(np.random.default_rng(0).normal(size=(2, 3, 4, 5)))
    want = np.zeros((3, 4))
    for i, j, d in np.ndindex(*x.shape):
      want[i, j] += np.float64(x[i, j, d]) * np.float64(y[i, j, d])
    einsum = functools.partial(numerics.einsum, "ijd,ijd->ij")
    np.testing.assert_allclose(einsum(x, y), want, rtol=1e-5)
    slopes = jax.grad(lambda *x: jnp.sum(einsum(*x)), (0, 1))
    cases.assert_products_are_not_rounded(slopes, x, y)

  @widths.limits_of_float32
  def test_accumulation_dtype(self):
    half, single = jnp.zeros(2, jnp.bfloat16), jnp.zeros(2)
    self.assertEqual(numerics.accumulation_dtype(half), jnp.float32)
    self.assertEqual(numerics.accumulation_dtype(half, single), jnp.float32)
    with jax.enable_x64(True):
      double = jnp.zeros(2, jnp.float64)
      self.assertEqual(numerics.accumulation_dtype(half, double), jnp.float64)

  @widths.limits_of_float32
  def test_widen(self):
    half, single = jnp.ones(2, jnp.bfloat16), jnp.ones(2)
    chex.assert_trees_all_equal_dtypes(numerics.widen(half), single)
    chex.assert_trees_all_equal(numerics.widen(half), single)
    chex.assert_trees_all_equal(numerics.widen(2), jnp.float32(2))
    with jax.enable_x64(True):
      double = jnp.ones(2, jnp.float64)
      chex.assert_trees_all_equal_dtypes(numerics.widen(half, double), double)
      chex.assert_trees_all_equal_dtypes(numerics.widen(double), double)


if __name__ == "__main__":
  absltest.main()
