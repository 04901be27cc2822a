"""Convolution by tiles: its precision, and the pieces that it processes."""

import functools
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import widths
from absl.testing import absltest, parameterized

from capjax.layers import convolution, platforms, tile_transforms, tiling


@functools.cache
def _case(taps, stride, filters):
  """Two images, as they are after ReLU, a kernel, and what float64 gives."""
  keys = jax.random.split(jax.random.key(0))
  images = jax.nn.relu(jax.random.normal(keys[0], (2, 20, 20, filters)))
  kernel = jax.random.normal(keys[1], (taps, taps, filters, filters))
  windows = np.lib.stride_tricks.sliding_window_view(
    np.float64(images), (taps, taps), (1, 2)
  )[:, ::stride, ::stride]
  shape = windows.shape[:3]
  want = np.einsum(
    "nf,fd->nd",
    windows.transpose(0, 1, 2, 4, 5, 3).reshape(np.prod(shape), -1),
    np.float64(kernel).reshape(-1, filters),
    optimize=True,
  )
  return images, kernel, want.reshape(*shape, filters)


def check_precise(form, taps, stride, filters, limit):
  images, kernel, want = _case(taps, stride, filters)
  form = jax.jit(functools.partial(form, stride=stride))
  error = np.float64(form(images, kernel)) - want
  error = np.sqrt(np.mean(error**2) / np.mean(want**2))
  np.testing.assert_array_less(error, limit)


def check_precise_on_primary_capsules(form):
  check_precise(form, 9, 2, 256, 1e-5)


def check_precise_on_small_kernels(form):
  check_precise(form, 3, 1, 64, 1e-6)


def check_pieces(in_pieces, count=7):
  """Every image once and in order, whether or not pieces are full."""
  images = jax.random.normal(jax.random.key(0), (count, 2, 2, 1))
  lengths = []

  def function(images):
    lengths.append(len(images))
    return jnp.sin(images[:, 0])

  with mock.patch.object(tiling, "_PIECE", 12):
    got = in_pieces(function, images, spread=4, weights=0)
  chex.assert_trees_all_close(got, jnp.sin(images[:, 0]), atol=1e-6)
  np.testing.assert_array_less(max(lengths), 4)


def _half_precision(images, kernel, *, stride):
  kernel = kernel.astype(jnp.bfloat16).astype(jnp.float32)
  return tiling.spectral(images, kernel, stride=stride)


def _folded(images, kernel, *, stride):
  return tiling.spectral(images, kernel, stride=stride, tile=10, in_turn=True)


def _transformed(images, kernel, *, stride):
  transformed = tiling.transform_kernel(kernel, stride=stride)
  return tiling.spectral_of_transformed(
    images, kernel, stride=stride, transformed=transformed
  )


def _of_one_sign(images, kernel, *, stride):
  """Quarters of a tile added, never subtracted."""
  made = tile_transforms.frequencies(10, (5, 5), True)
  made = made._replace(signs=np.ones_like(made.signs))
  with mock.patch.object(tile_transforms, "frequencies", return_value=made):
    return _folded(images, kernel, stride=stride)


def _whole_numbers(images, kernel, *, stride):
  """Winograd's transform at the points of textbooks."""
  tile_transforms.evaluations.cache_clear()
  with mock.patch.object(
    tile_transforms, "_POINTS", (0.0, 1.0, -1.0, 2.0, -2.0)
  ):
    outputs = tiling.winograd(images, kernel, stride=stride)
  tile_transforms.evaluations.cache_clear()
  return outputs


def _last_piece_dropped(function, images, **sizes):
  outputs = tiling.in_pieces(function, images[: len(images) // 3 * 3], **sizes)
  return jnp.pad(outputs, ((0, len(images) % 3), (0, 0), (0, 0)))


def _in_one_piece(function, images, **sizes):
  del sizes
  return function(images)


class TilingTest(chex.TestCase):
  @parameterized.parameters(
    tiling.spectral, _folded, _transformed, convolution.conv2d
  )
  def test_precise_on_primary_capsules(self, form):
    check_precise_on_primary_capsules(form)

  @parameterized.parameters(tiling.winograd, convolution.conv2d)
  def test_precise_on_small_kernels(self, form):
    check_precise_on_small_kernels(form)

  @parameterized.parameters(1, 3, 6, 7, 8)
  def test_pieces(self, count):
    check_pieces(tiling.in_pieces, count)

  @parameterized.parameters(2, 6, 14, 7)
  def test_pieces_of_two_devices(self, count):
    """Each piece has as many images of each device; 7 cannot be shared."""

    def in_pieces(function, images, **sizes):
      def of_both(images):
        halves = jnp.split(images, 2) if count % 2 == 0 else [images]
        return jnp.concatenate([function(half) for half in halves])

      with platforms.known("cpu", 2):
        return tiling.in_pieces(of_both, images, **sizes)

    check_pieces(in_pieces, count)

  @parameterized.parameters(
    (check_precise_on_primary_capsules, _half_precision),
    (check_precise_on_primary_capsules, _of_one_sign),
    (check_precise_on_small_kernels, _whole_numbers),
  )
  @widths.samples_of_float32
  def test_broken_copy_fails(self, check, broken):
    with self.assertRaises(AssertionError):
      check(broken)

  @parameterized.parameters(_last_piece_dropped, _in_one_piece)
  def test_broken_pieces_fail(self, broken):
    with self.assertRaises(AssertionError):
      check_pieces(broken)

  @parameterized.parameters((128, True), (64, True), (32, False), (1, False))
  def test_large_batches_are_folded(self, count, folded):
    images = jnp.zeros((count, 20, 20, 8))
    sizes = tiling._sizes(images, jnp.zeros((9, 9, 8, 256)), 2)
    self.assertEqual(tiling._is_folded(10, False, *sizes), folded)
    self.assertTrue(tiling._is_folded(10, True, *sizes))
    self.assertFalse(tiling._is_folded(8, True, *sizes))

  def test_devices_fold_for_their_share(self):
    sizes = tiling._sizes(
      jnp.zeros((128, 20, 20, 8)), jnp.zeros((9, 9, 8, 256)), 2
    )
    for devices, folded in ((2, True), (4, False)):
      with platforms.known("cpu", devices):
        self.assertEqual(tiling._is_folded(10, False, *sizes), folded)

  @parameterized.parameters(
    (128, False, 16, 0), (128, True, 4, 1), (1, False, 4, 0), (1, True, 4, 1)
  )
  def test_groups_of_folded_tiles_are_taken_apart(
    self, count, in_turn, products, loops
  ):
    def convolve(images, kernel):
      return tiling.spectral(images, kernel, stride=2, tile=10, in_turn=in_turn)

    images = jax.ShapeDtypeStruct((count, 20, 20, 8), jnp.float32)
    kernel = jax.ShapeDtypeStruct((9, 9, 8, 256), jnp.float32)
    traced = str(jax.make_jaxpr(convolve)(images, kernel))
    self.assertEqual(traced.count("dot_general["), products)
    self.assertEqual(traced.count("scan["), loops)

  def test_large_kernels_have_no_winograd_form(self):
    images = jnp.zeros((1, 20, 20, 1))
    for taps, stride, fits in [(6, 1, True), (7, 1, False), (7, 2, True)]:
      kernel = jnp.zeros((taps, 1, 1, 1))
      cost = tiling.winograd_cost(images, kernel, stride=stride)
      self.assertEqual(np.isfinite(cost), fits)


if __name__ == "__main__":
  absltest.main()
