"""Forms of dynamic routing: which is taken, and that all agree."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from flax import nnx

from capjax import layers
from capjax.layers import agreement, platforms
from kernels import routing


class AgreementTest(chex.TestCase):
  def test_dynamic_routing_takes_transforms_wider_than_poses(self):
    with jax.enable_x64(True):
      poses = jnp.ones((6, 2), jnp.float32)
      transforms = jnp.ones((6, 3, 2, 4), jnp.float64)
      for batch_size in (1, 100):
        output = agreement.route_by_agreement(
          poses, transforms, batch_size=batch_size
        )
        self.assertEqual(output.poses.dtype, jnp.float32)

  @parameterized.parameters((1, 3, 0), (12, 3, 1), (12, 20, 0))
  def test_dynamic_routing_has_another_form_for_gradients(
    self, num_examples, num_objects, forms
  ):
    """On a CPU, of many examples and few objects; all forms agree."""
    random = np.random.default_rng(0)
    poses = jnp.array(random.normal(size=(num_examples, 6, 3)), jnp.float32)
    transforms = jnp.array(random.normal(size=(6, num_objects, 3, 4)))

    def stored(poses, transforms):
      votes = jnp.einsum("ic,ijcd->ijd", poses, transforms)
      return routing.dynamic_routing(votes)

    def chosen(poses, transforms):
      return agreement.route_by_agreement(
        poses, transforms, batch_size=num_examples
      )

    def total(transforms, route):
      outputs = jax.vmap(route, (0, None))(poses, transforms)
      return jnp.sum(jnp.cos(outputs.poses))

    with platforms.known("cpu"):
      text = str(jax.make_jaxpr(total, 1)(transforms, chosen))
      self.assertEqual(text.count("custom_jvp_call"), forms)
      want = jax.value_and_grad(total)(transforms, stored)
      got = jax.value_and_grad(total)(transforms, chosen)
      chex.assert_trees_all_close(got, want, rtol=1e-4, atol=1e-5)
      np.testing.assert_allclose(total(transforms, chosen), want[0], rtol=1e-5)

  @parameterized.parameters((8, 0), (9, 1))
  def test_a_layer_takes_the_form_for_its_batch(self, num_examples, forms):
    """Also where it is mapped by its user, as over an ensemble."""
    layer = layers.DenseCaps(
      num_parts=6, part_size=3, num_objects=3, pose_size=4, rngs=nnx.Rngs(0)
    )
    poses = jnp.ones((2, num_examples, 6, 3))
    with platforms.known("cpu"):
      text = str(jax.make_jaxpr(jax.vmap(layer))(poses))
    self.assertEqual(text.count("custom_jvp_call"), forms)

  def test_gpus_store_votes_up_to_a_size(self):
    random = np.random.default_rng(0)
    poses = jnp.array(random.normal(size=(6, 3)), jnp.float32)
    transforms = jnp.array(random.normal(size=(6, 5, 3, 4)), jnp.float32)

    def total(transforms, batch_size):
      output = agreement.route_by_agreement(
        poses, transforms, batch_size=batch_size
      )
      return jnp.sum(jnp.cos(output.poses))

    most = agreement._STORED_NUMBERS // (6 * 5 * 4)
    found = {}
    for size, platform, num_devices, are_stored in (
      (most, "gpu", 1, True),
      (most + 1, "cuda", 1, False),
      (8 * most, "cuda", 8, True),
      (2, "tpu", 1, False),
    ):
      with platforms.known(platform, num_devices):
        text = str(jax.make_jaxpr(total, 1)(transforms, size))
        self.assertEqual("f32[6,5,4]" in text, are_stored)
        found[size] = jax.value_and_grad(total)(transforms, size)
    chex.assert_trees_all_close(*found.values(), rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
  absltest.main()
