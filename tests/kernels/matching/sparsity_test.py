"""Tests of the sparsity of objects across images and classes."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from kernels.matching import sparsity


def _oracles(u, num_classes):
  """By loops: prior within, prior between, posterior within and between."""
  batch, count = u.shape
  prior_within = (
    sum((sum(u[b]) - count / num_classes) ** 2 for b in range(batch)) / batch
  )
  prior_between = (
    sum((sum(u[:, k]) - batch / num_classes) ** 2 for k in range(count)) / count
  )

  def entropy(masses):
    shares = [m / sum(masses) for m in masses]
    return -sum(p * np.log(p) for p in shares if p > 0)

  within = sum(entropy(u[b]) for b in range(batch)) / batch
  between = entropy([sum(u[:, k]) for k in range(count)])
  return prior_within, prior_between, within, between


class SparsityTest(parameterized.TestCase):
  @parameterized.parameters(0, 1)
  def test_loops_agree(self, seed):
    u = np.random.default_rng(seed).uniform(size=(6, 5))
    got = (
      sparsity.prior_within(jnp.array(u), 3),
      sparsity.prior_between(jnp.array(u), 3),
      sparsity.posterior_within(jnp.array(u)),
      sparsity.posterior_between(jnp.array(u)),
    )
    np.testing.assert_allclose(got, _oracles(u, 3), rtol=1e-4)

  def test_bfloat16_is_summed_in_float32(self):
    u = jnp.bfloat16(np.random.default_rng(0).uniform(size=(60, 40)))
    got = sparsity.prior_within(u, 3), sparsity.prior_between(u, 3)
    np.testing.assert_allclose(got, _oracles(np.float64(u), 3)[:2], rtol=1e-5)

  @parameterized.parameters(0, -1)
  def test_no_classes_are_refused(self, num_classes):
    for prior in (sparsity.prior_within, sparsity.prior_between):
      with self.assertRaisesRegex(ValueError, f"is {num_classes}; give"):
        prior(jnp.ones((2, 2)), num_classes)

  def test_within_and_between_are_not_the_same(self):
    # Every image uses all objects; every object is in one image of three.
    each = jnp.ones((3, 3)) / 3
    one = jnp.eye(3)
    self.assertGreater(
      sparsity.posterior_within(each), sparsity.posterior_within(one) + 1
    )
    np.testing.assert_allclose(
      sparsity.posterior_between(each), sparsity.posterior_between(one), 1e-5
    )
    crowded = jnp.ones((4, 6)).at[:, 3:].set(0)
    self.assertGreater(
      sparsity.prior_between(crowded, 2), sparsity.prior_within(crowded, 2)
    )

  def test_even_use_is_best(self):
    # Six objects, three classes: two objects an image, two images an object.
    even = jnp.repeat(jnp.eye(3), 2, axis=1)
    even = jnp.concatenate([even, even])
    self.assertEqual(float(sparsity.prior_within(even, 3)), 0.0)
    self.assertEqual(float(sparsity.prior_between(even, 3)), 0.0)
    np.testing.assert_allclose(
      sparsity.posterior_between(even), np.log(6), rtol=1e-6
    )

  @parameterized.parameters(0.0, 1.0)
  def test_gradients_are_finite_at_the_corners(self, value):
    for measure in (sparsity.posterior_within, sparsity.posterior_between):
      value_of, gradient = jax.value_and_grad(measure)(jnp.full((3, 4), value))
      self.assertTrue(np.isfinite(value_of))
      self.assertTrue(np.isfinite(gradient).all())


if __name__ == "__main__":
  absltest.main()
