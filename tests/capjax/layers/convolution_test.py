"""Every form of the convolution against loops, and against each other.

How precise the tiled forms are is in `tiling_test`.
"""

import functools
import inspect
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import oracles
from absl.testing import absltest, parameterized
from jax.test_util import check_grads

from capjax.layers import convolution, tile_transforms, tiling

# Images [B H W C], kernel [kH kW D], stride.
_CASES = {
  "plain": ((2, 6, 6, 2), (3, 3, 3), 1),
  "strided": ((2, 9, 9, 2), (3, 3, 2), 2),
  "does_not_divide": ((1, 10, 8, 2), (3, 3, 2), 3),
  "not_square": ((2, 7, 9, 1), (2, 4, 3), 2),
  "one_tap": ((2, 4, 5, 3), (1, 1, 2), 1),
  "one_tap_strided": ((2, 5, 5, 1), (1, 1, 2), 3),
  "stride_beyond_kernel": ((2, 8, 8, 1), (2, 2, 1), 3),
  "as_large_as_the_image": ((2, 5, 4, 2), (5, 4, 3), 2),
  "one_row": ((1, 1, 9, 2), (1, 3, 2), 1),
}


def _tiled(extra):
  """Tiles with that many more positions than the kernel has taps."""

  def spectral(images, kernel, *, stride):
    taps = max(-(-size // stride) for size in kernel.shape[:2])
    return tiling.spectral(images, kernel, stride=stride, tile=taps + extra)

  return spectral


def _folded(in_turn):
  """Tiles that are folded, of the smallest size that can be."""

  def spectral(images, kernel, *, stride):
    tile = max(-(-size // stride) for size in kernel.shape[:2])
    while not tile_transforms.folds(tile):
      tile += 1
    with mock.patch.object(tiling, "_is_folded", return_value=True):
      return tiling.spectral(
        images, kernel, stride=stride, tile=tile, in_turn=in_turn
      )

  return spectral


def _transformed(images, kernel, *, stride):
  """The kernel is transformed before; of it only the shape is read."""
  with mock.patch.multiple(tiling, _FEWEST_TAPS=1, _FEWEST_PAIRS=1):
    transformed = tiling.transform_kernel(kernel, stride=stride)
  return tiling.spectral_of_transformed(
    images, jnp.nan * kernel, stride=stride, transformed=transformed
  )


def _one_by_one(form):
  """The form with pieces of one image, where it makes pieces."""

  def in_pieces(images, kernel, *, stride):
    with mock.patch.object(tiling, "in_pieces", _pieces_of_one):
      return form(images, kernel, stride=stride)

  return in_pieces


def _pieces_of_one(function, images, *, spread, weights):
  del weights
  with mock.patch.object(tiling, "_PIECE", spread):
    return _in_pieces(function, images, spread=spread, weights=0)


_in_pieces = tiling.in_pieces
_FORMS = {
  "direct": convolution.direct,
  "patches": convolution.patches,
  "by_rows": convolution.by_rows,
  "winograd": tiling.winograd,
  "spectral": tiling.spectral,
  "spectral_tiles": _tiled(1),
  "spectral_folded": _folded(in_turn=False),
  "spectral_in_turn": _folded(in_turn=True),
  "spectral_transformed": _transformed,
  "spectral_transformed_pieces": _one_by_one(_transformed),
  "patches_pieces": _one_by_one(convolution.patches),
  "winograd_pieces": _one_by_one(tiling.winograd),
  "conv2d": convolution.conv2d,
}


def _case(images, kernel, seed=0, dtype=jnp.float32):
  keys = jax.random.split(jax.random.key(seed))
  kernel = (*kernel[:2], images[3], *kernel[2:])
  return (
    jax.random.normal(keys[0], images, dtype),
    jax.random.normal(keys[1], kernel, dtype),
  )


def check_matches_oracle(form, name="strided", seed=0):
  images, kernel, stride = _CASES[name]
  images, kernel = _case(images, kernel, seed)
  got = form(images, kernel, stride=stride)
  want = oracles.convolve(images, kernel, stride=stride)
  np.testing.assert_allclose(got, want, atol=1e-5 * np.sqrt(kernel.size))


def check_same_padding(conv2d, name="strided"):
  images, kernel, stride = _CASES[name]
  images, kernel = _case(images, kernel)
  got = conv2d(images, kernel, stride=stride, padding="SAME")
  want = oracles.convolve(images, kernel, stride=stride, padding="SAME")
  np.testing.assert_allclose(got, want, atol=1e-4)


def _flipped(images, kernel, *, stride):
  return convolution.conv2d(images, kernel[::-1, ::-1], stride=stride)


def _transposed(images, kernel, *, stride):
  return convolution.conv2d(images, kernel.swapaxes(0, 1), stride=stride)


def _last_phase(images, kernel, *, stride):
  images = jnp.roll(images, 1 - stride, (1, 2))
  return convolution.conv2d(images, kernel, stride=stride)


def _never_strided(images, kernel, *, stride):
  full = convolution.conv2d(images, kernel)
  return full[:, : full.shape[1] // stride + 1, : full.shape[2] // stride + 1]


def _padded_after(images, kernel, *, stride, padding):
  del padding
  images = jnp.pad(images, ((0, 0), (0, 2), (0, 2), (0, 0)))
  return convolution.conv2d(images, kernel, stride=stride)


def _padded_as_for_stride_one(images, kernel, *, stride, padding):
  del padding
  images = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
  return convolution.conv2d(images, kernel, stride=stride)


class ConvolutionTest(chex.TestCase):
  @parameterized.product(form=tuple(_FORMS), name=tuple(_CASES))
  def test_matches_oracle(self, form, name):
    form = jax.jit(_FORMS[form], static_argnames="stride")
    for seed in (0, 1):
      check_matches_oracle(form, name, seed)

  @parameterized.parameters(0, 2, 6)
  def test_every_tile_gives_the_same(self, extra):
    form = jax.jit(_tiled(extra), static_argnames="stride")
    check_matches_oracle(form, "not_square")

  @parameterized.parameters("plain", "strided", "does_not_divide", "not_square")
  def test_same_padding(self, name):
    conv2d = convolution.conv2d
    conv2d = jax.jit(conv2d, static_argnames=("stride", "padding"))
    check_same_padding(conv2d, name)

  @parameterized.parameters(
    (check_matches_oracle, _flipped),
    (check_matches_oracle, _transposed),
    (check_matches_oracle, _last_phase),
    (check_matches_oracle, _never_strided),
    (check_same_padding, _padded_after),
    (
      functools.partial(check_same_padding, name="does_not_divide"),
      _padded_as_for_stride_one,
    ),
  )
  def test_broken_copy_fails(self, check, broken):
    options = inspect.getfullargspec(broken).kwonlyargs
    broken = jax.jit(broken, static_argnames=options)
    with self.assertRaises(AssertionError):
      check(broken)

  def test_same_padding_gives_a_row_for_each_stride(self):
    for size in (4, 5, 6, 7):
      for stride in (1, 2, 3):
        images = jax.ShapeDtypeStruct((1, size, size + 1, 2), jnp.float32)
        kernel = jax.ShapeDtypeStruct((3, 5, 2, 4), jnp.float32)
        conv = functools.partial(
          convolution.conv2d, stride=stride, padding="SAME"
        )
        want = (1, -(-size // stride), -(-(size + 1) // stride), 4)
        self.assertEqual(jax.eval_shape(conv, images, kernel).shape, want)

  def test_same_padding_takes_kernels_larger_than_the_image(self):
    images, kernel = _case((1, 2, 3, 2), (5, 5, 2))
    got = convolution.conv2d(images, kernel, padding="SAME")
    want = oracles.convolve(images, kernel, stride=1, padding="SAME")
    np.testing.assert_allclose(got, want, atol=1e-5)

  @parameterized.parameters(
    ((128, 28, 28, 1), (9, 9, 1, 256), 1, "patches", "patches"),
    ((128, 20, 20, 256), (9, 9, 256, 256), 2, "spectral", "spectral"),
    ((32, 20, 20, 256), (9, 9, 256, 256), 2, "spectral", "spectral"),
    ((16, 32, 32, 256), (5, 5, 256, 256), 1, "spectral", "spectral"),
    ((128, 22, 22, 64), (3, 3, 64, 64), 1, "winograd", "winograd"),
    ((128, 20, 20, 64), (3, 3, 64, 128), 2, "by_rows", "by_rows"),
    ((128, 40, 40, 32), (3, 3, 32, 32), 2, "patches", "by_rows"),
    ((64, 24, 24, 128), (5, 5, 128, 128), 3, "patches", "patches"),
    ((1, 9, 9, 8), (1, 1, 8, 8), 1, "patches", "patches"),
  )
  def test_form_follows_the_sizes(self, images, kernel, stride, alone, trained):
    """As measured on CPUs, without a gradient and with one."""
    arguments = [
      jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (images, kernel)
    ]

    def convolve(images, kernel):
      return jnp.sum(convolution.conv2d(images, kernel, stride=stride))

    for function, want in ((convolve, alone), (jax.grad(convolve, 1), trained)):
      owner = convolution if want in ("patches", "by_rows") else tiling
      form = getattr(owner, want)
      calls = []

      # A mock would keep the tracers that it is called with.
      def counted(*given, form=form, calls=calls, **options):
        calls.append(options)
        return form(*given, **options)

      with mock.patch.object(owner, want, counted):
        jax.eval_shape(function, *arguments)
      # The form of the value is traced first, also where it is replaced.
      self.assertLen(calls, 1 + (want == "spectral" and function != convolve))
      if want == "spectral":
        self.assertEqual(calls[-1].get("in_turn", False), function == convolve)

  def test_forms_of_a_value_with_its_gradient_are_one(self):
    """The value is then that of the form that is differentiated."""
    images, kernel = _case((8, 20, 20, 64), (9, 9, 16))

    def total(images, kernel):
      return jnp.sum(jnp.cos(convolution.conv2d(images, kernel, stride=2)))

    value, slopes = jax.jit(jax.value_and_grad(total, (0, 1)))(images, kernel)
    np.testing.assert_allclose(value, jax.jit(total)(images, kernel), rtol=1e-4)
    _, change = jax.jvp(total, (images, kernel), slopes)
    squares = sum(jnp.sum(jnp.square(x)) for x in slopes)
    np.testing.assert_allclose(change, squares, rtol=1e-3)

  @parameterized.product(
    form=[
      "patches",
      "by_rows",
      "spectral",
      "spectral_tiles",
      "spectral_folded",
      "spectral_in_turn",
      "patches_pieces",
      "winograd_pieces",
      "conv2d",
    ],
    name=["does_not_divide", "not_square"],
  )
  def test_gradients_of_all_forms_agree(self, form, name):
    images, kernel, stride = _CASES[name]
    images, kernel = _case(images, kernel)

    def gradients(form):
      def energy(images, kernel):
        return jnp.sum(jnp.cos(form(images, kernel, stride=stride)))

      return jax.jit(jax.grad(energy, (0, 1)))(images, kernel)

    want = gradients(convolution.direct)
    chex.assert_trees_all_close(gradients(_FORMS[form]), want, atol=1e-4)

  @parameterized.parameters(
    "patches",
    "by_rows",
    "spectral_tiles",
    "spectral_in_turn",
    "winograd",
    "conv2d",
  )
  def test_gradients(self, form):
    with jax.enable_x64(True):
      images, kernel, stride = _CASES["not_square"]
      arguments = _case(images, kernel, dtype=jnp.float64)
      form = jax.jit(functools.partial(_FORMS[form], stride=stride))
      check_grads(form, arguments, order=1)

  @chex.variants(with_jit=True, without_jit=True)
  def test_gradients_of_each_example(self):
    images, kernel = _case((3, 7, 7, 2), (3, 3, 2))

    def energy(kernel, image):
      out = convolution.conv2d(image[None], kernel, stride=2, padding="SAME")
      return jnp.sum(jnp.cos(out))

    gradient = self.variant(jax.grad(energy))
    want = jnp.stack([gradient(kernel, image) for image in images])
    got = self.variant(jax.vmap(jax.grad(energy), (None, 0)))(kernel, images)
    chex.assert_trees_all_close(got, want, atol=1e-5)

  @parameterized.parameters(
    "direct",
    "patches",
    "by_rows",
    "spectral",
    "spectral_in_turn",
    "winograd",
    "conv2d",
  )
  def test_bfloat16(self, form):
    images, kernel, stride = _CASES["strided"]
    images, kernel = (x.astype(jnp.bfloat16) for x in _case(images, kernel))
    form = jax.jit(_FORMS[form], static_argnames="stride")
    got = form(images, kernel, stride=stride)
    chex.assert_type(got, jnp.bfloat16)
    want = oracles.convolve(images, kernel, stride=stride)
    error = np.float64(got.astype(jnp.float32)) - want
    self.assertLess(np.sqrt(np.mean(error**2) / np.mean(want**2)), 0.02)

  @parameterized.parameters("cpu", "cuda", "tpu")
  def test_form_follows_the_platform(self, platform):
    """CPUs get matrix products, both ways; others XLA's convolution."""
    images = jax.ShapeDtypeStruct((16, 20, 20, 256), jnp.float32)
    kernel = jax.ShapeDtypeStruct((9, 9, 256, 256), jnp.float32)

    def count(form):
      def energy(images, kernel):
        return jnp.sum(jnp.cos(form(images, kernel, stride=2)))

      traced = jax.jit(jax.value_and_grad(energy, (0, 1))).trace(images, kernel)
      lowered = traced.lower(lowering_platforms=(platform,))
      return lowered.as_text().count("stablehlo.convolution")

    self.assertEqual(count(convolution.direct), 3)
    want = 0 if platform == "cpu" else 3
    self.assertEqual(count(convolution.conv2d), want)

  def test_compiled_gradient_has_no_convolution_on_cpus(self):
    if jax.default_backend() != "cpu":
      self.skipTest("compiles for CPUs")

    def compiled(form):
      def energy(images, kernel):
        return jnp.sum(jnp.cos(form(images, kernel, stride=2)))

      images, kernel = _case((2, 20, 20, 256), (9, 9, 256))
      gradient = jax.jit(jax.grad(energy, (0, 1))).lower(images, kernel)
      return gradient.compile().as_text()

    self.assertNotIn(" convolution(", compiled(convolution.conv2d))
    self.assertIn(" convolution(", compiled(convolution.direct))

  @parameterized.named_parameters(
    ("one_image", (6, 6, 2), (3, 3, 2, 2), {}, r"\(6, 6, 2\).*\[B H W C\]"),
    ("flat_kernel", (1, 6, 6, 2), (3, 3, 2), {}, r"\(3, 3, 2\).*\[kH kW C D"),
    ("channels", (1, 6, 6, 2), (3, 3, 1, 2), {}, "do not fit"),
    ("no_stride", (1, 6, 6, 2), (3, 3, 2, 2), {"stride": 0}, "stride is 0"),
    (
      "padding",
      (1, 6, 6, 2),
      (3, 3, 2, 2),
      {"padding": "same"},
      "'same'.*'VALID' or 'SAME'",
    ),
    ("no_filters", (1, 6, 6, 2), (3, 3, 2, 0), {}, "is empty"),
    ("no_taps", (1, 6, 6, 2), (0, 3, 2, 2), {}, "is empty"),
    ("small_images", (1, 6, 4, 2), (5, 5, 2, 2), {}, "5x5.*not 6x4"),
  )
  def test_bad_arguments_are_refused(self, images, kernel, options, message):
    conv2d = inspect.unwrap(convolution.conv2d)
    with self.assertRaisesRegex(ValueError, message):
      conv2d(jnp.ones(images), jnp.ones(kernel), **options)

  def test_dtypes_are_floats_of_one_kind(self):
    images, kernel = jnp.ones((1, 6, 6, 2)), jnp.ones((3, 3, 2, 2))
    conv2d = inspect.unwrap(convolution.conv2d)
    with self.assertRaisesRegex(TypeError, "images hold bfloat16 and kernel"):
      conv2d(images.astype(jnp.bfloat16), kernel)
    with self.assertRaisesRegex(TypeError, "kernel holds int32"):
      conv2d(images, kernel.astype(jnp.int32))


def test_four_channels_are_spread_over_2x2_pixels():
  images = np.random.default_rng(0).normal(size=(2, 3, 5, 8))
  images = jnp.float32(images)
  got = convolution.depth_to_space(images)
  for y, x, v, u in np.ndindex(3, 5, 2, 2):
    start = 2 * (2 * v + u)
    np.testing.assert_array_equal(
      got[:, 2 * y + v, 2 * x + u], images[:, y, x, start : start + 2]
    )


if __name__ == "__main__":
  absltest.main()
