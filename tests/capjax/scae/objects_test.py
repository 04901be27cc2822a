"""How objects explain parts, for each normalisation of their votes."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from capjax.scae import objects as object_capsules
from kernels.matching import vote_mixture


def test_parts_are_explained_with_the_normalisation_of_the_layer():
  keys = jax.random.split(jax.random.key(0), 3)
  tokens = jax.random.normal(keys[0], (2, 4, 5))
  poses = jnp.eye(3) + jax.random.normal(keys[1], (2, 4, 3, 3)) / 4
  presence = jax.random.uniform(keys[2], (2, 4))
  found = {}
  for normalise in vote_mixture.NORMALISATIONS:
    layer = object_capsules.ObjectCapsules(
      5, 4, 3, normalise=normalise, width=4, num_blocks=1, summary=4, code=2,
      hidden=4, rngs=nnx.Rngs(0),
    )  # fmt: skip
    output = jax.jit(lambda layer, *x: layer(*x))(
      layer, tokens, poses, presence
    )
    for n in range(2):
      want = vote_mixture.explain_parts(
        poses[n, :, :2].reshape(4, 6),
        presence[n],
        output.votes[n, :, :, :2].reshape(3, 4, 6),
        output.scales[n],
        jnp.log(output.presence[n]),
        normalise=normalise,
      )
      np.testing.assert_allclose(output.log_prob[n], want.log_prob, rtol=1e-4)
      np.testing.assert_allclose(output.posterior[n], want.posterior, atol=1e-4)
    found[normalise] = np.asarray(output.log_prob)
  votes = found.pop("votes")
  for name, other in found.items():
    assert np.abs(other - votes).min() > 1e-3, name
  assert np.abs(found["none"] - found["all"]).min() > 1e-3
