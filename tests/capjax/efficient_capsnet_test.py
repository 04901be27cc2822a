"""Efficient-CapsNet against the paper, in NumPy.

How it trains is in `efficient_capsnet_test`.
"""

import functools
from unittest import mock

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import widths
from absl.testing import absltest, parameterized
from flax import nnx

from capjax import efficient_capsnet
from capjax.layers import tiling


def _batch(seed=0, size=3):
  return cases.batch(seed, size, cases.EFFICIENT_IMAGE_SHAPE)


def _perturbed(seed=0):
  return cases.perturbed(cases.efficient_capsnet(seed), seed)


@jax.jit
def _run(model, images, classes):
  """The output, an image of it, and the statistics that the call leaves."""
  output = model(images)
  drawn = model.decode(output.poses, classes)
  return output, drawn, nnx.state(model, nnx.BatchStat)


def _capsules_oracle(features, parameters):
  """Poses of the classes and coefficients from one example's last map."""
  kernel, bias = parameters["primary"]["kernel"], parameters["primary"]["bias"]
  numbers = [np.sum(features[..., f] * kernel[..., f]) for f in range(8)]
  numbers += bias
  parts = [oracles.exponential_squash(numbers[i : i + 4]) for i in (0, 4)]
  votes = np.array(
    [
      [part @ matrix for matrix in row]
      for part, row in zip(
        parts, parameters["classes"]["transforms"], strict=True
      )
    ]
  )
  coefficients = np.zeros((2, 3))
  for i in range(2):
    scores = [
      sum(votes[i, j] @ votes[k, j] for k in range(2)) / np.sqrt(5)
      for j in range(3)
    ]
    coefficients[i] = oracles.softmax(scores)
  coefficients += parameters["classes"]["route"]["priors"]
  poses = [
    oracles.exponential_squash(
      sum(coefficients[i, j] * votes[i, j] for i in range(2))
    )
    for j in range(3)
  ]
  return np.array(poses), coefficients


def _oracle(model, images, labels, *, training):
  """The paper's section 3 in float64, and Keras' batch normalisation."""
  parameters = jax.tree.map(np.float64, nnx.to_pure_dict(nnx.state(model)))
  maps, statistics = images, []
  for layer, stride in enumerate(cases.EFFICIENT_STRIDES):
    conv, norm = parameters["convs"][layer], parameters["norms"][layer]
    maps = oracles.convolve(maps, conv["kernel"], stride=stride)
    maps = np.maximum(0, maps + conv["bias"])
    mean, var = norm["mean"], norm["var"]
    if training:
      mean = np.mean(maps, axis=(0, 1, 2))
      var = np.mean((maps - mean) ** 2, axis=(0, 1, 2))
      kept = [
        0.99 * norm["mean"] + 0.01 * mean,
        0.99 * norm["var"] + 0.01 * var,
      ]
      statistics += kept
    else:
      statistics += [mean, var]
    maps = (maps - mean) / np.sqrt(var + 1e-3) * norm["scale"] + norm["bias"]
  capsules = [_capsules_oracle(x, parameters) for x in maps]
  poses, coefficients = (np.array(x) for x in zip(*capsules, strict=True))
  layers = parameters["decoder"]["layers"]
  drawn = [
    oracles.decode(pose, label, layers).reshape(cases.EFFICIENT_IMAGE_SHAPE)
    for pose, label in zip(poses, labels, strict=True)
  ]
  lengths = np.sqrt(np.sum(poses**2, axis=2))
  return (poses, lengths, coefficients), np.array(drawn), statistics


def check_matches_oracle(run, training=True, seed=0):
  model, (images, labels) = _perturbed(seed), _batch(seed)
  if not training:
    model.eval()
  output, drawn, statistics = run(model, images, labels)
  want, want_drawn, want_statistics = _oracle(
    model, images, labels, training=training
  )
  for name, got, value in zip(output._fields, output, want, strict=True):
    np.testing.assert_allclose(got, value, atol=1e-5, err_msg=name)
  np.testing.assert_allclose(drawn, want_drawn, atol=1e-5)
  got = jax.tree.leaves(statistics)
  for a, b in zip(got, want_statistics, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5)


