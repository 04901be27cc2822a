"""Stacked capsule autoencoders without some part change in that part alone."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from flax import nnx

from capjax import saved, scae
from capjax.exporting import graphs
from capjax.scae import objects as object_capsules
from capjax.scae import parts as part_capsules
from kernels import geometry

_SHAPE = (28, 27, 1)  # of which the convolutions leave 2x2
_COUNTS = dict(num_parts=4, num_objects=3)
_ABLATIONS = {
  "no_features": {"num_features": 0},
  "no_deformations": {"deformations": False},
  "mlp": {"object_encoder": "mlp"},
  "conv": {"part_encoder": "conv"},
  "linear": {"part_encoder": "linear"},
  "pixels": {"part_encoder": "pixels"},
}


def _make(**options):
  options = {
    **_COUNTS, "template_size": 5, "num_features": 2, "encoder_features": 4,
    **options,
  }  # fmt: skip
  return scae.SCAE(_SHAPE, 3, **options, rngs=nnx.Rngs(0))


def _images():
  return jax.random.uniform(jax.random.key(1), (2, *_SHAPE))


@functools.cache
def _encoder(kind):
  return part_capsules.PartEncoder(
    _SHAPE, 4, num_features=2, width=5, kind=kind, rngs=nnx.Rngs(0)
  )


def _convolved(encoder, images):
  for conv in encoder.convs:
    images = jax.nn.relu(conv(images))
  return np.float64(images)


def _shapes(model):
  state = nnx.to_flat_state(nnx.state(model, nnx.Param))
  return {path: leaf[...].shape for path, leaf in state}


def _check_parts(parts, numbers):
  """Parts are made of these numbers [B M pose+1+F], as the encoder's are."""
  numbers = np.reshape(numbers, (2, 4, 6 + 1 + 2))
  raw, logits, features = np.split(np.float32(numbers), [6, 7], axis=-1)
  want = geometry.pose_matrix(jnp.array(raw))
  np.testing.assert_allclose(parts.poses, want, rtol=1e-4, atol=1e-4)
  odds = np.exp(-logits[..., 0])
  np.testing.assert_allclose(parts.presence, 1 / (1 + odds), rtol=1e-4)
  np.testing.assert_allclose(parts.features, features, rtol=1e-3, atol=1e-5)


def check_conv_takes_means(apply):
  encoder, images = _encoder("conv"), _images()
  found = _convolved(encoder, images)
  kernel = np.float64(encoder.maps.kernel[...])[0, 0]
  maps = np.zeros((2, kernel.shape[1]))
  for y, x in np.ndindex(*found.shape[1:3]):
    maps += (found[:, y, x] + np.float64(encoder.bias[y, x])) @ kernel
  assert found.shape[1:3] == (2, 2)
  _check_parts(apply(encoder, images), maps / 4)


def test_conv_takes_means_over_positions():
  check_conv_takes_means(lambda encoder, images: encoder(images))


def test_sums_over_positions_fail():
  def broken(encoder, images):
    with mock.patch.object(jnp, "mean", jnp.sum):
      return encoder(images)

  with pytest.raises(AssertionError):
    check_conv_takes_means(broken)


@pytest.mark.parametrize("kind", ["linear", "pixels"])
def test_dense_encoders_read_all_positions(kind):
  encoder, images = _encoder(kind), _images()
  found = _convolved(encoder, images)
  assert found.shape[1:] == (_SHAPE if kind == "pixels" else (2, 2, 5))
  kernel = np.float64(encoder.dense.kernel[...])
  assert kernel.shape == (np.prod(found.shape[1:]), 4 * 9)
  _check_parts(encoder(images), found.reshape(2, -1) @ kernel)


def test_pixels_may_be_few():
  encoder = part_capsules.PartEncoder(
    (8, 8, 1), 3, kind="pixels", rngs=nnx.Rngs(0)
  )
  assert encoder(jnp.ones((1, 8, 8, 1))).poses.shape == (1, 3, 3, 3)


@functools.cache
def _capsules(**options):
  return object_capsules.ObjectCapsules(7, 4, 3, **options, rngs=nnx.Rngs(0))


def _tokens():
  random = np.random.default_rng(0)
  return jnp.array(random.normal(size=(2, 4, 7)), jnp.float32)


def test_mlp_reads_all_parts_in_order():
  network = _capsules(encoder="mlp").voters.transformer
  tokens = _tokens()
  first, second = (
    np.float64(x.kernel[...]) for x in (network.hidden, network.output)
  )
  hidden = np.maximum(np.float64(tokens).reshape(2, -1) @ first, 0)
  want = (hidden @ second).reshape(2, 3, 256)
  got = network(tokens, jnp.ones((2, 4)))
  np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)
  moved = network(tokens[:, ::-1], jnp.ones((2, 4)))
  assert jnp.max(jnp.abs(moved - got)) > 0.01


