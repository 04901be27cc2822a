"""Tests of the stacked capsule autoencoder and its loss."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from flax import nnx

from capjax import object_capsules, scae, voting
from kernels import geometry

_SHAPE = (24, 23, 1)


def _make(seed=0, shape=_SHAPE, **options):
  options = {
    "num_parts": 4,
    "num_objects": 3,
    "template_size": 5,
    "num_features": 2,
    "encoder_features": 4,
    **options,
  }
  return scae.SCAE(shape, 3, **options, rngs=nnx.Rngs(seed))


def _images(count=2, shape=_SHAPE):
  return jax.random.uniform(jax.random.key(1), (count, *shape))


_LABELS = jnp.array([0, 2])


def _gradient(model, term, key=None):
  """Of one of the terms of the loss, as a model whose weights are gradients."""

  def of_model(model):
    return scae.loss(model, _images(), _LABELS, key)[1][term]

  return jax.jit(jax.grad(of_model, allow_int=True))(model)


def _size(tree):
  """The largest absolute value."""
  return max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(tree))


class SCAETest(parameterized.TestCase):
  @parameterized.parameters(
    dict(),
    dict(nonlinearity="relu1", normalise="all"),
    dict(mixing="coupled", kind="similarity", masking="near_hard"),
    dict(shape=(23, 23, 3), edges=True),
  )
  def test_shapes_and_ranges(self, **options):
    model = _make(**options)
    images = _images(shape=options.get("shape", _SHAPE))
    output = model(images)
    self.assertEqual(output.parts.poses.shape, (2, 4, 3, 3))
    self.assertEqual(output.objects.votes.shape, (2, 3, 4, 3, 3))
    for presence in (output.parts.presence, output.objects.presence):
      self.assertTrue(((presence > 0) & (presence < 1)).all())
    gradient = jax.jit(
      jax.grad(
        lambda m: scae.loss(m, images, _LABELS, jax.random.key(0))[0],
        allow_int=True,
      )
    )(model)
    for x in jax.tree.leaves(nnx.state(gradient, nnx.Param)):
      self.assertTrue(np.isfinite(x).all())

  @parameterized.parameters("alpha", "coupled")
  def test_every_parameter_changes_how_images_are_explained(self, mixing):
    model, images = _make(mixing=mixing), _images()
    parts = model(images).parts

    @jax.jit
    @jax.grad
    def gradient(decoder):
      return jnp.sum(decoder.log_prob(images, parts))

    found = nnx.to_flat_state(nnx.state(gradient(model.decoder), nnx.Param))
    for path, x in found:
      self.assertGreater(_size(x), 0, path)

  def test_noise_needs_a_key(self):
    """The authors' code keeps the noise at test time."""
    model, images = _make(), _images()
    calm, calm_again = model(images), model(images)
    noisy = model(images, key=jax.random.key(0))
    np.testing.assert_array_equal(
      calm.parts.presence, calm_again.parts.presence
    )
    moved = jax.scipy.special.logit(noisy.parts.presence) - (
      jax.scipy.special.logit(calm.parts.presence)
    )
    self.assertGreater(jnp.max(jnp.abs(moved)), 0.1)
    self.assertLess(jnp.max(jnp.abs(moved)), 2.001)

  def test_objects_reach_the_encoder_through_features_alone(self):
    model = _make()
    gradient = _gradient(model, "part_log_prob")
    # Nothing of how parts are drawn, but what colours them, is to suit objects.
    for name in ("raw", "alphas", "background", "background_logit"):
      self.assertEqual(_size(getattr(gradient.decoder, name)), 0, name)
    self.assertGreater(_size(gradient.encoder.convs[0].kernel), 0)
    # Of the maps, those of poses and presences, [part, (map, pose, presence,
    # features)], get nothing.
    maps = gradient.encoder.maps.kernel[...].reshape(4, 4, 1 + 6 + 1 + 2)
    np.testing.assert_array_equal(maps[..., 1:8], 0)
    self.assertGreater(jnp.max(jnp.abs(maps[..., 8:])), 0)

  def test_images_do_not_reach_the_objects(self):
    gradient = _gradient(_make(), "image_log_prob")
    self.assertEqual(_size(nnx.state(gradient.objects, nnx.Param)), 0)
    self.assertGreater(_size(gradient.decoder.raw), 0)

  def test_probes_teach_nothing_else(self):
    gradient = _gradient(_make(), "probe_loss")
    for part in (gradient.encoder, gradient.decoder, gradient.objects):
      self.assertEqual(_size(nnx.state(part, nnx.Param)), 0)
    self.assertGreater(_size(gradient.prior_probe.kernel), 0)

  @parameterized.parameters(
    "prior_within", "prior_between", "posterior_within", "posterior_between"
  )
  def test_every_weight_weighs_its_own_term(self, name):
    """The authors' code for constellations passes one weight as another."""
    model, images = _make(), _images()
    zeros = scae.Weights(*[0.0] * len(scae.Weights._fields))
    base, terms = scae.loss(model, images, _LABELS, None, weights=zeros)
    one, _ = scae.loss(
      model, images, _LABELS, None, weights=zeros._replace(**{name: 1e3})
    )
    np.testing.assert_allclose(one - base, 1e3 * terms[name], rtol=1e-2)

  def test_moving_an_object_moves_its_votes(self):
    model = _make(kind="affine")
    objects = model(_images()).objects
    move = geometry.affine_matrix(1.0, 1.0, 0.3, 0.0, 0.2, -0.1)
    relations = geometry.compose(
      geometry.invert(objects.poses)[:, :, None], objects.votes
    )
    moved = geometry.compose(
      geometry.compose(move, objects.poses)[:, :, None], relations
    )
    np.testing.assert_allclose(
      moved, geometry.compose(move, objects.votes), rtol=1e-3, atol=1e-4
    )

  def test_parts_are_a_set_to_the_objects(self):
    """Objects read parts in any order, if their votes are taken in it too."""
    capsules = object_capsules.ObjectCapsules(7, 4, 3, rngs=nnx.Rngs(0))
    random = np.random.default_rng(0)
    tokens = jnp.array(random.normal(size=(2, 4, 7)), jnp.float32)
    poses = geometry.pose_matrix(
      jnp.array(random.normal(size=(2, 4, 6)), jnp.float32)
    )
    presence = jnp.array(random.uniform(size=(2, 4)), jnp.float32)
    order = jnp.array([2, 0, 3, 1])
    here = capsules(tokens, poses, presence)
    there = capsules(tokens[:, order], poses, presence[:, order])
    np.testing.assert_allclose(here.poses, there.poses, rtol=1e-3, atol=1e-4)
    broken = capsules(tokens[:, order], poses, presence)
    self.assertGreater(jnp.max(jnp.abs(here.poses - broken.poses)), 1e-4)

  def test_templates_start_apart_and_in_range(self):
    raw = _make(num_parts=12).decoder.raw[...].reshape(12, -1)
    np.testing.assert_allclose(jnp.min(raw, axis=1), 0, atol=1e-6)
    np.testing.assert_allclose(jnp.max(raw, axis=1), 1, atol=1e-6)
    correlations = np.corrcoef(np.asarray(raw)) - np.eye(12)
    self.assertLess(np.max(np.abs(correlations)), 0.9)

  def test_more_parts_than_pixels(self):
    model = _make(num_parts=7, template_size=2)
    self.assertEqual(model.decoder.templates().shape, (7, 2, 2, 1))

  def test_one_image_at_a_time_is_all_at_once(self):
    model, images = _make(), _images()
    output = model(images)
    together = model.decoder.log_prob(images, output.parts)
    alone = [
      model.decoder.log_prob(
        images[b : b + 1],
        jax.tree.map(lambda x, b=b: x[b : b + 1], output.parts),
      )[0]
      for b in range(2)
    ]
    np.testing.assert_allclose(together, alone, rtol=1e-5)

  def test_small_images_are_refused(self):
    with self.assertRaisesRegex(ValueError, "at least 23x23"):
      _make(shape=(22, 24, 1))

  def test_blank_images_are_explained(self):
    loss = jax.jit(lambda images: scae.loss(_make(), images, _LABELS, None)[0])
    for value in (0.0, 1.0):
      self.assertTrue(np.isfinite(loss(jnp.full((2, *_SHAPE), value))))

  def test_flat_templates_are_counted(self):
    model = _make()
    self.assertEqual(float(scae.flat_templates(model)), 0)
    model.decoder.raw[...] = model.decoder.raw[...].at[0].set(0.3)
    self.assertEqual(float(scae.flat_templates(model)), 0.25)

  def test_jitter_without_a_key_is_nothing(self):
    logits = jnp.arange(3.0)
    np.testing.assert_array_equal(voting.jitter(logits, None), logits)


if __name__ == "__main__":
  absltest.main()
