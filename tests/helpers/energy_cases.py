"""A capsule RBM small enough to enumerate, and sums over all its states."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from kernels import energy

M, K, J = 3, 2, 2


def parameters(seed=0, *, interaction=True, switches=True, dtype=None):
  random = np.random.default_rng(seed)
  parameters = energy.Parameters(
    visible=random.normal(size=(1, M)),
    bias=energy.Bias(
      random.normal(size=(1, K, J)),
      random.normal(size=K) if switches else None,
    ),
    weights=random.normal(size=(M, K, J)),
    interaction=random.normal(size=(M, K)) if interaction else None,
  )
  return jax.tree.map(lambda x: jnp.array(x, dtype), parameters)


def energy_oracle(x, h, z, parameters):
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


def states(parameters):
  """Yields (x, h, z, -E) of every state, in float64."""
  parameters = jax.tree.map(lambda x: np.asarray(x, np.float64), parameters)
  for bits in itertools.product((0.0, 1.0), repeat=M + K * J + K):
    x = np.array(bits[:M])
    h = np.array(bits[M : M + K * J]).reshape(K, J)
    z = np.array(bits[M + K * J :])
    yield x, h, z, -energy_oracle(x, h, z, parameters)


def expect(states, of=lambda x, h, z: 1.0):
  """The sum of exp(-E) times `of(x, h, z)` over states."""
  return sum(np.exp(value) * of(x, h, z) for x, h, z, value in states)


def by_visible(parameters):
  """A dict from each x, as a tuple, to its states."""
  groups = {}
  for x, h, z, value in states(parameters):
    groups.setdefault(tuple(x), []).append((x, h, z, value))
  return groups
