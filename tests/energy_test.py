"""Energies of capsules against sums over every state, and numerical integrals.

The models are small enough to enumerate: the oracle is a plain loop over all
x, h, z in float64, from the paper's eq. 4.
"""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.test_util import check_grads
from scipy import special

from kernels import energy, families

_M, _K, _J = 3, 2, 2
_SEEDS = (0, 1, 2)


def _parameters(seed=0, *, interaction=True, switches=True, dtype=None):
  random = np.random.default_rng(seed)
  parameters = energy.Parameters(
    visible=random.normal(size=(1, _M)),
    bias=energy.Bias(
      random.normal(size=(1, _K, _J)),
      random.normal(size=_K) if switches else None,
    ),
    weights=random.normal(size=(_M, _K, _J)),
    interaction=random.normal(size=(_M, _K)) if interaction else None,
  )
  return jax.tree.map(lambda x: jnp.array(x, dtype), parameters)


def _energy_oracle(x, h, z, parameters):
  """Eq. 4 for Bernoulli units, one product at a time."""
  (a,), ((b,), c), weights, omega = parameters
  total = 0.0
  for m in range(len(x)):
    total -= a[m] * x[m]
  for k in range(len(z)):
    total -= c[k] * z[k]
    for j in range(h.shape[1]):
      total -= b[k, j] * h[k, j]
      for m in range(len(x)):
        total -= z[k] * x[m] * weights[m, k, j] * h[k, j]
    for m in range(len(x)):
      total -= x[m] * omega[m, k] * z[k]
  return total


def _states(parameters):
  """Every (x, h, z, -E), in float64."""
  parameters = jax.tree.map(lambda x: np.asarray(x, np.float64), parameters)
  for bits in itertools.product((0.0, 1.0), repeat=_M + _K * _J + _K):
    x = np.array(bits[:_M])
    h = np.array(bits[_M : _M + _K * _J]).reshape(_K, _J)
    z = np.array(bits[_M + _K * _J :])
    yield x, h, z, -_energy_oracle(x, h, z, parameters)


def _expect(states, of=lambda x, h, z: 1.0):
  """Sum over states of exp(-E) of(x, h, z)."""
  return sum(np.exp(value) * of(x, h, z) for x, h, z, value in states)


def _by_visible(parameters):
  """The states of each x."""
  groups = {}
  for x, h, z, value in _states(parameters):
    groups.setdefault(tuple(x), []).append((x, h, z, value))
  return groups


class FamiliesTest(parameterized.TestCase):
  _PARAMETERS = {
    "BERNOULLI": [[0.3, -1.2, 2.0]],
    "GAUSSIAN": [[0.4, -1.0, 2.0], [-0.5, -0.2, -2.0]],
    "POISSON": [[0.3, -1.2, 1.1]],
  }

  @parameterized.parameters("BERNOULLI", "GAUSSIAN", "POISSON")
  def test_densities_have_unit_mass_and_these_moments(self, name):
    family = getattr(families, name)
    parameters = jnp.array(self._PARAMETERS[name], jnp.float32)
    if name == "GAUSSIAN":
      values, step = np.linspace(-30, 30, 20001), 60 / 20000
    else:
      values, step = np.arange(2.0 if name == "BERNOULLI" else 60.0), 1
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

  @parameterized.parameters("BERNOULLI", "GAUSSIAN", "POISSON")
  def test_moments_are_the_gradient_of_the_log_partition(self, name):
    family = getattr(families, name)
    parameters = jnp.array(self._PARAMETERS[name], jnp.float32)
    gradient = jax.grad(lambda p: jnp.sum(family.log_partition(p)))(parameters)
    np.testing.assert_allclose(
      gradient, family.moments(parameters), rtol=1e-5, atol=1e-6
    )

  @parameterized.parameters("BERNOULLI", "GAUSSIAN", "POISSON")
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


