"""Softmax and its kin, also where XLA computes logits twice."""

import ast
import pathlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from jax.test_util import check_grads

from kernels import numerics
from kernels.routing import attention, windows

_WINDOWS = windows.over((3, 3), (2, 2), stride=1, padding="VALID")


def _self_attention(x):
  """Scores are votes times a constant times the sum of votes."""
  return attention.self_attention_routing(1e5 * x).coefficients


def _self_routing(x):
  """Logits are a product on their way in."""
  logits = 1e16 * 0.3 * jnp.square(x[..., 0])
  return attention.self_routing(x, logits, jnp.ones(len(x))).coefficients


def _compete(x):
  logits = 1e16 * 0.3 * jnp.square(x[:4, :4])
  shares = windows.compete(logits, _WINDOWS)
  return _WINDOWS.scatter(jnp.sum(shares, axis=-1), jnp.add, 0.0)[..., None]


_TWICE = (
  (_self_attention, (7, 3, 1)),
  (_self_attention, (13, 5, 7)),
  (_self_routing, (7, 3, 1)),
  (_self_routing, (13, 5, 7)),
  (_compete, (4, 4, 5)),
)


_ROOT = pathlib.Path(__file__).parents[2]
_FAMILY = {"softmax", "log_softmax", "logsumexp"}
# Reads numbers that numpy has computed once.
_OTHERS = {("capjax/evaluation/factor_analysers.py", "special.softmax")}


def of_other_libraries(source):
  """Uses of the family that are not those of `numerics`."""
  found = []
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Attribute) and node.attr in _FAMILY:
      name = ast.unparse(node)
      found += [name] if name != f"numerics.{node.attr}" else []
    elif isinstance(node, ast.ImportFrom) and node.module != "kernels.numerics":
      found += [x.name for x in node.names if x.name in _FAMILY]
  return found


