"""CapsNet with a residual front and convolutional capsules of every routing."""

import functools

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from capjax import layers, losses
from capjax.kernels import checks
from capjax.layers import routers


def deep(depth=1, **options):
  """6x6 primary capsules of 3 types, and windows of 2x2."""
  options = {
    "residual_features": (6,),
    "primary_kernel": 1,
    "primary_stride": 1,
    "primary_scale": 1.0,
    "image_shape": (10, 9, 2),
    "conv_capsules": (3, 2, 4)[:depth],
    "conv_capsules_kernel": 2,
    "decoder_features": (),
    **options,
  }
  return cases.capsnet(**options)


def batch():
  return cases.batch(shape=(10, 9, 2))


@jax.jit
@functools.partial(jax.value_and_grad, has_aux=True)
def _loss(model, images, labels):
  output = model(images)
  present = losses.one_hot(labels, output.activations.shape[1])
  return jnp.mean(losses.margin_loss(output.activations, present)), output


def check_trains(model):
  images, labels = batch()
  (value, output), gradients = _loss(cases.perturbed(model), images, labels)
  chex.assert_shape(output.poses, (4, 3, 5))
  chex.assert_shape(output.activations, (4, 3))
  assert output.coefficients.shape[::2] == (4, 3)
  chex.assert_tree_all_finite((value, output, gradients))
  for layer in (gradients.residual, gradients.primary, *gradients.hidden):
    assert any(np.any(leaf) for leaf in jax.tree.leaves(layer))


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("name", routers.NAMES)
@pytest.mark.long_after_first
def test_every_routing_at_every_depth(name, depth):
  model = deep(depth, routing=name)
  assert len(model.hidden) == depth
  check_trains(model)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.long_after_first
def test_competition_over_the_grid(depth):
  model = deep(depth, conv_competition="grid")
  assert all(isinstance(x, layers.GridCaps) for x in model.hidden)
  check_trains(model)


def test_the_front_and_the_layers_follow_each_other():
  model = cases.perturbed(deep(2, hidden_capsules=(6,), routing="em"))
  images, _ = batch()

  @jax.jit
  def both(model, images):
    features = jax.nn.relu(model.residual(jax.nn.relu(model.conv(images))))
    found = [(model.primary(features), None)]
    for layer in model.hidden:
      found.append(layer(*found[-1])[:2])
    return found, model.classes(*found[-1]), model.capsules(images)

  want, output, got = both(model, images)
  chex.assert_trees_all_close(got, want, atol=1e-6)
  chex.assert_trees_all_close(jax.jit(type(model).__call__)(model, images),
                              output, atol=1e-5)  # fmt: skip
  grids = [(4, 4), (3, 3), (2, 2)]
  for (poses, _), grid, types in zip(got, grids, (3, 3, 2), strict=False):
    assert poses.shape == (4, *grid, types, 4)
  assert got[-1][0].shape == (4, 6, 5)


def test_without_depth_nothing_is_added():
  options = dict(residual_features=(), conv_capsules=(), residual_blocks=3)
  one, other = cases.capsnet(), cases.capsnet(**options)
  assert one.residual is None and one.hidden is None
  chex.assert_trees_all_equal(nnx.state(one), nnx.state(other))


@pytest.mark.parametrize(
  ("options", "words"),
  [
    (dict(conv_competition="row"), "conv_competition is 'row'; give window or"),
    (dict(conv_competition="grid", conv_capsules=()), "'grid' and conv_capsul"),
    (dict(decoder_init="x", decoder_features=()), "decoder_init is 'x'; give"),
    (dict(residual_blocks=0, residual_features=()), "residual_blocks is 0"),
    (dict(conv_competition="grid", leaky=True), "leaky is True, and layers of"),
    (dict(conv_capsules=(3, 0)), "conv_capsules is 0; give at least 1"),
    (dict(conv_capsules_kernel=0), "conv_capsules_kernel is 0; give at least"),
    (dict(residual_features=(0,)), "residual_features is 0; give at least 1"),
  ],
)
def test_options_that_do_not_fit_are_refused(options, words):
  with pytest.raises(ValueError, match=words):
    jax.eval_shape(functools.partial(deep, **options))


@pytest.mark.parametrize(
  ("options", "words"),
  [
    (dict(conv_capsules_kernel=5), "4x4 primary capsules is too small for 1"),
    (dict(residual_features=(4, 4, 4), primary_kernel=2), "are too small for"),
  ],
)
def test_images_that_are_too_small_are_refused(options, words):
  with pytest.raises(checks.ImageShapeError, match=words):
    deep(**options)


def test_bfloat16_stays_close():
  images, _ = batch()
  got, want = (
    jax.jit(lambda model, x: model(x).poses)(
      cases.perturbed(deep(1, dtype=dtype)), images
    )
    for dtype in (jnp.bfloat16, jnp.float32)
  )
  assert 0 < np.max(np.abs(got - want)) < 0.1