class EnumerationTest(parameterized.TestCase):
  @parameterized.parameters(*_SEEDS)
  def test_energy(self, seed):
    parameters = _parameters(seed)
    states = list(_states(parameters))
    x, h, z, expected = map(np.array, zip(*states, strict=True))
    actual = jax.vmap(
      lambda x, h, z: -energy.energy(x, energy.state(h, z), parameters)
    )(*map(jnp.float32, (x, h, z)))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)

  @parameterized.product(seed=_SEEDS, free_energy=(True, False))
  def test_free_energy(self, seed, free_energy):
    parameters = _parameters(seed)

    def off(x, group):
      expected = -np.log(_expect(group))
      actual = (
        energy.free_energy(x, parameters)
        if free_energy
        # Broken: the states with z = 0 are left out.
        else energy.free_energy(
          x, parameters._replace(bias=parameters.bias._replace(switches=None))
        )
      )
      return abs(float(actual) - expected)

    worst = max(
      off(jnp.array(x, jnp.float32), group)
      for x, group in _by_visible(parameters).items()
    )
    self.assertEqual(worst < 1e-5, free_energy)

  @parameterized.parameters(*_SEEDS)
  def test_posterior(self, seed):
    parameters = _parameters(seed)
    for x, group in _by_visible(parameters).items():
      drive = energy.drive_from_below(jnp.array(x, jnp.float32), parameters)
      actual = energy.posterior(parameters.bias, drive)
      total = _expect(group)
      expected = energy.Capsules(
        _expect(group, lambda x, h, z: h[None]) / total,
        _expect(group, lambda x, h, z: z) / total,
        _expect(group, lambda x, h, z: z[:, None] * h) / total,
      )
      chex.assert_trees_all_close(actual, expected, atol=1e-6)
      odds = special.expit(energy.switch_log_odds(parameters.bias, drive))
      np.testing.assert_allclose(odds, expected.switches, atol=1e-6)

  @parameterized.product(seed=_SEEDS, gated=(True, False))
  def test_conditionals_of_capsules(self, seed, gated):
    """Eqs. 9 and 10; h that meets x while z = 0 is another model."""
    parameters = _parameters(seed)
    x = np.array([1.0, 0.0, 1.0])
    group = _by_visible(parameters)[tuple(x)]
    drive = energy.drive_from_below(jnp.float32(x), parameters)
    worst = 0.0
    for switches in itertools.product((0.0, 1.0), repeat=_K):
      kept = [s for s in group if tuple(s[2]) == switches]
      expected = _expect(kept, lambda x, h, z: h) / _expect(kept)
      used = jnp.array(switches if gated else [1.0] * _K)
      actual = jax.nn.sigmoid(
        energy.hidden_parameters(used, parameters.bias, drive)[0]
      )
      worst = max(worst, np.max(np.abs(actual - expected)))
    self.assertEqual(worst < 1e-6, gated)
    for bits in itertools.product((0.0, 1.0), repeat=_K * _J):
      kept = [s for s in group if tuple(s[1].ravel()) == bits]
      expected = _expect(kept, lambda x, h, z: z) / _expect(kept)
      hidden = jnp.array(bits).reshape(_K, _J)
      actual = jax.nn.sigmoid(
        energy.switch_logits(hidden, parameters.bias, drive)
      )
      np.testing.assert_allclose(actual, expected, atol=1e-6)

  @parameterized.parameters(*_SEEDS)
  def test_conditional_of_visible_units(self, seed):
    """Eq. 8."""
    parameters = _parameters(seed)
    groups = {}
    for x, h, z, value in _states(parameters):
      groups.setdefault((*h.ravel(), *z), []).append((x, h, z, value))
    for group in groups.values():
      _, h, z, _ = group[0]
      expected = _expect(group, lambda x, h, z: x) / _expect(group)
      actual = jax.nn.sigmoid(
        energy.visible_parameters(
          energy.state(jnp.float32(h), jnp.float32(z)), parameters
        )[0]
      )
      np.testing.assert_allclose(actual, expected, atol=1e-6)

  @parameterized.parameters(*_SEEDS)
  def test_exact_gradient_is_that_of_the_enumerated_likelihood(self, seed):
    """Eq. 11: the positive term is the gradient of the free energy."""
    parameters = _parameters(seed)
    x = np.array([0.0, 1.0, 1.0])
    group = _by_visible(parameters)[tuple(x)]
    total = _expect(group)
    expected = energy.Parameters(
      -x[None],
      energy.Bias(
        -_expect(group, lambda x, h, z: h[None]) / total,
        -_expect(group, lambda x, h, z: z) / total,
      ),
      -_expect(
        group, lambda x, h, z: np.einsum("m,k,kj->mkj", x, z, h)
      ) / total,
      -_expect(group, lambda x, h, z: np.outer(x, z)) / total,
    )  # fmt: skip
    actual = jax.grad(
      lambda p: energy.free_energy(jnp.float32(x), p)
    )(parameters)  # fmt: skip
    chex.assert_trees_all_close(actual, expected, atol=1e-6)

  @parameterized.parameters(*_SEEDS)
  def test_gradient_of_the_energy(self, seed):
    """Eq. 12."""
    parameters = _parameters(seed)
    random = np.random.default_rng(seed)
    x, h, z = (
      jnp.float32(random.integers(2, size=shape))
      for shape in ((_M,), (_K, _J), (_K,))
    )
    actual = jax.grad(
      lambda p: energy.energy(x, energy.state(h, z), p)
    )(parameters)  # fmt: skip
    expected = energy.Parameters(
      -x[None],
      energy.Bias(-h[None], -z),
      -jnp.einsum("m,k,kj->mkj", x, z, h),
      -jnp.outer(x, z),
    )
    chex.assert_trees_all_close(actual, expected, atol=1e-6)

  @parameterized.parameters("sample", "gibbs")
  def test_chains_reach_the_exact_marginals(self, kind):
    """Thousands of chains over (x, h, z), from an arbitrary start."""
    parameters = _parameters(3)
    count, sweeps = 4000, 60

    def sweep(carry, key):
      x, capsules = carry
      capsule_key, visible_key = jax.random.split(key)
      drive = energy.drive_from_below(x, parameters)
      if kind == "sample":
        capsules = energy.sample(capsule_key, parameters.bias, drive)
      else:
        capsules = energy.gibbs(capsule_key, capsules, parameters.bias, drive)
      natural = energy.visible_parameters(capsules, parameters)
      x = families.BERNOULLI.sample(visible_key, natural)
      return (x, capsules), None

    @jax.jit
    @jax.vmap
    def chain(key):
      start = jnp.zeros(_M), energy.state(jnp.ones((_K, _J)), jnp.ones(_K))
      return jax.lax.scan(sweep, start, jax.random.split(key, sweeps))[0]

    x, capsules = chain(jax.random.split(jax.random.key(0), count))
    states = list(_states(parameters))
    total = _expect(states)
    for actual, expected in (
      (x, _expect(states, lambda x, h, z: x)),
      (capsules.switches, _expect(states, lambda x, h, z: z)),
      (capsules.active, _expect(states, lambda x, h, z: z[:, None] * h)),
      (capsules.statistics, _expect(states, lambda x, h, z: h[None])),
    ):
      expected = expected / total
      error = np.sqrt(expected * (1 - expected) / count)
      off = np.abs(np.mean(actual, 0) - expected)
      np.testing.assert_array_less(off, 4.5 * error)


