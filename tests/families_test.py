"""Exponential families against numerical sums and integrals."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from kernels import families


class FamiliesTest(parameterized.TestCase):
  _PARAMETERS = {
    "BERNOULLI": [[0.3, -1.2, 2.0]],
    "GAUSSIAN": [[0.4, -1.0, 2.0], [-0.5, -0.2, -2.0]],
  }

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


if __name__ == "__main__":
  absltest.main()
