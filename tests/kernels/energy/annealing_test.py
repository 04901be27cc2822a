"""Annealed importance sampling against normalisers that are known."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from scipy import special

from kernels.energy import annealing

_SIZE = 4
_TEMPERATURES = jnp.linspace(0, 1, 40)


def _couplings(seed):
  random = np.random.default_rng(seed)
  upper = np.triu(random.normal(size=(_SIZE, _SIZE)), 1)
  return upper + upper.T, random.normal(size=_SIZE)


def _run(seed, *, backwards, weighted_by=lambda cold: cold):
  """Anneals spins from fair coins; gives the log weights and exact log Z."""
  couplings, field = _couplings(seed)
  states = np.array(list(itertools.product((0.0, 1.0), repeat=_SIZE)))
  scores = np.einsum("ni,ij,nj->n", states, couplings / 2, states)
  scores += states @ field
  couplings, field = jnp.float32(couplings), jnp.float32(field)

  def log_density(x, temperature):
    return temperature * (x @ couplings @ x / 2 + field @ x)

  def transition(key, x, temperature):
    """Gibbs over the units there and back, which makes it reversible."""
    order = jnp.concatenate([jnp.arange(_SIZE), jnp.arange(_SIZE)[::-1]])

    def renew(x, inputs):
      unit, uniform = inputs
      logit = temperature * (couplings[unit] @ x + field[unit])
      return x.at[unit].set((uniform < jax.nn.sigmoid(logit)) * 1.0), None

    uniforms = jax.random.uniform(key, order.shape)
    return jax.lax.scan(renew, x, (order, uniforms))[0]

  keys = jax.random.split(jax.random.key(seed), 2000)
  random = np.random.default_rng(seed)
  probabilities = special.softmax(scores) if backwards else None
  starts = states[random.choice(len(states), len(keys), p=probabilities)]
  chains = jax.jit(
    jax.vmap(
      lambda key, x: annealing.anneal(
        key,
        x,
        _TEMPERATURES,
        log_density=lambda x, t: log_density(x, weighted_by(t)),
        transition=transition,
        backwards=backwards,
      )
    )
  )(keys, jnp.float32(starts))
  truth = special.logsumexp(scores) - _SIZE * np.log(2)
  return np.float64(chains.log_weight), truth


def _error(log_weights):
  """The standard error of the log of the mean weight (delta method)."""
  weights = np.exp(log_weights - log_weights.max())
  return np.std(weights) / np.mean(weights) / np.sqrt(len(weights))


class AnnealingTest(parameterized.TestCase):
  @parameterized.product(seed=(0, 1, 2, 3, 4), backwards=(False, True))
  def test_finds_the_normaliser_within_its_error(self, seed, backwards):
    log_weights, truth = _run(seed, backwards=backwards)
    sign = -1 if backwards else 1
    # Jensen's inequality: the mean is a bound, from below or from above.
    self.assertLess(sign * log_weights.mean(), sign * truth)
    log_weights = sign * log_weights
    estimate = special.logsumexp(log_weights) - np.log(len(log_weights))
    self.assertLess(abs(sign * estimate - truth), 4 * _error(log_weights))

  @parameterized.parameters(
    (jnp.sqrt,),  # a path that the transitions do not walk
    (lambda t: t / 2,),  # another end
  )
  def test_broken_density_is_found_out(self, weighted_by):
    log_weights, truth = _run(0, backwards=False, weighted_by=weighted_by)
    estimate = special.logsumexp(log_weights) - np.log(len(log_weights))
    self.assertGreater(abs(estimate - truth), 4 * _error(log_weights))

  def test_a_path_may_be_a_list(self):
    path = [0.0, 0.5, 1.0]
    got, want = (
      annealing.anneal(
        jax.random.key(0),
        jnp.ones(2),
        inverse_temperatures,
        log_density=lambda x, t: x[0] * t,
        transition=lambda key, x, t: x + t,
      ).log_weight
      for inverse_temperatures in (path, jnp.array(path))
    )
    self.assertEqual(got, want)

  def test_one_temperature_is_no_path(self):
    with self.assertRaisesRegex(ValueError, "has 1 entries"):
      annealing.anneal(
        jax.random.key(0),
        jnp.zeros(1),
        jnp.ones(1),
        log_density=lambda x, t: x[0] * t,
        transition=lambda key, x, t: x,
      )

  def test_sum_is_kept_in_float32(self):
    out = annealing.anneal(
      jax.random.key(0),
      jnp.ones((), jnp.bfloat16),
      jnp.linspace(0, 1, 300),
      log_density=lambda x, t: (x * t).astype(jnp.bfloat16),
      transition=lambda key, x, t: x,
    )
    self.assertEqual(out.log_weight.dtype, jnp.float32)

  @parameterized.parameters(False, True)
  def test_state_keeps_its_dtype(self, backwards):
    """A temperature wider than the state does not widen what it scales."""
    with jax.enable_x64(True):
      for dtype in (jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64):
        start = {"x": jnp.ones(2, dtype), "steps": jnp.zeros((), jnp.int32)}
        out = annealing.anneal(
          jax.random.key(0),
          start,
          jnp.linspace(0, 1, 3),
          log_density=lambda state, t: -t * jnp.sum(jnp.square(state["x"])) / 2,
          transition=lambda key, state, t: {
            "x": state["x"] * (1 - t / 2),
            "steps": state["steps"] + 1,
          },
          backwards=backwards,
        )
        self.assertEqual(out.state["x"].dtype, dtype)
        self.assertEqual(out.state["steps"], 2)
        np.testing.assert_allclose(
          np.float64(out.state["x"]), 0.75 * 0.5, rtol=1e-2
        )


if __name__ == "__main__":
  absltest.main()