def check_evaluation_takes_images_one_by_one(run):
  model, (images, labels) = _perturbed(), _batch()
  model.eval()
  want = run(model, images, labels)[:2]
  ones = [
    run(model, images[i : i + 1], labels[i : i + 1])[:2] for i in range(3)
  ]
  got = jax.tree.map(lambda *parts: jnp.concatenate(parts), *ones)
  chex.assert_trees_all_close(got, want, atol=1e-6)


def _with_call(call):
  """`_run` of a model with another way to the class capsules."""

  @jax.jit
  def run(model, images, classes):
    output = model.classes(call(model, images))
    drawn = model.decode(output.poses, classes)
    return output, drawn, nnx.state(model, nnx.BatchStat)

  return run


@_with_call
def _norm_before_relu(model, images):
  for conv, norm in zip(model.convs, model.norms, strict=True):
    images = jax.nn.relu(norm(conv(images)))
  return model.primary(images)


@_with_call
def _always_batch_statistics(model, images):
  for conv, norm in zip(model.convs, model.norms, strict=True):
    images = norm(jax.nn.relu(conv(images)), use_running_average=False)
  return model.primary(images)


@_with_call
def _parts_across_channels(model, images):
  """Makes a capsule of every second channel instead of four neighbours."""
  for conv, norm in zip(model.convs, model.norms, strict=True):
    images = norm(jax.nn.relu(conv(images)))
  order = np.arange(8).reshape(4, 2).T.reshape(-1)
  model.primary.kernel = nnx.Param(model.primary.kernel[...][..., order])
  model.primary.bias = nnx.Param(model.primary.bias[...][order])
  return model.primary(images[..., order])


def _without_priors(model, images, classes):
  model = nnx.clone(model)
  model.classes.route.priors[...] = jnp.zeros((2, 3))
  return _run(model, images, classes)


def _next_class_drawn(model, images, classes):
  return _run(model, images, (classes + 1) % 3)


