"""Energies of capsules in special cases: Gaussian units, layers, extremes."""

import itertools

import chex
import energy_cases
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.test_util import check_grads

from kernels import energy
from kernels.energy import families

_M, _K, _J = energy_cases.M, energy_cases.K, energy_cases.J


class GaussianTest(parameterized.TestCase):
  def _parameters(self):
    return energy.Parameters(
      visible=jnp.array([[0.3], [-0.8]]),
      bias=energy.Bias(jnp.array([[[0.2]], [[-0.6]]]), jnp.array([0.4])),
      weights=jnp.array([[[0.7]]]),
      interaction=jnp.array([[-0.5]]),
    )

  _BOTH = (families.GAUSSIAN, families.GAUSSIAN)

  def _density(self, x):
    """exp(-E) on a grid of h, for z = 0 and 1; eq. 4 by hand."""
    h = np.linspace(-12, 12, 4001)
    density = [
      np.exp(
        0.3 * x - 0.8 * x**2 + 0.2 * h - 0.6 * h**2
        + z * (0.4 + 0.7 * x * h - 0.5 * x)
      )
      for z in (0, 1)
    ]  # fmt: skip
    return h, np.stack(density), h[1] - h[0]

  @parameterized.parameters(-1.5, 0.0, 0.7)
  def test_free_energy_and_posterior_by_integration(self, value):
    parameters = self._parameters()
    h, density, step = self._density(value)
    mass = density.sum() * step
    x = jnp.array([value])
    actual = energy.free_energy(x, parameters, families=self._BOTH)
    np.testing.assert_allclose(actual, -np.log(mass), rtol=1e-5, atol=1e-5)
    drive = energy.drive_from_below(x, parameters)
    posterior = energy.posterior(
      parameters.bias, drive, hidden=families.GAUSSIAN
    )
    statistics = np.stack([h, h**2])
    expected = (density.sum(0) * statistics).sum(1) * step / mass
    np.testing.assert_allclose(
      posterior.statistics[:, 0, 0], expected, rtol=1e-4
    )
    np.testing.assert_allclose(
      posterior.switches[0], density[1].sum() * step / mass, rtol=1e-5
    )
    np.testing.assert_allclose(
      posterior.active[0, 0], (density[1] * h).sum() * step / mass, rtol=1e-4
    )

  def test_energy(self):
    state = energy.state(
      jnp.array([[0.9]]), jnp.array([1.0]), hidden=families.GAUSSIAN
    )
    actual = energy.energy(
      jnp.array([-0.4]), state, self._parameters(), families=self._BOTH
    )
    x, h = -0.4, 0.9
    expected = -(
      0.3 * x - 0.8 * x**2 + 0.2 * h - 0.6 * h**2 + 0.4 + 0.7 * x * h - 0.5 * x
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


class LayersTest(parameterized.TestCase):
  """Capsules beside capsules, as in the Helmholtz machine."""

  def test_energy_of_a_layer(self):
    """Eq. 16, and the same meeting seen from above."""
    random = np.random.default_rng(0)
    above = random.integers(2, size=(3, 2)), random.integers(2, size=3)
    below = random.integers(2, size=(_K, _J)), random.integers(2, size=_K)
    weights = random.normal(size=(_K, _J, 3, 2))
    omega = random.normal(size=(_K, 3))
    met = 0.0
    for k, u in itertools.product(range(_K), range(3)):
      met += below[1][k] * above[1][u] * (
        below[0][k] @ weights[k, :, u] @ above[0][u]
      )  # fmt: skip
      met += below[1][k] * omega[k, u] * above[1][u]
    bias = energy_cases.parameters(0).bias
    alone = np.sum(bias.hidden[0] * below[0]) + bias.switches @ below[1]
    lower, upper = (
      energy.state(jnp.float32(h), jnp.float32(z)) for h, z in (below, above)
    )
    drive = energy.drive_between(
      upper, jnp.float32(weights), jnp.float32(omega)
    )
    actual = energy.capsule_energy(lower, bias, drive)
    np.testing.assert_allclose(actual, -alone - met, rtol=1e-5)
    upwards = energy.drive_between(
      lower, jnp.float32(weights.transpose(2, 3, 0, 1)), jnp.float32(omega.T)
    )
    zero = energy.Bias(jnp.zeros((1, 3, 2)), jnp.zeros(3))
    np.testing.assert_allclose(
      energy.capsule_energy(upper, zero, upwards), -met, rtol=1e-5
    )

  def test_log_partition_normalises_a_layer(self):
    """Eq. 15 sums to 1 over all states of the layer."""
    parameters = energy_cases.parameters(4)
    drive = energy.Drive(
      jnp.array([[0.3, -2.0], [1.0, 0.2]]), jnp.array([0.5, -1.0])
    )
    total = 0.0
    for bits in itertools.product((0.0, 1.0), repeat=_K * _J + _K):
      state = energy.state(
        jnp.array(bits[:-_K]).reshape(_K, _J), jnp.array(bits[-_K:])
      )
      total += np.exp(-energy.capsule_energy(state, parameters.bias, drive))
    np.testing.assert_allclose(
      energy.log_partition(parameters.bias, drive), np.log(total), rtol=1e-5
    )

  def test_without_neighbours_units_are_independent(self):
    bias = energy_cases.parameters(5).bias
    actual = energy.posterior(bias, energy.no_drive(bias))
    np.testing.assert_allclose(
      actual.statistics, jax.nn.sigmoid(bias.hidden), rtol=1e-6
    )
    np.testing.assert_allclose(
      actual.switches, jax.nn.sigmoid(bias.switches), rtol=1e-6
    )


class SpecialCasesTest(parameterized.TestCase):
  def test_no_interaction_is_one_of_zeros(self):
    without = energy_cases.parameters(interaction=False)
    zeros = without._replace(interaction=jnp.zeros((_M, _K)))
    x = jnp.array([1.0, 0.0, 0.4])
    for function in (
      energy.drive_from_below,
      energy.free_energy,
      lambda x, p: energy.visible_parameters(
        energy.posterior(p.bias, energy.drive_from_below(x, p)), p
      ),
    ):
      chex.assert_trees_all_close(function(x, without), function(x, zeros))
    above = energy.state(jnp.ones((3, 2)), jnp.ones(3))
    weights = jnp.ones((_K, _J, 3, 2))
    chex.assert_trees_all_close(
      energy.drive_between(above, weights, None),
      energy.drive_between(above, weights, jnp.zeros((_K, 3))),
    )

  def test_without_switches_it_is_an_rbm(self):
    parameters = energy_cases.parameters(interaction=False, switches=False)
    x = jnp.array([1.0, 0.0, 0.4])
    drive = energy.drive_from_below(x, parameters)
    total = parameters.bias.hidden[0] + drive.hidden
    np.testing.assert_allclose(
      energy.free_energy(x, parameters),
      -parameters.visible[0] @ x - jnp.sum(jax.nn.softplus(total)),
      rtol=1e-6,
    )
    posterior = energy.posterior(parameters.bias, drive)
    np.testing.assert_allclose(
      posterior.active, jax.nn.sigmoid(total), rtol=1e-6
    )
    np.testing.assert_array_equal(posterior.switches, 1)
    key = jax.random.key(0)
    drawn = energy.sample(key, parameters.bias, drive)
    swept = energy.gibbs(key, posterior, parameters.bias, drive)
    chex.assert_trees_all_equal(drawn, swept)
    np.testing.assert_array_equal(drawn.active, drawn.statistics[0])
    steps = energy.mean_field(
      jnp.zeros(_K), parameters.bias, drive, num_iterations=3
    )
    chex.assert_trees_all_equal(steps, posterior)
    np.testing.assert_allclose(
      energy.energy(x, drawn, parameters),
      -parameters.visible[0] @ x - jnp.sum(total * drawn.active),
      rtol=1e-5,
    )

  @parameterized.product(
    dtype=(jnp.float32, jnp.bfloat16), size=(0.0, 1e4, -1e4)
  )
  def test_finite_when_saturated(self, dtype, size):
    parameters = jax.tree.map(
      lambda x: jnp.full_like(x, size), energy_cases.parameters(dtype=dtype)
    )
    x = jnp.ones(_M, dtype)
    value, gradient = jax.value_and_grad(
      lambda p: energy.free_energy(x, p)
    )(parameters)  # fmt: skip
    drive = energy.drive_from_below(x, parameters)
    outputs = (
      energy.posterior(parameters.bias, drive),
      energy.mean_field(
        jnp.ones(_K, dtype), parameters.bias, drive, num_iterations=3
      ),
      energy.sample(jax.random.key(0), parameters.bias, drive),
    )
    chex.assert_tree_all_finite((value, gradient, outputs))
    chex.assert_type(jax.tree.leaves((value, outputs)), jnp.float32)
    chex.assert_type(jax.tree.leaves(gradient), dtype)

  def test_bfloat16_is_summed_in_float32(self):
    random = np.random.default_rng(0)
    parameters = energy.Parameters(
      jnp.bfloat16(random.normal(size=(1, 500))),
      energy.Bias(
        jnp.bfloat16(random.normal(size=(1, 10, 8))),
        jnp.bfloat16(random.normal(size=10)),
      ),
      jnp.bfloat16(0.1 * random.normal(size=(500, 10, 8))),
      jnp.bfloat16(0.1 * random.normal(size=(500, 10))),
    )
    x = jnp.bfloat16(random.integers(2, size=500))
    exact = jax.tree.map(jnp.float32, (x, parameters))
    np.testing.assert_allclose(
      energy.free_energy(x, parameters),
      energy.free_energy(*exact),
      rtol=1e-5,
    )
    drive = energy.drive_from_below(x, parameters)
    np.testing.assert_allclose(
      energy.switch_log_odds(parameters.bias, drive),
      energy.switch_log_odds(exact[1].bias, energy.drive_from_below(*exact)),
      rtol=1e-4,
      atol=1e-4,
    )

  def test_squares_of_bfloat16_are_not_rounded(self):
    """Statistics of visible and of hidden units."""
    random = np.random.default_rng(0)
    x, h = (jnp.bfloat16(random.normal(size=size)) for size in (50, (3, 4)))
    switches = jnp.ones(3, jnp.bfloat16)
    parameters = energy.Parameters(
      jnp.stack([jnp.zeros(50), jnp.full(50, -0.5)]),
      energy.Bias(jnp.zeros((1, 3, 4)), jnp.zeros(3)),
      jnp.zeros((50, 3, 4)),
      None,
    )
    got = energy.free_energy(
      x, parameters, families=(families.GAUSSIAN, families.BERNOULLI)
    )
    want = np.sum(np.float64(x) ** 2) / 2 - 15 * np.log(2)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    state = energy.state(h, switches, hidden=families.GAUSSIAN)
    np.testing.assert_allclose(state.statistics[1], np.float64(h) ** 2, 1e-6)
    chex.assert_type(jax.tree.leaves(state), jnp.float32)

  @parameterized.parameters(0.0, 1e3, -1e3)
  def test_gaussian_units_stay_finite_far_out(self, size):
    parameters = energy.Parameters(
      jnp.array([[size], [-0.5]]),
      energy.Bias(jnp.array([[[size]], [[-0.5]]]), jnp.array([size])),
      jnp.full((1, 1, 1), size),
      jnp.full((1, 1), size),
    )
    both = families.GAUSSIAN, families.GAUSSIAN
    value, gradient = jax.value_and_grad(
      lambda p: energy.free_energy(jnp.ones(1), p, families=both)
    )(parameters)
    chex.assert_tree_all_finite((value, gradient))

  def test_gradients(self):
    with jax.enable_x64(True):
      parameters = energy_cases.parameters(dtype=jnp.float64)
      x = jnp.array([1.0, 0.2, 0.7])

      def of(x, parameters):
        drive = energy.drive_from_below(x, parameters)
        field = energy.mean_field(
          jnp.full(_K, 0.5), parameters.bias, drive, num_iterations=2
        )
        return energy.free_energy(x, parameters), field

      check_grads(jax.jit(of), (x, parameters), 1, modes=("fwd",))
      check_grads(
        jax.jit(energy.free_energy), (x, parameters), 1, modes=("rev",)
      )

  def test_permuting_capsules_permutes_what_they_say(self):
    parameters = energy_cases.parameters(0)
    turned = parameters._replace(
      bias=energy.Bias(
        parameters.bias.hidden[:, ::-1], parameters.bias.switches[::-1]
      ),
      weights=parameters.weights[:, ::-1],
      interaction=parameters.interaction[:, ::-1],
    )
    x = jnp.array([1.0, 0.2, 0.7])
    one, other = (
      energy.posterior(p.bias, energy.drive_from_below(x, p))
      for p in (parameters, turned)
    )
    np.testing.assert_allclose(one.switches, other.switches[::-1], rtol=1e-6)
    np.testing.assert_allclose(
      energy.free_energy(x, parameters),
      energy.free_energy(x, turned),
      rtol=1e-6,
    )

  def test_batch_and_jit(self):
    parameters = energy_cases.parameters(0)
    images = jnp.float32(np.random.default_rng(0).uniform(size=(4, _M)))
    batched = jax.jit(jax.vmap(energy.free_energy, (0, None)))
    one_by_one = [energy.free_energy(x, parameters) for x in images]
    np.testing.assert_allclose(
      batched(images, parameters), one_by_one, rtol=1e-5
    )


if __name__ == "__main__":
  absltest.main()
