"""Recognition of generative capsules against NumPyro."""

import functools

import chex
import generative_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from capjax.kernels.matching.selection import Capsules
from flax import nnx
from numpyro import infer

from capjax.generative import guides, numpyro_programs
from capjax.layers import dense


def _object_encoder():
  return guides.ObjectEncoder(
    3, 2, width=8, num_blocks=1, num_heads=2, num_inducing=2, out_features=4,
    hidden=4, rngs=nnx.Rngs(0),
  )  # fmt: skip


class GuidesTest(chex.TestCase):
  def test_scales_compute_as_the_other_products_do(self):
    _, guide, _ = generative_cases.small()
    guide = nnx.clone(guide)
    dense.set_dtype(guide, jnp.bfloat16)
    with self.assertRaisesRegex(ValueError, "scale is 0"):
      guide.add_scales(scale=0.0, rngs=nnx.Rngs(0))
    guide.add_scales(scale=0.1, rngs=nnx.Rngs(0))
    for encoder in guide.encoders:
      self.assertEqual(encoder.log_scales.dtype, jnp.bfloat16)

  @pytest.mark.long
  def test_bound_is_that_of_numpyro(self):
    """Means of many samples, with selections enumerated or summed out."""
    capsules, guide, images = generative_cases.small(True, (3, 2))

    @jax.jit
    def ours(key):
      return jnp.sum(guides.elbo(capsules, guide, images, key))

    num_samples = 500
    keys = jax.random.split(jax.random.key(0), num_samples)
    samples = jax.jit(lambda keys: jax.lax.map(ours, keys, batch_size=100))(
      keys
    )
    error = np.std(samples) / num_samples**0.5
    program = functools.partial(numpyro_programs.guide, guide)

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def theirs(estimate, model):
      def one(key):
        return -estimate.loss(key, {}, model, program, capsules, images)

      return jax.lax.map(one, keys, batch_size=100)

    enumerate_all = infer.TraceEnum_ELBO(max_plate_nesting=2)
    for estimate, model in [
      (enumerate_all, numpyro_programs.model),
      (
        infer.Trace_ELBO(),
        functools.partial(numpyro_programs.model, summed=True),
      ),
    ]:
      got = np.mean(theirs(estimate, model))
      assert abs(got - np.mean(samples)) < 6 * error, (got, np.mean(samples))

  def test_an_encoder_of_no_parts_is_refused(self):
    with self.assertRaisesRegex(ValueError, "num_parts is 0; give"):
      guides.PartEncoder((8, 8, 1), 0, rngs=nnx.Rngs(0))

  @parameterized.parameters(
    (jnp.zeros((1, 3), int), jnp.zeros((1, 3, 6)), TypeError, "logits holds"),
    (jnp.zeros((1, 3)), jnp.zeros((1, 3, 7)), ValueError, "poses is .*give"),
    (jnp.zeros((1, 3)), jnp.zeros((2, 3, 6)), ValueError, "poses is .*give"),
    (jnp.zeros((1, 4)), jnp.zeros((1, 4, 6)), ValueError, "logits is .*give"),
  )
  def test_other_children_are_refused(self, logits, poses, error, words):
    with self.assertRaisesRegex(error, words):
      _object_encoder()(Capsules(logits, poses))

  def test_objects_are_found_among_present_children(self):
    encoder = _object_encoder()
    logits = jnp.array([[0.5, -60.0, -1.0]])
    poses = jax.random.normal(jax.random.key(0), (1, 3, 6))
    presences = 1 / (1 + np.exp(-logits))
    tokens = jnp.concatenate(
      [poses, jnp.float32(presences)[..., None], jnp.eye(3)[None]], axis=-1
    )
    codes = encoder.transformer(tokens, jnp.float32(presences))
    found = encoder(Capsules(logits, poses))
    np.testing.assert_allclose(
      found.log_odds, encoder.log_odds(codes)[..., 0], atol=1e-5
    )
    np.testing.assert_allclose(found.poses, encoder.poses(codes), atol=1e-5)
    moved = encoder(Capsules(logits, poses.at[0, 1].add(3.0)))
    np.testing.assert_allclose(moved.poses, found.poses, atol=1e-5)
    other = encoder(Capsules(logits, poses.at[0, 2].add(3.0)))
    self.assertGreater(np.abs(other.poses - found.poses).max(), 1e-3)

  @parameterized.parameters(False, True)
  def test_density_is_that_of_the_samples(self, gaussian):
    """-E log q is the sum of the entropies that theory gives."""
    _, guide, images = generative_cases.small(gaussian)
    posteriors, _ = generative_cases.guide(guide, images)
    posterior = jax.tree.map(lambda x: x[0], posteriors[0])

    @jax.vmap
    def entropies(key):
      layer = posterior.sample(key, 0.7)
      return -posterior.log_density(layer, 0.7)

    got = entropies(jax.random.split(jax.random.key(0), 20_000))
    # That of a logistic variable is log of its scale + 2.
    want = 3 * (np.log(1 / 0.7) + 2)
    if gaussian:
      want += np.sum(posterior.log_scales + np.log(2 * np.pi * np.e) / 2)
    np.testing.assert_allclose(np.mean(got), want, rtol=0.02)

  def test_scales_are_added_and_all_else_is_taken_over(self):
    _, guide, images = generative_cases.small()
    before, layers = generative_cases.guide(guide, images)
    _, guide, _ = generative_cases.small(True)
    after, _ = generative_cases.guide(guide, images)
    for old, new in zip(before, after, strict=True):
      np.testing.assert_allclose(new.poses, old.poses, atol=1e-6)
      np.testing.assert_allclose(new.log_odds, old.log_odds, atol=1e-6)
      np.testing.assert_allclose(new.log_scales, np.log(0.1), rtol=1e-5)
      self.assertIsNone(old.log_scales)
    del layers

  @pytest.mark.long
  def test_upper_layers_see_the_image_through_the_lower_alone(self):
    _, guide, images = generative_cases.small()
    key = jax.random.key(0)
    posteriors, drawn = generative_cases.guide(guide, images, key)
    want = posteriors[1]
    chex.assert_trees_all_close(guide.encoders[1](drawn[0]), want, atol=1e-5)
    other, _ = generative_cases.guide(guide, images, jax.random.key(5))
    np.testing.assert_array_equal(other[0].poses, posteriors[0].poses)
    assert not np.allclose(other[1].poses, want.poses)

  @parameterized.parameters(False, True)
  @pytest.mark.long_after_first
  def test_gradients_reach_every_parameter(self, gaussian):
    capsules, guide, images = generative_cases.small(gaussian)

    @jax.jit
    @jax.grad
    def gradient(both):
      return jnp.sum(guides.elbo(*both, images, jax.random.key(0)))

    leaves = jax.tree.leaves(gradient((capsules, guide)))
    for leaf in leaves:
      assert np.all(np.isfinite(leaf))
    # Keys' biases move all logits of a query alike, and change nothing.
    silent = sum(not np.any(np.abs(leaf) > 1e-9) for leaf in leaves)
    assert silent <= 8, silent

  @pytest.mark.long
  def test_temperature_is_that_of_the_model_or_the_one_that_is_given(self):
    capsules, guide, images = generative_cases.small(True)
    key = jax.random.key(0)
    elbo = jax.jit(guides.elbo)
    cooler = nnx.clone(capsules), nnx.clone(guide)
    for module in cooler:
      module.temperature = 0.3
    want = elbo(*cooler, images, key)
    got = elbo(capsules, guide, images, key, temperature=0.3)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    own = elbo(capsules, guide, images, key, temperature=0.5)
    np.testing.assert_allclose(
      own, elbo(capsules, guide, images, key), rtol=1e-5
    )
    assert np.all(np.abs(own - want) > 1)


if __name__ == "__main__":
  absltest.main()
