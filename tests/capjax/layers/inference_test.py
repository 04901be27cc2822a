"""Kernels that are transformed once: the same outputs and derivatives."""

import functools
import os
import tempfile
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import saved_cases
from absl.testing import absltest, parameterized
from flax import nnx

import capjax
from capjax import layers, saved
from capjax.layers import convolution, inference, platforms, tiling


def _conv(dtype=jnp.float32, **options):
  """A layer whose kernel is just large enough to be transformed."""
  sizes = (64, 256, 8)
  return layers.Conv(*sizes, stride=2, dtype=dtype, rngs=nnx.Rngs(0), **options)


def _images(count, dtype=jnp.float32):
  shape = (count, 16, 16, 64)
  return jax.nn.relu(jax.random.normal(jax.random.key(1), shape, dtype))


def check_same_outputs(transform_kernels, count=40, **options):
  layer = _conv(**options)
  images = _images(count)
  got = transform_kernels(layer)(images)
  want = layer(images)
  chex.assert_trees_all_close(got, want, rtol=1e-5, atol=1e-5)
  chex.assert_type(got, layer.dtype)


def check_same_derivatives(transform_kernels):
  """By images and by the kernel, which are those of the model."""
  layer = _conv()
  images = _images(24)

  def loss(kernel, images, layer):
    graph, state = nnx.split(layer)
    state["kernel"] = state["kernel"].replace(kernel)
    return jnp.sum(jnp.sin(nnx.merge(graph, state)(images)))

  derivatives = jax.jit(jax.grad(loss, (0, 1)))
  got, want = (
    derivatives(model.kernel[...], images, model)
    for model in (transform_kernels(layer), layer)
  )
  chex.assert_trees_all_close(got, want, rtol=1e-4, atol=1e-4)


def _of_swapped_taps(layer):
  copy = inference.transform_kernels(layer)
  kernel = layer.kernel[...].swapaxes(0, 1)
  copy.transformed[...] = tiling.transform_kernel(kernel, stride=2)
  return copy


def _of_zero_kernel(layer):
  copy = inference.transform_kernels(layer)
  copy.kernel[...] = 0 * copy.kernel[...]
  return copy


class InferenceTest(chex.TestCase):
  @parameterized.product(count=(1, 8, 40), padding=("VALID", "SAME"))
  def test_same_outputs(self, count, padding):
    check_same_outputs(inference.transform_kernels, count, padding=padding)

  def test_same_outputs_in_bfloat16(self):
    layer = _conv(jnp.bfloat16)
    images = _images(40, jnp.bfloat16)
    got = inference.transform_kernels(layer)(images)
    chex.assert_type(got, jnp.bfloat16)
    got, want = np.float32(got), np.float32(layer(images))
    np.testing.assert_allclose(got, want, atol=0.01 * np.abs(want).max())

  def test_same_derivatives(self):
    check_same_derivatives(inference.transform_kernels)

  def test_faults_are_found(self):
    with self.assertRaises(AssertionError):
      check_same_outputs(_of_swapped_taps)
    with self.assertRaises(AssertionError):
      check_same_derivatives(_of_zero_kernel)

  def test_uses_the_transformed_kernel_where_it_is_faster(self):
    """A single image is faster to convolve by the kernel itself."""
    layer = _of_swapped_taps(_conv())
    for count, is_used in ((1, False), (40, True)):
      got, want = layer(_images(count)), _conv()(_images(count))
      self.assertEqual(not np.allclose(got, want, atol=1e-3), is_used)

  def test_inside_jit(self):
    layer, images = _conv(), _images(8)

    @jax.jit
    def outputs(layer, images):
      return inference.transform_kernels(layer)(images)

    got, want = outputs(layer, images), layer(images)
    chex.assert_trees_all_close(got, want, rtol=1e-5, atol=1e-5)

  def test_leaves_the_model_alone(self):
    layer = _conv()
    copy = inference.transform_kernels(layer)
    self.assertIsNone(layer.transformed)
    self.assertIsInstance(layer.kernel, nnx.Param)
    self.assertIs(copy.kernel[...], layer.kernel[...])

  def test_no_optimiser_finds_the_kernel(self):
    copy = inference.transform_kernels(_conv())
    self.assertEqual(list(nnx.state(copy, nnx.Param)), ["bias"])

  def test_again(self):
    once = inference.transform_kernels(_conv())
    twice = inference.transform_kernels(once)
    self.assertIs(twice.transformed[...], once.transformed[...])

  def test_small_kernels_are_not_transformed(self):
    layer = layers.Conv(64, 128, 8, stride=2, rngs=nnx.Rngs(0))
    self.assertIsNone(inference.transform_kernels(layer).transformed)
    layer = layers.Conv(256, 256, 3, rngs=nnx.Rngs(0))
    self.assertIsNone(inference.transform_kernels(layer).transformed)

  def test_refuses_a_transform_of_another_kernel(self):
    kernel, images = _conv().kernel[...], _images(2)
    transformed = tiling.transform_kernel(kernel, stride=2)
    convolve = functools.partial(convolution.conv2d, images, stride=2)
    few = slice(16)  # filters, for which no kernel is transformed
    for of, other in (
      (kernel, transformed[:-1]),
      (kernel, transformed.astype(jnp.bfloat16)),
      (kernel[..., few], transformed[:, few]),
    ):
      with self.assertRaisesRegex(ValueError, "what tiling.transform_kernel"):
        convolve(of, transformed=other)

  def test_stacked_layers_are_left_alone(self):
    @nnx.vmap(in_axes=0, out_axes=0)
    def make(key):
      return layers.Conv(64, 256, 8, stride=2, rngs=nnx.Rngs(key))

    stacked = make(jax.random.split(jax.random.key(0), 8))
    self.assertIsNone(inference.transform_kernels(stacked).transformed)

  def test_other_platforms_transform_nothing(self):
    with platforms.known("gpu"):
      copy = inference.transform_kernels(_conv())
    self.assertIsNone(copy.transformed)

  @parameterized.parameters((4, 16, 1), (4, 15, 0), (2, 16, 0))
  def test_many_batches_are_predicted_by_a_copy(self, size, count, times):
    trained = saved_cases.trained("capsnet")
    shape = (count, *saved_cases.image_shape("capsnet"))
    with mock.patch.object(
      inference, "transform_kernels", wraps=inference.transform_kernels
    ) as counted:
      trained.predict(np.zeros(shape, np.uint8), batch_size=size)
    self.assertEqual(counted.call_count, times)

  def test_a_copy_is_not_written(self):
    """Its card would describe another model."""
    trained = saved_cases.trained("capsnet")
    model = nnx.clone(trained.model)
    model.primary.conv.transformed = inference.Frozen(jnp.zeros((6, 16, 8)))
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    path = os.path.join(folder.name, "x.safetensors")
    with self.assertRaisesRegex(ValueError, "besides primary.conv.transformed"):
      capjax.save(saved.TrainedModel(model, trained.card), path)
    self.assertFalse(os.path.exists(path))

  def test_capsnet(self):
    """Only the primary capsules of the full network have a large kernel."""
    model = capjax.CapsNet(rngs=nnx.Rngs(0))
    copy = inference.transform_kernels(model)
    self.assertIsNone(copy.conv.transformed)
    chex.assert_shape(copy.primary.conv.transformed[...], (148, 256, 1024))
    images = jax.random.uniform(jax.random.key(0), (8, 28, 28, 1))
    got, want = (x(images).poses for x in (copy, model))
    chex.assert_trees_all_close(got, want, atol=1e-5)


if __name__ == "__main__":
  absltest.main()
