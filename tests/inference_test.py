"""Inference in generative capsules, image by image."""

import functools

import chex
import generative_cases
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized

from capjax import inference

_OPTIONS = {
  "adam": {"optimizer": optax.with_extra_args_support(optax.adam(0.03))},
  "lbfgs": {"optimizer": optax.lbfgs(), "fixed_noise": True},
}
_STEPS = {"adam": 50, "lbfgs": 10}


@functools.partial(jax.jit, static_argnums=0)
def _climb(name, *arguments):
  return inference.free_form(
    *arguments, jax.random.key(0), num_steps=_STEPS[name], **_OPTIONS[name]
  )


class InferenceTest(chex.TestCase):
  @parameterized.parameters("adam", "lbfgs")
  def test_free_form_climbs_the_bound(self, name):
    capsules, guide, images = generative_cases.small()
    posteriors, _ = generative_cases.guide(guide, images)

    @jax.jit
    def fresh(posteriors):
      keys = jax.random.split(jax.random.key(9), 200)
      return jnp.mean(
        jax.lax.map(
          lambda key: inference.bound(capsules, posteriors, images, key), keys
        ),
        axis=0,
      )

    found = _climb(name, capsules, posteriors, images)
    self.assertEqual(found.bounds.shape, (2, _STEPS[name]))
    np.testing.assert_array_less(fresh(posteriors) + 5, fresh(found.posteriors))

  def test_every_image_is_climbed_for_itself(self):
    capsules, guide, images = generative_cases.small()
    posteriors, _ = generative_cases.guide(guide, images)
    want = _climb("lbfgs", capsules, posteriors, images)
    changed = images.at[1].set(0.0)
    got = _climb("lbfgs", capsules, posteriors, changed)
    first = functools.partial(jax.tree.map, lambda x: x[0])
    chex.assert_trees_all_close(first(got), first(want), atol=1e-4)

  def test_chains_find_poses_of_high_density(self):
    """About the best pose the samples spread as its curvature says."""
    capsules, guide, images = generative_cases.small(False, (2, 1))
    capsules.pixel_scale = 0.5
    _, layers = generative_cases.guide(guide, images[:1])
    samples = inference.sample_poses(
      capsules, layers, images[0], jax.random.key(0),
      num_warmup=30, num_samples=30,
    )  # fmt: skip
    self.assertEqual([x.shape for x in samples], [(30, 2, 6), (30, 1, 6)])

    @jax.jit
    @jax.vmap
    def joint(*poses):
      moved = tuple(
        layer._replace(poses=pose[None])
        for layer, pose in zip(layers, poses, strict=True)
      )
      return capsules.log_joint(moved, images[:1])[0]

    start = joint(*(layer.poses for layer in layers))
    assert np.mean(joint(*samples)) > start[0]
    assert all(np.min(np.std(x, axis=0)) > 1e-3 for x in samples)


if __name__ == "__main__":
  absltest.main()
