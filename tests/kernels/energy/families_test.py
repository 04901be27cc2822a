"""Exponential families against numerical sums and integrals."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from kernels.energy import families


class FamiliesTest(parameterized.TestCase):
  _PARAMETERS = {
    "BERNOULLI": [[0.3, -1.2, 2.0]],
    "GAUSSIAN": [[0.4, -1.0, 2.0], [-0.5, -0.2, -2.0]],
  }

  @parameterized.parameters("BERNOULLI", "GAUSSIAN")
  def test_copies_are_the_family_itself(self, name):
    family = getattr(families, name)
    self.assertIs(copy.deepcopy(family), family)
    self.assertIs(pickle.loads(pickle.dumps(family)), family)
    other = family._replace(log_base=jnp.zeros_like, statistics=jnp.zeros_like)
    self.assertIs(copy.deepcopy(other).statistics, other.statistics)

  @parameterized.parameters("BERNOULLI", "GAUSSIAN")
  def test_densities_have_unit_mass_and_these_moments(self, name):
    family = getattr(families, name)
    parameters = jnp.array(self._PARAMETERS[name], jnp.float32)
    if name == "GAUSSIAN":
      values, step = np.linspace(-30, 30, 20001), 60 / 20000
    else:
      values, step = np.arange(2.0), 1
    grid = jnp.array(values, jnp.float32)[:, None] + jnp.zeros(3)
    statistics = np.asarray(family.statistics(grid), np.float64)
    log_density = np.einsum("rn,rvn->vn", np.float64(parameters), statistics)
    log_density += np.asarray(family.log_base(grid), np.float64)
    density = np.exp(log_density)
    mass = density.sum(0) * step
    np.testing.assert_allclose(
      family.log_partition(parameters), np.log(mass), rtol=1e-4, atol=1e-5
    )
    moments = (density * statistics).sum(1) * step / mass
    np.testing.assert_allclose(
      family.moments(parameters), moments, rtol=1e-4, atol=1e-5
    )

  @parameterized.parameters("BERNOULLI", "GAUSSIAN")
  def test_moments_are_the_gradient_of_the_log_partition(self, name):
    family = getattr(families, name)
    parameters = jnp.array(self._PARAMETERS[name], jnp.float32)
    gradient = jax.grad(lambda p: jnp.sum(family.log_partition(p)))(parameters)
    np.testing.assert_allclose(
      gradient, family.moments(parameters), rtol=1e-5, atol=1e-6
    )

  @parameterized.parameters("BERNOULLI", "GAUSSIAN")
  def test_samples_have_these_moments(self, name):
    family = getattr(families, name)
    parameters = jnp.array(self._PARAMETERS[name], jnp.float32)
    count = 20_000
    many = jnp.broadcast_to(
      parameters[:, None], (len(parameters), count, parameters.shape[1])
    )
    statistics = family.statistics(family.sample(jax.random.key(0), many))
    error = np.std(statistics, axis=1) / np.sqrt(count)
    off = np.abs(np.mean(statistics, axis=1) - family.moments(parameters))
    np.testing.assert_array_less(off, 5 * error)

  @parameterized.parameters("threefry2x32", "rbg", "unsafe_rbg")
  def test_bernoulli_units_are_independent(self, kind):
    count = 40_000  # of which the second half shares the words of the first
    key = jax.random.key(1, impl=kind)
    values = families.BERNOULLI.sample(key, jnp.zeros((1, count)))
    signs = 2 * np.asarray(values, np.float64) - 1
    for lag in (1, 2, 3, 4, count // 2):
      off = np.mean(signs[lag:] * signs[:-lag])
      self.assertLess(abs(off), 5 / np.sqrt(count - lag), f"lag {lag}")

  def test_rare_units_are_as_rare_as_they_should_be(self):
    # Numbers of 16 bits would make it 0 or 2^-16.
    count, chance = 2**23, 2.0**-18
    logits = jnp.full((1, count), np.log(chance / (1 - chance)))
    drawn = jnp.sum(families.BERNOULLI.sample(jax.random.key(2), logits))
    self.assertBetween(int(drawn), 32 - 5 * 6, 32 + 5 * 6)

  def test_single_and_no_units_can_be_drawn(self):
    for shape in ((), (0,), (3, 1)):
      drawn = families.BERNOULLI.sample(
        jax.random.key(0), jnp.full((1, *shape), 100.0)
      )
      np.testing.assert_array_equal(drawn, np.ones(shape))


if __name__ == "__main__":
  absltest.main()