def _relations(voters):
  """[B K M 3 3], parts in the frame of their objects."""
  found = voters(_tokens(), jnp.full((2, 4), 0.5))
  inverse = geometry.invert(found.poses)[:, :, None]
  return found, geometry.compose(inverse, found.votes)


def test_without_deformations_relations_are_those_of_all_images():
  voters = _capsules(deformations=False).voters
  found, relations = _relations(voters)
  want = geometry.pose_matrix(voters.relations[...], voters.kind)
  for image in relations:
    np.testing.assert_allclose(image, want, rtol=1e-3, atol=1e-3)
  assert not found.dynamics.any()
  # Objects move, and their parts with them.
  assert jnp.min(jnp.max(jnp.abs(found.poses[0] - found.poses[1]), (1, 2))) > 0
  _, deformed = _relations(_capsules().voters)
  assert jnp.max(jnp.abs(deformed[0] - deformed[1])) > 0.01


def test_without_deformations_nothing_else_changes():
  """It is the whole model in which deformations are 0."""
  whole, less = _capsules(), _capsules(deformations=False)
  whole, less = nnx.clone(whole), nnx.clone(less)
  whole.voters.vary.kernel[...] *= 0
  given = nnx.to_flat_state(nnx.state(whole))
  known = [pair for pair in given if "vary" not in pair[0]]
  nnx.update(less, nnx.from_flat_state(known))
  arguments = _tokens(), jnp.full((2, 4), 0.5)
  for ours, theirs in zip(
    less.voters(*arguments), whole.voters(*arguments), strict=True
  ):
    np.testing.assert_array_equal(ours, theirs)


def test_without_features_templates_keep_their_intensity():
  model = _make(num_features=0)
  features = jnp.zeros((2, 4, 0))
  np.testing.assert_array_equal(model.decoder.colors(features), 1)
  colored = set(_shapes(_make())) - set(_shapes(model))
  assert {path[:2] for path in colored} == {
    ("decoder", "hidden"), ("decoder", "color")
  }  # fmt: skip
  # Pose, absence and a template of 5x5 are what objects know of a part.
  tokens = model.objects.voters.transformer.embed.kernel.shape[0]
  assert tokens == 6 + 1 + 25


def test_parameters_that_an_ablation_has_besides():
  """Of others, with features, at most the shapes of one layer differ."""
  whole = _shapes(_make())
  changed = {
    "no_deformations": set(),
    "mlp": {"hidden", "output"},
    "conv": set(),
    "linear": {"dense"},
    "pixels": {"dense"},
  }
  for name, layers in changed.items():
    besides = set(_shapes(_make(**_ABLATIONS[name]))) - set(whole)
    assert {path[-2] for path in besides} == layers, name


@pytest.mark.parametrize("name", _ABLATIONS)
@pytest.mark.long_after_first
def test_loss_and_gradient_are_finite(name):
  model, images = _make(**_ABLATIONS[name]), _images()

  @jax.jit
  @functools.partial(jax.value_and_grad, allow_int=True, has_aux=True)
  def gradient(model):
    key = jax.random.key(0)
    return scae.loss(model, images, jnp.array([0, 2]), key)

  (value, terms), gradients = gradient(model)
  assert np.isfinite(value)
  if name == "no_deformations":
    assert terms["dynamics"] == 0
  found = nnx.to_flat_state(nnx.state(gradients, nnx.Param))
  for path, x in found:
    assert np.isfinite(x[...]).all(), path


@pytest.mark.long
def test_without_features_objects_teach_the_encoder_nothing():
  @jax.jit
  @functools.partial(jax.grad, allow_int=True)
  def gradient(model):
    terms = scae.loss(model, _images(), jnp.array([0, 2]), None)[1]
    return terms["part_log_prob"]

  found = nnx.state(gradient(_make(num_features=0)), nnx.Param)
  for x in jax.tree.leaves(found["encoder"]):
    np.testing.assert_array_equal(x, 0)


def test_decoders_without_features_are_exported():
  trained = saved.TrainedModel(_make(num_features=0), {})
  graph = graphs.graph(trained, "decoder")
  assert graph.inputs["features"].shape == (4, 0)
  assert graph.outputs["images"].shape == _SHAPE


@pytest.mark.parametrize(
  "options, message",
  [
    ({"part_encoder": "dense"}, "part_encoder='dense'; pass 'attention'"),
    ({"object_encoder": "gru"}, "object_encoder='gru'; pass 'set_transformer'"),
    (
      {"object_encoder": "mlp", "masking": "none"},
      "masking is 'none'; give log_presence or near_hard",
    ),
    ({"num_features": -1}, "num_features is -1; give at least 0"),
  ],
)
def test_unknown_options_are_refused(options, message):
  jaxtyping.config.update("jaxtyping_disable", True)
  try:
    with pytest.raises(ValueError, match=message):
      _make(**options)
  finally:
    jaxtyping.config.update("jaxtyping_disable", False)
