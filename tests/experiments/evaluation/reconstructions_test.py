"""Changes of one dimension of a capsule at a time."""

import jax.numpy as jnp
import numpy as np

from experiments.evaluation import reconstructions


def test_dimensions_of_the_capsule_change_one_at_a_time():
  poses = jnp.arange(6.0).reshape(2, 3)
  offsets = np.array([-0.25, 0.0, 0.25])

  def decode(poses, classes):
    """An image of 1x1 pixels, with the capsule's numbers as channels."""
    return poses[jnp.arange(len(poses)), classes][:, None, None]

  for label in (0, 1):
    found = reconstructions.perturb(decode, poses, label, offsets)
    assert found.shape == (3, 3, 1, 1, 3)
    want = poses[label] + np.einsum("s,de->dse", offsets, np.eye(3))
    np.testing.assert_allclose(found[:, :, 0, 0], want)