class EfficientCapsNetTest(chex.TestCase):
  @parameterized.product(seed=(0, 1), training=(True, False))
  def test_matches_oracle(self, seed, training):
    check_matches_oracle(_run, training, seed)

  def test_evaluation_takes_images_one_by_one(self):
    check_evaluation_takes_images_one_by_one(_run)

  @parameterized.parameters(
    (check_matches_oracle, _norm_before_relu),
    (check_matches_oracle, _parts_across_channels),
    (check_matches_oracle, _without_priors),
    (check_matches_oracle, _next_class_drawn),
    (
      functools.partial(check_matches_oracle, training=False),
      _always_batch_statistics,
    ),
    (check_evaluation_takes_images_one_by_one, _always_batch_statistics),
  )
  @pytest.mark.long_after_first
  def test_broken_copy_fails(self, check, broken):
    with self.assertRaises(AssertionError):
      check(broken)

  def test_number_of_parameters(self):
    model = jax.eval_shape(
      lambda: efficient_capsnet.EfficientCapsNet(rngs=nnx.Rngs(0))
    )
    # Taps times channels in and out, and biases.
    convs = [25 * 32 + 32, 9 * 32 * 64 + 64, 9 * 64**2 + 64, 9 * 64 * 128 + 128]
    self.assertEqual(
      [cases.num_parameters(conv) for conv in model.convs], convs
    )
    self.assertEqual(
      cases.num_parameters(model.norms), 2 * (32 + 64 + 64 + 128)
    )
    self.assertEqual(cases.num_parameters(model.primary), 81 * 128 + 128)
    self.assertEqual(model.classes.transforms.size, 16 * 10 * 8 * 16)
    self.assertIsNone(model.classes.bias)
    self.assertEqual(model.classes.route.priors.size, 16 * 10)
    self.assertEqual(cases.num_parameters(model.decoder), 1_411_344)
    # The paper's 161K.
    self.assertEqual(cases.num_parameters(model) - 1_411_344, 161_824)
    # Keras counts them too, as not trainable.
    statistics = jax.tree.leaves(nnx.state(model, nnx.BatchStat))
    self.assertEqual(sum(x.size for x in statistics), 576)

  def test_shapes_of_the_paper(self):
    def run(images):
      model = efficient_capsnet.EfficientCapsNet(rngs=nnx.Rngs(0))
      output = model(images)
      return output, model.decode(output.poses, jnp.zeros(2, jnp.int32))

    images = jax.ShapeDtypeStruct((2, 28, 28, 1), jnp.float32)
    output, drawn = jax.eval_shape(run, images)
    chex.assert_shape(
      [*output, drawn], [(2, 10, 16), (2, 10), (2, 16, 10), (2, 28, 28, 1)]
    )

  @parameterized.parameters(1, 3)
  def test_evaluation_in_pieces_is_the_same(self, length):
    model, (images, labels) = _perturbed(), _batch(0, 7)
    model.eval()
    want = _run(model, images, labels)
    with mock.patch.object(tiling, "_PIECE", length * model.numbers_per_image):
      # Of a new function, since traces are kept.
      run = jax.jit(lambda *arguments: _run.__wrapped__(*arguments))
      lowered = run.lower(model, images, labels)
    self.assertGreater(lowered.as_text().count("stablehlo.while"), 0)
    got = lowered.compile()(model, images, labels)
    chex.assert_trees_all_close(got, want, atol=1e-6)

  def test_starts_as_the_official_code(self):
    model = efficient_capsnet.EfficientCapsNet(
      decoder_features=(), rngs=nnx.Rngs(0)
    )
    # He normal: variance 2 / (taps times channels in).
    fans = [25, 9 * 32, 9 * 64, 9 * 64, 16 * 10 * 8]
    kernels = [conv.kernel for conv in model.convs] + [model.classes.transforms]
    for kernel, fan in zip(kernels, fans, strict=True):
      values = np.array(kernel[...])
      np.testing.assert_allclose(np.std(values), np.sqrt(2 / fan), rtol=0.05)
    weights = np.array(model.primary.kernel[...])
    limit = np.sqrt(6 / (81 + 81 * 128))
    np.testing.assert_array_less(np.abs(weights), limit)
    np.testing.assert_allclose(np.std(weights), limit / np.sqrt(3), rtol=0.05)
    zeros = [*(conv.bias for conv in model.convs), model.primary.bias]
    for parameter in (*zeros, model.classes.route.priors):
      np.testing.assert_array_equal(parameter[...], 0)

  def test_models_of_the_same_widths_are_the_same_tree(self):
    chex.assert_trees_all_equal_structs(
      cases.efficient_capsnet(0), cases.efficient_capsnet(1)
    )

  def test_without_decoder(self):
    model = cases.efficient_capsnet(decoder_features=())
    self.assertIsNone(model.decoder)
    with self.assertRaisesRegex(ValueError, "no decoder"):
      model.decode(jnp.zeros((2, 3, 5)), jnp.zeros(2, jnp.int32))

  @widths.limits_of_float32
  @pytest.mark.long
  def test_bfloat16_stays_close(self):
    images, classes = _batch()
    half = cases.efficient_capsnet(dtype=jnp.bfloat16)
    chex.assert_type(jax.tree.leaves(half), jnp.float32)
    got, want = (
      _run(model, images, classes)
      for model in (half, cases.efficient_capsnet())
    )
    chex.assert_type(jax.tree.leaves(got), jnp.float32)
    chex.assert_trees_all_close(got, want, atol=0.03)
    self.assertGreater(np.max(np.abs(got[0].poses - want[0].poses)), 0)

  @parameterized.parameters(
    (dict(image_shape=(5, 12, 1)), "5x12 are too small .*smaller"),
    (dict(image_shape=(12, 5, 1)), "12x5 are too small"),
    (dict(part_size=3), "8 channels .*capsules of 3; give a multiple"),
    (dict(conv_strides=(1,)), r"\(1,\) must be as many"),
    (dict(conv_strides=(1, 0)), "conv_strides is 0; give at least 1"),
    (dict(conv_features=()), "one of each"),
  )
  def test_bad_arguments_are_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      cases.efficient_capsnet(**options)


if __name__ == "__main__":
  absltest.main()
