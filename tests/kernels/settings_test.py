"""Settings of kernels, such as temperatures, that are traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels import routing
from kernels.matching import sparsity
from kernels.routing import orthogonal

_VOTES = jax.random.normal(jax.random.key(0), (3, 2, 5))


@pytest.mark.parametrize(
  ("name", "call", "setting"),
  [
    ("concentration", lambda x: routing.shared_prototype_routing(
      _VOTES[:, 0], _VOTES[0], concentration=x), 7.0),
    ("alpha_0", lambda x: routing.variational_routing(
      _VOTES, jnp.ones(3), alpha_0=x), 0.5),
    ("nu_0", lambda x: routing.variational_routing(
      _VOTES, jnp.ones(3), nu_0=x), 7.5),
    ("threshold", lambda x: orthogonal.prune(_VOTES[:, 0], threshold=x), 0.5),
    ("num_classes", lambda x: sparsity.prior_within(
      jax.nn.sigmoid(_VOTES[0]), x), 3.0),
  ],
)  # fmt: skip
def test_settings_may_be_traced(name, call, setting):
  """So that they can be annealed, or learnt."""
  del name
  got, want = jax.jit(call)(setting), call(setting)
  for one, other in zip(*map(jax.tree.leaves, (got, want)), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
