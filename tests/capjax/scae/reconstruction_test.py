"""Images rendered from the parts, and from those that objects predict."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from capjax import scae
from capjax.scae import autoencoder
from capjax.scae import parts as part_capsules


@functools.cache
def _case():
  model = scae.SCAE(
    (24, 23, 1), 3, num_parts=4, num_objects=3, template_size=5, num_features=2,
    encoder_features=4, rngs=nnx.Rngs(0),
  )  # fmt: skip
  random = np.random.default_rng(0)
  state = jax.tree.map(
    lambda x: x + jnp.float32(random.normal(size=x.shape)),
    nnx.state(model, nnx.Param),
  )
  nnx.update(model, state)
  return model, jnp.float32(random.uniform(size=(2, 24, 23, 1)))


def test_parts_are_where_their_most_probable_objects_expect_them():
  model, images = _case()
  of_parts, of_objects = jax.jit(autoencoder.reconstruct)(model, images)
  output = jax.jit(lambda model, images: model(images))(model, images)
  np.testing.assert_allclose(
    of_parts.mean, model.decoder.render(output.parts), atol=1e-5
  )
  objects, parts = output.objects, output.parts
  poses = np.zeros(parts.poses.shape, np.float32)
  presence = np.zeros(parts.presence.shape, np.float32)
  winners = set()
  for b, m in np.ndindex(presence.shape):
    k = int(objects.winners[b, m])
    assert objects.posterior[b, k, m] == max(objects.posterior[b, :, m])
    winners.add(k)
    poses[b, m] = objects.votes[b, k, m]
    presence[b, m] = objects.presence[b, k, m]
  assert len(winners) > 1
  expected = part_capsules.Parts(
    jnp.asarray(poses), jnp.asarray(presence), parts.features
  )
  want = model.decoder.render(expected)
  np.testing.assert_allclose(of_objects.mean, want, atol=1e-5)
  assert np.abs(of_objects.mean - of_parts.mean).max() > 1e-3
