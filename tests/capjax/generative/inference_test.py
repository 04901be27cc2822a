"""Inference in generative capsules, image by image."""

import functools

import chex
import generative_cases
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl.testing import absltest, parameterized
from flax import nnx
from numpyro import diagnostics

from capjax import generative
from capjax.generative import inference
from kernels.matching import selection

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


_TOP_SCALE = 0.7


@functools.cache
def _black():
  """A part that renders nothing and surely belongs to a present object.

  Its image says nothing of poses, so that their posterior is their prior.
  """
  capsules = generative.GenerativeCapsules(
    (4, 4, 1), num_capsules=(1, 1), template_size=2, top_scale=_TOP_SCALE,
    dummy_affinity=1e-12, rngs=nnx.Rngs(0),
  )  # fmt: skip
  capsules.colours[...] = jnp.full_like(capsules.colours[...], -1e3)
  start = selection.Capsules(jnp.full((1, 1), 20.0), jnp.zeros((1, 1, 6)))
  return capsules, (start, start)


@functools.cache
def _black_samples():
  """[S 6] of each layer, and where the chain started."""
  capsules, layers = _black()
  samples = inference.sample_poses(
    capsules, layers, jnp.full((4, 4, 1), 0.5), jax.random.key(0),
    num_warmup=300, num_samples=1000,
  )  # fmt: skip
  return tuple(x[:, 0] for x in samples), tuple(x.poses[0] for x in layers)


def _known_posterior():
  """Means and deviations [6] of the poses of the part and of its object.

  The object's matrix is I + P of P ~ N(0, top_scale^2), the part's
  (I + P)(I + M) + E of E ~ N(0, sigma^2); less I, its rows have the mean M and
  the variance of P's rows times I + M, and of E.
  """
  (relations,) = _black()[0].relations
  offsets, sigma = np.float64(relations().offsets)[0, 0], relations().scales
  around = np.eye(3)
  around[:2] += offsets.reshape(2, 3)
  variance = np.zeros((2, 3))
  for row, column in np.ndindex(2, 3):
    for k in range(3):
      variance[row, column] += (_TOP_SCALE * around[k, column]) ** 2
    variance[row, column] += np.float64(sigma[0, 0]) ** 2
  part = offsets, np.sqrt(variance).ravel()
  return part, (np.zeros(6), np.full(6, _TOP_SCALE))


def check_samples(samples):
  """Means and variances, within five of their standard errors."""
  for got, (mean, deviation) in zip(samples, _known_posterior(), strict=True):
    for want, values in (
      (mean, np.float64(got)),
      (deviation**2, (np.float64(got) - mean) ** 2),
    ):
      # Of samples that are not independent; [chains, samples, numbers].
      effective = diagnostics.effective_sample_size(values[None])
      np.testing.assert_array_less(200, effective)
      errors = np.std(values, axis=0) / np.sqrt(effective)
      np.testing.assert_array_less(
        np.abs(values.mean(axis=0) - want) / errors, 5
      )


_FAULTS = {
  "half_the_energy": lambda samples, _: tuple(
    x.mean(axis=0) + np.sqrt(2) * (x - x.mean(axis=0)) for x in samples
  ),
  "layers_exchanged": lambda samples, _: samples[::-1],
  "never_moves": lambda samples, start: tuple(
    np.broadcast_to(x, y.shape) + 1e-3 * (y - y.mean(axis=0))
    for x, y in zip(start, samples, strict=True)
  ),
  "transposed": lambda samples, _: tuple(
    x[:, [0, 3, 1, 4, 2, 5]] for x in samples
  ),
}


class InferenceTest(chex.TestCase):
  @parameterized.parameters("adam", "lbfgs")
  @pytest.mark.long
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

  def test_no_samples_are_refused(self):
    capsules, layers = _black()
    with self.assertRaisesRegex(ValueError, "num_samples is 0; give"):
      inference.free_form(
        capsules, (), jnp.zeros((1, 4, 4, 1)), jax.random.key(0),
        optimizer=optax.lbfgs(), num_steps=1, num_samples=0,
      )  # fmt: skip

  @pytest.mark.long
  def test_every_image_is_climbed_for_itself(self):
    capsules, guide, images = generative_cases.small()
    posteriors, _ = generative_cases.guide(guide, images)
    want = _climb("lbfgs", capsules, posteriors, images)
    changed = images.at[1].set(0.0)
    got = _climb("lbfgs", capsules, posteriors, changed)
    first = functools.partial(jax.tree.map, lambda x: x[0])
    chex.assert_trees_all_close(first(got), first(want), atol=1e-4)

  @pytest.mark.long
  def test_chains_find_poses_of_high_density(self):
    """They leave a start of lower density, and move in every number."""
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

  @pytest.mark.long
  def test_chains_sample_a_posterior_that_is_known(self):
    check_samples(_black_samples()[0])

  @parameterized.parameters(*_FAULTS)
  @pytest.mark.long
  def test_other_samples_fail(self, fault):
    with self.assertRaises(AssertionError):
      check_samples(_FAULTS[fault](*_black_samples()))


if __name__ == "__main__":
  absltest.main()
