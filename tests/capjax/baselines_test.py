"""Convolutional baselines against loops, and their sizes in the papers."""

import functools

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from absl.testing import absltest, parameterized
from flax import nnx

from capjax import baselines

_WIDTHS = dict(conv_features=(3, 4), dense_features=(6,), dropout=0.0)


def _model(seed=0, **options):
  options = {**_WIDTHS, "conv_kernels": (5, 3), "pool": 2, **options}
  return baselines.CapsNetBaseline(
    (10, 9, 2), 5, **options, rngs=nnx.Rngs(seed)
  )


def _images(seed=0):
  return jax.random.uniform(jax.random.key(seed), (2, 10, 9, 2))


def _num_parameters(make):
  return cases.num_parameters(jax.eval_shape(lambda: make(rngs=nnx.Rngs(0))))


def _pool_oracle(image, side):
  rows, columns = image.shape[0] // side, image.shape[1] // side
  out = np.zeros((rows, columns, image.shape[2]))
  for y, x, d in np.ndindex(*out.shape):
    square = image[side * y : side * y + side, side * x : side * x + side, d]
    out[y, x, d] = max(square.ravel())
  return out


def check_matches_oracle(run, seed=0, pool=2, **options):
  model, images = _model(seed, pool=pool, **options), _images(seed)
  parameters = jax.tree.map(np.float64, nnx.to_pure_dict(nnx.state(model)))
  convs, dense = (
    [layers[n] for n in range(len(layers))]
    for layers in (parameters["convs"], parameters["dense"])
  )
  want = []
  for image in images:
    x = np.float64(image)
    for conv in convs:
      x = oracles.convolve(x[None], conv["kernel"], padding="SAME")[0]
      x = _pool_oracle(np.maximum(0, x + conv["bias"]), pool)
    x = x.mean(axis=(0, 1)) if model.average else x.reshape(-1)
    for layer in dense[:-1]:
      x = np.maximum(0, x @ layer["kernel"] + layer["bias"])
    want.append(x @ dense[-1]["kernel"] + dense[-1]["bias"])
  np.testing.assert_allclose(run(model, images), want, atol=1e-5)


_run = jax.jit(lambda model, images: model(images))


def _broken(pool, *, before=False):
  """Another pooling, or pooling in the wrong place."""

  @jax.jit
  def run(model, images):
    x = images
    for conv in model.convs:
      x = pool(x, (2, 2), strides=(2, 2)) if before else x
      x = jax.nn.relu(conv(x))
      x = x if before else pool(x, (2, 2), strides=(2, 2))
    x = jax.nn.relu(model.dense[0](x.reshape(len(x), -1)))
    return model.dense[1](x)

  return run


class BaselinesTest(chex.TestCase):
  @parameterized.parameters((1, (5, 3)), (2, (5, 3)), (2, (2, 4)), (3, 3))
  def test_matches_oracle(self, pool, conv_kernels):
    check_matches_oracle(_run, pool=pool, conv_kernels=conv_kernels)

  def test_all_positions_share_weights_behind_an_average(self):
    check_matches_oracle(_run, average=True)
    self.assertEqual(_model(average=True).dense[0].kernel.shape, (4, 6))
    # Places of a feature far from the edges do not matter.
    model = baselines.CapsNetBaseline(
      (20, 20, 1), 5, **_WIDTHS, conv_kernels=3, average=True, rngs=nnx.Rngs(0)
    )
    images = np.zeros((2, 20, 20, 1), np.float32)
    images[0, 5:8, 5:8] = images[1, 11:14, 9:12] = 1
    got = _run(model, images)
    np.testing.assert_allclose(got[0], got[1], rtol=1e-5)

  def test_broken_copy_fails(self):
    check_matches_oracle(_broken(nnx.max_pool))
    for broken in (
      _broken(nnx.avg_pool),
      _broken(nnx.max_pool, before=True),
    ):
      with self.assertRaises(AssertionError):
        check_matches_oracle(broken)

  def test_one_kernel_size_is_that_of_all(self):
    chex.assert_trees_all_equal(
      _model(conv_kernels=5), _model(conv_kernels=(5, 5))
    )

  def test_number_of_parameters(self):
    """24.56M, as the paper says; 24.54M with the kernels of the code."""
    make = functools.partial(baselines.multimnist_baseline, (36, 36, 1))
    self.assertEqual(_num_parameters(make), 24_563_978)
    small = lambda rngs: make(conv_kernels=(5, 5), rngs=rngs)  # noqa: E731
    self.assertEqual(_num_parameters(small), 24_535_306)

  def test_layers_of_the_paper(self):
    model = jax.eval_shape(
      lambda: baselines.multimnist_baseline((36, 36, 1), rngs=nnx.Rngs(0))
    )
    shapes = [layer.kernel.shape for layer in (*model.convs, *model.dense)]
    self.assertEqual(
      shapes,
      [(9, 9, 1, 512), (5, 5, 512, 256), (9 * 9 * 256, 1024), (1024, 10)],
    )
    images = jax.ShapeDtypeStruct((3, 36, 36, 1), jnp.float32)
    logits = jax.eval_shape(lambda model, x: model(x), model, images)
    chex.assert_shape(logits, (3, 10))
    self.assertEqual(model.dropout.rate, 0)

  def test_every_parameter_takes_part(self):
    def loss(model):
      return jnp.sum(jnp.square(model(_images())))

    for leaf in jax.tree.leaves(jax.jit(jax.grad(loss))(_model())):
      self.assertTrue(np.all(np.isfinite(leaf)))
      self.assertGreater(np.max(np.abs(leaf)), 0)

  @parameterized.parameters(
    (dict(conv_kernels=(5, 3, 3)), r"2 convolutions.*\(5, 3, 3\)"),
    (dict(pool=4), "10x9 are too small for 2 poolings by 4"),
    (dict(pool=0), "pool is 0"),
  )
  def test_bad_options_are_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      _model(**options)