class SoftmaxTest(parameterized.TestCase):
  @parameterized.parameters(*_TWICE)
  @pytest.mark.long_after_first
  def test_logits_that_are_computed_twice(self, share, shape):
    """A multiplication that is fused with the subtraction is not rounded."""

    def found(x):
      shares, pull = jax.vjp(share, x)
      return shares, pull(jnp.cos(shares))

    compiled = jax.jit(found)
    for seed in range(3):
      x = jnp.float32(np.random.default_rng(seed).normal(size=shape))
      got = compiled(x)
      chex.assert_tree_all_finite(got)
      np.testing.assert_allclose(np.sum(got[0], axis=-1), 1, atol=1e-5)
      np.testing.assert_allclose(got[0], share(x), atol=1e-5)

  @parameterized.parameters(1.0, 30.0, 1e4, 1e30)
  def test_values(self, size):
    x = jnp.float32(size * np.random.default_rng(0).normal(size=(3, 4, 5)))
    for axis in (0, 1, -1):
      got = jax.jit(numerics.softmax, static_argnums=1)(x, axis)
      want = jax.nn.softmax(x, axis)
      np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
      got = jax.jit(numerics.logsumexp, static_argnums=1)(x, axis)
      want = jax.nn.logsumexp(x, axis)
      np.testing.assert_allclose(got, want, rtol=1e-6)
    got = numerics.logsumexp(x[0], 1, keepdims=True)
    self.assertEqual(got.shape, (4, 1))
    np.testing.assert_allclose(
      numerics.logsumexp(x), jax.nn.logsumexp(x), rtol=1e-6
    )

  @parameterized.parameters(
    ("bfloat16", [200.0, 199.0, 150.0]),
    ("bfloat16", [-1024.0, -1020.0, -1016.0]),
    ("bfloat16", [20480.0, 20352.0, 0.0]),
    ("float16", [2000.0, 1999.0, 1996.0]),
    ("float32", [1.6e7, 1.6e7 - 1, 1.6e7 - 3]),
  )
  def test_large_logits_that_differ_by_little(self, dtype, logits):
    """Their differences are exact, so that shares are too."""
    x = jnp.array(logits, dtype)
    np.testing.assert_array_equal(np.float64(x), logits)
    wide = np.exp(np.array(logits) - max(logits))
    half = float(jnp.finfo(dtype).eps) / 2
    for call in (numerics.softmax, jax.jit(numerics.softmax)):
      got = np.float64(call(x))
      np.testing.assert_allclose(
        got, wide / wide.sum(), rtol=half + 1e-5, atol=1e-30
      )
    # Also where logits have just been computed.
    ones = jnp.ones_like(x)
    got = jax.jit(lambda x, y: numerics.softmax(x / 3 * y * 3))(x, ones)
    np.testing.assert_allclose(np.sum(np.float64(got)), 1, rtol=2 * half)
    total = max(logits) + np.log(wide.sum())
    np.testing.assert_allclose(
      np.float64(numerics.logsumexp(x)), total, rtol=half
    )
    got = np.float64(numerics.log_softmax(x))
    want = np.array(logits) - total
    np.testing.assert_allclose(got, want, rtol=half + 1e-5)

  def test_sums_exceed_float16(self):
    x = jnp.zeros(70_000, jnp.float16)
    self.assertAlmostEqual(
      float(numerics.softmax(x).astype(jnp.float32).sum()), 1, delta=0.01
    )
    for value in (numerics.logsumexp(x), -numerics.log_softmax(x)[0]):
      self.assertEqual(value.dtype, jnp.float16)
      self.assertAlmostEqual(float(value), np.log(70_000), delta=0.01)

  def test_nothing_is_in_a_sum(self):
    x = jnp.array([[-jnp.inf, -jnp.inf], [-jnp.inf, 2.0]])
    got, slopes = jax.value_and_grad(lambda x: numerics.logsumexp(x, 1)[1])(x)
    np.testing.assert_array_equal(numerics.logsumexp(x, 1), [-np.inf, 2])
    np.testing.assert_array_equal((got, *slopes[1]), (2, 0, 1))

  @parameterized.parameters([[1.0, 1.0, -3.0]], [[0.0, -200.0, -1e4]])
  def test_derivatives_of_equal_and_saturated_logits(self, *x):
    """Where a bound at 0 is met, the derivative is not halved."""
    x = jnp.array(x[0])
    for ours, theirs in (
      (numerics.softmax, jax.nn.softmax),
      (numerics.logsumexp, jax.nn.logsumexp),
    ):
      for mode in (jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(mode(ours)(x), mode(theirs)(x), atol=1e-7)

  def test_gradients(self):
    with jax.enable_x64(True):
      x = jnp.array(np.random.default_rng(0).normal(size=(3, 4)))
      check_grads(jax.jit(numerics.softmax), (x,), order=2)
      check_grads(jax.jit(lambda x: numerics.logsumexp(x, 1)), (x,), order=2)
      scaled = jax.jit(lambda x: numerics.softmax(x, scale=3.0))
      np.testing.assert_allclose(scaled(x), jax.nn.softmax(3 * x), rtol=1e-12)
      check_grads(scaled, (x,), order=2)

  @parameterized.parameters(1e20, 1e30, 1e35)
  @pytest.mark.long
  def test_attention_to_votes_whose_squares_overflow(self, size):
    def found(votes, readout):
      def energy(votes):
        one = attention.self_attention_routing(votes)
        two = attention.inverted_attention_routing(votes, readout)
        return sum(jnp.sum(jnp.cos(x)) for x in (*one, *two)), (one, two)

      return jax.grad(energy, has_aux=True)(votes)

    votes = size * np.random.default_rng(0).normal(size=(7, 3, 4))
    votes, readout = jnp.float32(votes), jnp.ones(4)
    gradient, got = jax.jit(found)(votes, readout)
    chex.assert_tree_all_finite(gradient)
    with jax.enable_x64(True):
      _, want = found(jnp.float64(votes), jnp.float64(readout))
    chex.assert_trees_all_close(got, want, atol=1e-5)

  def test_kernels_and_models_use_one_family(self):
    paths = [
      path
      for package in ("kernels", "capjax")
      for path in sorted((_ROOT / package).rglob("*.py"))
    ]
    self.assertNotEmpty(paths)
    found = {
      (path.relative_to(_ROOT).as_posix(), use)
      for path in paths
      for use in of_other_libraries(path.read_text("utf-8"))
    }
    self.assertEqual(found, _OTHERS)

  def test_other_families_are_found(self):
    for source in (
      "y = jax.nn.softmax(x)",
      "y = jnp.exp(x - jax.scipy.special.logsumexp(x))",
      "f = nnx.log_softmax",
      "from jax.nn import softmax as shares",
    ):
      self.assertNotEmpty(of_other_libraries(source), source)
    for source in (
      "y = numerics.softmax(x)",
      "from kernels.numerics import softmax",
      "def softmax(x): return x",
    ):
      self.assertEmpty(of_other_libraries(source), source)


if __name__ == "__main__":
  absltest.main()