class MeanFieldTest(parameterized.TestCase):
  @parameterized.parameters(0, 1, 5)
  def test_against_loops(self, num_iterations):
    parameters = _parameters(1)
    x = np.array([1.0, 0.3, 0.6])
    start = np.array([0.4, 0.7])
    drive = energy.drive_from_below(jnp.float32(x), parameters)
    actual = energy.mean_field(
      jnp.float32(start), parameters.bias, drive, num_iterations=num_iterations
    )
    _, ((b,), c), weights, omega = jax.tree.map(np.float64, parameters)
    z, h = start.copy(), np.zeros((_K, _J))
    for step in range(num_iterations + 1):
      for k in range(_K):
        if step:
          logit = c[k] + x @ weights[:, k] @ h[k] + x @ omega[:, k]
          z[k] = special.expit(logit)
        for j in range(_J):
          h[k, j] = special.expit(b[k, j] + z[k] * x @ weights[:, k, j])
    expected = energy.Capsules(h[None], z, z[:, None] * h)
    chex.assert_trees_all_close(actual, expected, atol=1e-6)

  def test_bound_is_never_above_the_exact_one(self):
    """-E under q plus its entropy is at most -F, and closer with iterations."""
    parameters = _parameters(2)
    x = jnp.array([1.0, 0.0, 1.0])
    drive = energy.drive_from_below(x, parameters)
    exact = -energy.free_energy(x, parameters)

    def bound(num_iterations):
      q = energy.mean_field(
        jnp.full(_K, 0.5), parameters.bias, drive, num_iterations=num_iterations
      )
      entropy = sum(
        np.sum(special.entr(p) + special.entr(1 - p))
        for p in (np.asarray(q.statistics), np.asarray(q.switches))
      )
      return entropy - energy.energy(x, q, parameters)

    bounds = [bound(n) for n in (0, 1, 2, 20)]
    self.assertEqual(bounds, sorted(bounds))
    self.assertLess(bounds[-1], exact)

  def test_negative_iterations_are_refused(self):
    bias = _parameters().bias
    with self.assertRaisesRegex(ValueError, "num_iterations is -1"):
      energy.mean_field(
        jnp.ones(_K), bias, energy.no_drive(bias), num_iterations=-1
      )


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
    bias = _parameters(0).bias
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
    parameters = _parameters(4)
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
    bias = _parameters(5).bias
    actual = energy.posterior(bias, energy.no_drive(bias))
    np.testing.assert_allclose(
      actual.statistics, jax.nn.sigmoid(bias.hidden), rtol=1e-6
    )
    np.testing.assert_allclose(
      actual.switches, jax.nn.sigmoid(bias.switches), rtol=1e-6
    )


class SpecialCasesTest(parameterized.TestCase):
  def test_no_interaction_is_one_of_zeros(self):
    without = _parameters(interaction=False)
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
    parameters = _parameters(interaction=False, switches=False)
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
      lambda x: jnp.full_like(x, size), _parameters(dtype=dtype)
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
    chex.assert_type(jax.tree.leaves((value, gradient, outputs)), dtype)

  def test_gradients(self):
    with jax.enable_x64(True):
      parameters = _parameters(dtype=jnp.float64)
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
    parameters = _parameters(0)
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
    parameters = _parameters(0)
    images = jnp.float32(np.random.default_rng(0).uniform(size=(4, _M)))
    batched = jax.jit(jax.vmap(energy.free_energy, (0, None)))
    one_by_one = [energy.free_energy(x, parameters) for x in images]
    np.testing.assert_allclose(
      batched(images, parameters), one_by_one, rtol=1e-5
    )


if __name__ == "__main__":
  absltest.main()