class SingleObjectTest(chex.TestCase):
  def _small(self, **options):
    widths = dict(conv_features=(2, 2, 2), dense_features=(8, 200))
    return baselines.CapsNetBaseline(
      (6, 5, 1), 3, **{**widths, **options}, rngs=nnx.Rngs(0)
    )

  def test_number_of_parameters(self):
    self.assertEqual(_num_parameters(baselines.CapsNetBaseline), 35_445_522)

  def test_shape(self):
    logits = self._small()(cases.batch(0, 4, (6, 5, 1))[0])
    chex.assert_shape(logits, (4, 3))
    chex.assert_tree_all_finite(logits)

  def test_dropout_needs_a_key_and_keeps_the_expectation(self):
    model, (images, _) = self._small(), cases.batch(0, 2, (6, 5, 1))
    run = jax.jit(lambda model, images, key=None: model(images, key))
    clean = run(model, images)
    chex.assert_trees_all_equal(run(model, images), clean)
    keys = jax.random.split(jax.random.key(0), 500)
    noisy = jax.jit(jax.vmap(lambda key: model(images, key)))(keys)
    spread = np.std(noisy, axis=0)
    np.testing.assert_array_less(1e-3, spread)
    error = np.abs(np.mean(noisy, axis=0) - clean)
    np.testing.assert_array_less(error, 5 * spread / np.sqrt(500))

  def test_dropout_of_nothing(self):
    model, (images, _) = self._small(dropout=0.0), cases.batch(0, 2, (6, 5, 1))
    got = model(images, jax.random.key(0))
    chex.assert_trees_all_close(got, model(images), rtol=1e-6)


class ConvVAETest(parameterized.TestCase):
  def _model(self, num_latents=1, shape=(4, 8, 1), **options):
    return baselines.ConvVAE(
      shape,
      num_latents=num_latents,
      features=(3, 5),
      **options,
      rngs=nnx.Rngs(0),
    )

  def _images(self, count=3):
    pixels = jax.random.bernoulli(jax.random.key(0), 0.4, (count, 4, 8, 1))
    return jnp.float32(pixels)

  @parameterized.parameters(None, 0.4)
  def test_bounds_hold_and_close(self, pixel_scale):
    """Against the integral over one latent."""
    model, images = self._model(pixel_scale=pixel_scale), self._images()
    if pixel_scale is not None:
      images = 0.2 + 0.5 * images
    grid = np.linspace(-8, 8, 4001)
    odds = np.float64(model.decode(jnp.float32(grid[:, None])))
    pixels = np.float64(images)[:, None]
    if pixel_scale is None:
      pixels = pixels * odds - np.logaddexp(0, odds)
    else:
      errors = (pixels - 1 / (1 + np.exp(-odds))) / pixel_scale
      pixels = -(errors**2) / 2 - np.log(pixel_scale * np.sqrt(2 * np.pi))
    scores = np.sum(pixels, axis=(2, 3, 4)) - grid**2 / 2
    density = np.exp(scores) / np.sqrt(2 * np.pi)
    truth = np.log(np.trapezoid(density, grid, axis=1))
    bound = model.bound(jax.random.key(1), images, 5000)
    np.testing.assert_array_less(bound.elbo, truth)
    np.testing.assert_allclose(bound.importance, truth, atol=0.02)

  @pytest.mark.long
  def test_images_of_colours(self):
    model = self._model(2, (8, 8, 3))
    latents = jax.random.normal(jax.random.key(0), (2, 2))
    self.assertEqual(model.decode(latents).shape, (2, 8, 8, 3))

  @pytest.mark.long
  def test_reconstructions_are_chances(self):
    model, images = self._model(3), self._images()
    means = model.reconstruct(images)
    self.assertEqual(means.shape, images.shape)
    self.assertTrue(bool(jnp.all((means > 0) & (means < 1))))
    self.assertEqual(model.activities(images)[0].shape, (3, 3))

  @pytest.mark.long
  def test_images_of_any_size_are_decoded(self):
    """The pixels that are left are those of the larger image."""
    latents = jax.random.normal(jax.random.key(0), (2, 2))
    whole = self._model(2, (8, 12, 3)).decode(latents)
    for height, width in ((5, 9), (7, 11), (8, 10)):
      shape = (height, width, 3)
      cut = self._model(2, shape).decode(latents)
      self.assertEqual(cut.shape, (2, *shape))
      np.testing.assert_array_equal(cut, whole[:, :height, :width])
      self.assertEqual(
        self._model(2, shape).reconstruct(jnp.zeros((1, *shape))).shape,
        (1, *shape),
      )

  def test_pixels_without_spread_are_refused(self):
    with self.assertRaisesRegex(ValueError, "above 0"):
      self._model(pixel_scale=0.0)


if __name__ == "__main__":
  absltest.main()
