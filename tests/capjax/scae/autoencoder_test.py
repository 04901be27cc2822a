"""Tests of the stacked capsule autoencoder and its loss."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from flax import nnx

from capjax import scae
from capjax.scae import objects as object_capsules
from capjax.scae import voting
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


@jax.jit
def _explain(model, images, key):
  output = model(images, key=key)
  return output, model.decoder.log_prob(images, output.parts)


_loss = jax.jit(scae.loss)


def test_probes_read_the_presences_of_objects():
  """The posterior one reads how many parts each object explains."""
  model, images = _make(), _images(2)
  output, _ = _explain(model, images, None)
  for logits, probe, presences in (
    (output.prior_logits, model.prior_probe, output.objects.presence.max(-1)),
    (
      output.posterior_logits,
      model.posterior_probe,
      output.objects.posterior.sum(-1),
    ),
  ):
    kernel, bias = (np.float64(x[...]) for x in (probe.kernel, probe.bias))
    np.testing.assert_allclose(
      logits, np.float64(presences) @ kernel + bias, atol=1e-4
    )


def _loss_oracle(model, images, labels, key):
  """The terms of the loss, in float64 and by loops, of what the model says."""
  output, log_probs = _explain(model, images, key)
  objects = jax.tree.map(np.float64, output.objects)
  num_images, num_objects, num_parts = objects.presence.shape
  num_classes = output.prior_logits.shape[1]
  prior, posterior = np.zeros((2, num_images, num_objects))
  for b, k in np.ndindex(num_images, num_objects):
    prior[b, k] = max(objects.presence[b, k])
    posterior[b, k] = sum(objects.posterior[b, k]) / num_parts

  def entropy(masses):
    shares = [m / sum(masses) for m in masses]
    return -sum(p * np.log(p) for p in shares if p > 0)

  probes = 0.0
  for logits in (output.prior_logits, output.posterior_logits):
    for row, label in zip(np.float64(logits), labels, strict=True):
      chances = np.exp(row) / sum(np.exp(row))
      probes -= np.log(chances[int(label)]) / num_images
  return {
    "image_log_prob": sum(np.float64(log_probs)) / num_images,
    "part_log_prob": sum(objects.log_prob) / num_images,
    "dynamics": sum(x**2 for x in objects.dynamics.flat) / 2 / num_images,
    "prior_within": sum(
      (sum(row) - num_objects / num_classes) ** 2 for row in prior
    )
    / num_images,
    "prior_between": sum(
      (sum(column) - num_images / num_classes) ** 2 for column in prior.T
    )
    / num_objects,
    "posterior_within": sum(entropy(row) for row in posterior) / num_images,
    # Maximised, so that all objects are of use.
    "posterior_between": -entropy([sum(x) for x in posterior.T]),
    "probe_loss": probes,
  }


@functools.cache
def _loss_case():
  """Four images of three classes, five objects; and the terms of their loss."""
  arguments = (
    _make(num_objects=5),
    _images(4),
    jnp.array([0, 2, 1, 1]),
    jax.random.key(3),
  )
  return arguments, _loss_oracle(*arguments)


def check_loss_matches_oracle(loss):
  """Terms, and their sum with weights by which none is lost among others."""
  arguments, want = _loss_case()
  terms = ("part_log_prob", *scae.Weights._fields[1:])
  random = np.random.default_rng(0)
  for _ in range(2):
    shares = random.uniform(20, 100, len(terms)).tolist()
    weights = scae.Weights(
      *(s / abs(want[name]) for s, name in zip(shares, terms, strict=True))
    )
    value, got = loss(*arguments, weights=weights)
    total = -want["image_log_prob"] - weights.parts * want["part_log_prob"]
    for name in scae.Weights._fields[1:]:
      total += getattr(weights, name) * want[name]
    for name, expected in want.items():
      np.testing.assert_allclose(got[name], expected, rtol=1e-4, err_msg=name)
    np.testing.assert_allclose(got["loss"], total, rtol=1e-4)
    total += want["probe_loss"]
    np.testing.assert_allclose(value, total, rtol=1e-4)


# How the weights of wrong sums are made of those of the right one.
_FAULTS = {
  "parts_are_minimised": lambda w: w._replace(parts=-w.parts),
  "parts_of_all_images": lambda w: w._replace(parts=4 * w.parts),
  "dynamics_not_halved": lambda w: w._replace(dynamics=2 * w.dynamics),
  "dynamics_of_all_images": lambda w: w._replace(dynamics=4 * w.dynamics),
  "one_prior_weight": lambda w: w._replace(prior_between=w.prior_within),
  "posterior_within_is_maximised": lambda w: w._replace(
    posterior_within=-w.posterior_within
  ),
  "posterior_between_is_minimised": lambda w: w._replace(
    posterior_between=-w.posterior_between
  ),
}


def _broken_loss(model, images, labels, key, *, weights, fault):
  return _loss(model, images, labels, key, weights=_FAULTS[fault](weights))


def _loss_of_other_labels(model, images, labels, key, *, weights):
  return _loss(model, images, labels[::-1], key, weights=weights)


def _loss_of_other_presences(*arguments, weights):
  objects = object_capsules.Objects
  with mock.patch.object(objects, "prior_presence", objects.posterior_presence):
    # Not `_loss`, which has been traced.
    return jax.jit(lambda *x: scae.loss(*x, weights=weights))(*arguments)


def check_votes_follow_objects(kind, compose=geometry.compose):
  """Votes move with their object: V = P R of relations R that stay."""
  model, images = _make(kind=kind), _images()
  apply = jax.jit(lambda model: model(images).objects)
  before, voters = apply(model), model.objects.voters
  shift = np.zeros(voters.describe.bias.shape, np.float32)
  shift[:, :6] = np.random.default_rng(0).uniform(0.2, 0.5, shift[:, :6].shape)
  voters.describe.bias[...] += shift
  after = apply(model)
  for moved, start in zip(after[:2], before[:2], strict=True):
    least = jnp.min(jnp.max(jnp.abs(moved - start), axis=(-2, -1)))
    np.testing.assert_array_less(0.05, least)
  raw = voters.relations[...] + before.dynamics
  relations = geometry.pose_matrix(raw, kind)
  for objects in (before, after):
    inverse = geometry.invert(objects.poses)[:, :, None]
    np.testing.assert_allclose(
      compose(inverse, objects.votes), relations, rtol=1e-3, atol=1e-4
    )


def check_two_labels(loss):
  """Probes learn both classes; an image has twice as many objects."""
  model, images = _make(), _images()
  first, second = _LABELS, jnp.array([1, 0])
  both, *apart = (
    loss(model, images, labels, None)[1]
    for labels in (jnp.stack([first, second], axis=1), first, second)
  )
  probes = [terms["probe_loss"] for terms in apart]
  np.testing.assert_allclose(both["probe_loss"], np.mean(probes), rtol=1e-5)
  presence = np.float64(model(images).objects.prior_presence())
  share = 2 / 3  # of the objects in an image, and of images with an object
  within = np.mean((presence.sum(axis=1) - 3 * share) ** 2)
  between = np.mean((presence.sum(axis=0) - 2 * share) ** 2)
  np.testing.assert_allclose(both["prior_within"], within, rtol=1e-4)
  np.testing.assert_allclose(both["prior_between"], between, rtol=1e-4)


def _loss_of_first_labels(model, images, labels, key):
  return _loss(model, images, labels.reshape(len(labels), -1)[:, 0], key)


class SCAETest(parameterized.TestCase):
  @parameterized.parameters(
    dict(),
    dict(nonlinearity="relu1", normalise="all"),
    dict(mixing="coupled", kind="similarity", masking="near_hard"),
    dict(shape=(23, 23, 3), edges=True),
  )
  @pytest.mark.long_after_first
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
  @pytest.mark.long
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

  @pytest.mark.long
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

  @pytest.mark.long
  def test_objects_reach_the_encoder_through_features_alone(self):
    model = _make()
    gradient = _gradient(model, "part_log_prob")
    # Objects train what colours parts, but nothing else of their rendering.
    for name in ("raw", "alphas", "background", "background_logit"):
      self.assertEqual(_size(getattr(gradient.decoder, name)), 0, name)
    self.assertGreater(_size(gradient.encoder.convs[0].kernel), 0)
    # Of the maps, those of poses and presences, [part, (map, pose, presence,
    # features)], get nothing.
    maps = gradient.encoder.maps.kernel[...].reshape(4, 4, 1 + 6 + 1 + 2)
    np.testing.assert_array_equal(maps[..., 1:8], 0)
    self.assertGreater(jnp.max(jnp.abs(maps[..., 8:])), 0)

  @pytest.mark.long
  def test_images_do_not_reach_the_objects(self):
    gradient = _gradient(_make(), "image_log_prob")
    self.assertEqual(_size(nnx.state(gradient.objects, nnx.Param)), 0)
    self.assertGreater(_size(gradient.decoder.raw), 0)

  @pytest.mark.long
  def test_probes_teach_nothing_else(self):
    gradient = _gradient(_make(), "probe_loss")
    for part in (gradient.encoder, gradient.decoder, gradient.objects):
      self.assertEqual(_size(nnx.state(part, nnx.Param)), 0)
    self.assertGreater(_size(gradient.prior_probe.kernel), 0)

  def test_without_labels_the_probes_alone_are_left_out(self):
    model = _make()
    want = scae.loss(model, _images(), _LABELS, None)[1]
    got, terms = scae.loss(model, _images(), None, None)
    np.testing.assert_allclose(got, want["loss"], rtol=1e-6)
    assert terms["probe_loss"] == 0

  def test_loss_matches_oracle(self):
    check_loss_matches_oracle(_loss)

  @parameterized.parameters(
    *(functools.partial(_broken_loss, fault=fault) for fault in _FAULTS),
    _loss_of_other_labels,
    _loss_of_other_presences,
  )
  @pytest.mark.long
  def test_broken_loss_fails(self, broken):
    with self.assertRaises(AssertionError):
      check_loss_matches_oracle(broken)

  @parameterized.parameters("affine", "similarity")
  def test_moving_an_object_moves_its_votes(self, kind):
    check_votes_follow_objects(kind)

  def test_votes_of_relations_first_fail(self):
    compose = geometry.compose
    with (
      mock.patch.object(geometry, "compose", lambda a, b: compose(b, a)),
      self.assertRaises(AssertionError),
    ):
      check_votes_follow_objects("affine", compose)

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

  def test_templates_of_one_number_are_finite(self):
    model = _make(num_parts=2, template_size=1)
    np.testing.assert_array_equal(model.decoder.raw[...], 0)

  def test_sizes_of_zero_are_refused_by_the_names_of_the_model(self):
    for name in ("template_size", "encoder_features"):
      with self.assertRaisesRegex(ValueError, f"^{name} is 0; give"):
        _make(**{name: 0})

  @pytest.mark.long
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

  @pytest.mark.long
  def test_blank_images_are_explained(self):
    loss = jax.jit(lambda images: scae.loss(_make(), images, _LABELS, None)[0])
    for value in (0.0, 1.0):
      self.assertTrue(np.isfinite(loss(jnp.full((2, *_SHAPE), value))))

  @pytest.mark.long
  def test_flat_templates_are_counted(self):
    model = _make()
    self.assertEqual(float(scae.flat_templates(model)), 0)
    model.decoder.raw[...] = model.decoder.raw[...].at[0].set(0.3)
    self.assertEqual(float(scae.flat_templates(model)), 0.25)

  def test_pixels_are_shared_out_among_objects(self):
    model, images = _make(), _images()
    output = jax.jit(lambda model, x: model(x))(model, images)
    means, masks = jax.jit(scae.object_masks)(model, images)
    explained = jax.jit(model.decoder.explain)(images, output.parts)
    np.testing.assert_allclose(means, explained.mean, atol=1e-5)
    want = np.zeros(masks.shape)
    for b, m in np.ndindex(2, 4):
      best = np.argmax(output.objects.posterior[b, :, m])
      want[b, best] += np.mean(explained.coefficients[b, m], axis=-1)
    np.testing.assert_allclose(masks, want, atol=1e-5)

  def test_images_of_two_objects(self):
    check_two_labels(_loss)
    with self.assertRaises(AssertionError):
      check_two_labels(_loss_of_first_labels)

  def test_jitter_without_a_key_is_nothing(self):
    logits = jnp.arange(3.0)
    np.testing.assert_array_equal(voting.jitter(logits, None), logits)


if __name__ == "__main__":
  absltest.main()
