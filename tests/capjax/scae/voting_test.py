"""Votes of objects from their networks."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from capjax.scae import voting


def test_scales_are_positive_and_start_near_one():
  """Those of raw numbers 0: the softplus of 1/2, and the least scale."""
  voters = voting.Voters(
    2,
    num_objects=2,
    num_votes=3,
    kind="similarity",
    width=4,
    num_blocks=1,
    num_heads=1,
    summary=3,
    code=3,
    hidden=3,
    masking="log_presence",
    rngs=nnx.Rngs(0),
  )
  state = nnx.state(voters.describe)
  nnx.update(voters.describe, jax.tree.map(jnp.zeros_like, state))
  found = voters(jnp.ones((1, 4, 2)), jnp.ones((1, 4)))
  want = np.log(1 + np.exp(0.5)) + 0.01
  np.testing.assert_allclose(found.scales, want, rtol=1e-5)
