"""Matrix capsules: sizes of the paper, layers against loops, hard inputs."""

import inspect

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import widths
from absl.testing import absltest, parameterized
from flax import nnx

from capjax import baselines, matrix_capsules
from capjax.evaluation import diagnostics
from kernels.routing import em, em_convolution

_SHAPE = (18, 22, 2)
_IDENTITY_SCALES = (0.01, 0.01)
_SMALL = dict(features=3, types=(2, 3, 4), num_iterations=2)


def _model(seed=0, **options):
  return matrix_capsules.MatrixCapsules(
    _SHAPE, 5, **{**_SMALL, **options}, rngs=nnx.Rngs(seed)
  )


@jax.jit
def _call(module, *arguments):
  """Compiled once for each kind of module, where calls would compile parts."""
  return module(*arguments)


def _images(count=3, seed=0):
  return jax.random.normal(jax.random.key(seed), (count, *_SHAPE))


def _num_parameters(make):
  return cases.num_parameters(jax.eval_shape(lambda: make(rngs=nnx.Rngs(0))))


class GradientTest(parameterized.TestCase):
  def test_every_layer_has_it(self):
    for gradient in ("all", "last"):
      model = _model(routing_gradient=gradient)
      for layer in (*model.layers, model.classes):
        self.assertEqual(layer.em.gradient, gradient)

  def test_an_unknown_one_is_refused(self):
    with self.assertRaisesRegex(
      ValueError, "routing_gradient is 'first'; give"
    ):
      _model(routing_gradient="first")


class SizesTest(parameterized.TestCase):
  @parameterized.parameters(
    (32, (32, 32, 32), 317_194),  # the paper's 310K
    (64, (8, 16, 16), 68_754),  # its 68K
  )
  def test_parameters_are_those_of_the_paper(self, features, types, want):
    def make(rngs):
      return matrix_capsules.MatrixCapsules(
        (32, 32, 2), 5, features=features, types=types, rngs=rngs
      )

    self.assertEqual(_num_parameters(make), want)

  @parameterized.parameters(
    (dict(), 4_253_349),  # the paper's 4.2M
    (dict(features=(16, 32), dense_features=256), 539_477),
  )
  def test_parameters_of_the_baseline(self, options, want):
    def make(rngs):
      return baselines.smallnorb_baseline((32, 32, 2), 5, **options, rngs=rngs)

    self.assertEqual(_num_parameters(make), want)

  @parameterized.parameters(
    ("VALID", (32, 32), (6, 6), (4, 4)), ("SAME", (32, 32), (8, 8), (8, 8)),
    ("VALID", (28, 28), (5, 5), (3, 3)),
  )  # fmt: skip
  @pytest.mark.long_after_first
  def test_grids_of_the_layers(self, padding, size, first, second):
    model = matrix_capsules.MatrixCapsules(
      (*size, 1), 3, **_SMALL, padding=padding, rngs=nnx.Rngs(0)
    )
    features = jax.nn.relu(model.conv(jnp.ones((1, *size, 1))))
    children = model.primary(features)
    for layer, grid in zip(model.layers, (first, second), strict=True):
      output = jax.eval_shape(layer, *children)
      children = output.poses, output.activations
      self.assertEqual(output.activations.shape[1:3], grid)
    self.assertEqual(model.classes.offsets[...].shape[:2], second)


class LayersTest(parameterized.TestCase):
  def test_primary_activations_are_those_of_the_authors(self):
    """sigmoid(logit - 1): a capsule whose logit is 0 is on by 0.27."""
    model = _model()
    features = jax.nn.relu(model.conv(_images(2)))
    got = model.primary(features)[1]
    kernel = np.float64(model.primary.activations.kernel[...])[0, 0]
    logits = np.float64(features) @ kernel
    np.testing.assert_allclose(got, 1 / (1 + np.exp(1 - logits)), rtol=1e-4)

  @parameterized.product(
    coordinates=matrix_capsules.COORDINATES, pose=("matrix", "vector")
  )
  @pytest.mark.long
  def test_classes_are_routed_from_votes_in_loops(self, coordinates, pose):
    model, images = _model(coordinates=coordinates, pose=pose), _images(2)
    poses, activations = model.primary(jax.nn.relu(model.conv(images)))
    for layer in model.layers:
      output = _call(layer, poses, activations)
      poses, activations = output.poses, output.activations
    got = _call(model, images)
    grid = poses.shape[1:3]
    temperatures = em.inverse_temperature_schedule(2)
    for n in range(2):
      votes = np.zeros((*grid, 4, 5, 16))
      for h, w, i, j in np.ndindex(*votes.shape[:4]):
        matrix = np.float64(poses[n, h, w, i])
        transform = np.float64(model.classes.transforms[...][i, j])
        votes[h, w, i, j] = (matrix @ transform).ravel()
        if coordinates == "relative":
          places = (3, 7) if pose == "matrix" else (0, 1)
          votes[h, w, i, j, places[0]] += (w + 0.5) / grid[1]
          votes[h, w, i, j, places[1]] += (h + 0.5) / grid[0]
        if coordinates == "pixels":
          # Fields of 5, 3 and 3 with strides of 2, 2 and 1.
          first = [4 / 2 + 2 * (2 / 2) + 4 * (2 / 2) - size // 2
                   for size in _SHAPE[1::-1]]  # fmt: skip
          votes[h, w, i, j, 0] += (first[0] + 4 * w) / 100
          votes[h, w, i, j, 1] += (first[1] + 4 * h) / 100
      want = em.em_routing(
        jnp.float32(votes.reshape(-1, 5, 16)),
        activations[n].ravel(),
        model.classes.beta_a[...],
        model.classes.beta_u[...],
        inverse_temperatures=temperatures,
        form=em.PAPER._replace(
          mass_floor=1e-5,
          beta_a_scale=1 / temperatures[-1],
          cost_scale=100 * 5 / (np.prod(grid) * 4),
        ),
      )
      np.testing.assert_allclose(
        got.activations[n], want.activations, atol=1e-5
      )
      np.testing.assert_allclose(
        got.poses[n].reshape(5, 16), want.poses, atol=1e-4
      )
      chex.assert_shape(got.coefficients[n], (grid[0] * grid[1] * 4, 5))

  @parameterized.parameters("VALID", "SAME")
  @pytest.mark.long
  def test_a_batch_is_its_examples(self, padding):
    model, images = _model(padding=padding), _images()
    together = _call(model, images)
    for n in range(len(images)):
      alone = _call(model, images[n : n + 1])
      chex.assert_trees_all_close(
        jax.tree.map(lambda x, n=n: x[n], together),
        jax.tree.map(lambda x: x[0], alone),
        atol=1e-5,
      )

  def test_costs_are_of_as_much_data_in_every_layer(self):
    """By I / J: of windows of 3x3, and of a grid of 1x2 under the classes."""
    model, unscaled = _model(), _model(data_amount=None)
    for layer, children, parents in (
      (model.layers[0], 3 * 3 * 2, 3),
      (model.layers[1], 3 * 3 * 3, 4),
      (model.classes, 1 * 2 * 4, 5),
    ):
      scale = layer.em.form.cost_scale
      self.assertAlmostEqual(scale, 100 / (children / parents))
    for layer in (*unscaled.layers, unscaled.classes):
      self.assertEqual(layer.em.form.cost_scale, 1.0)

  @parameterized.parameters(
    ("official", 0.0, 0.3, 0.01), ("identity", 1.0, *_IDENTITY_SCALES)
  )
  def test_scales_at_the_start(self, start, diagonal, layers, classes):
    """Of normal distributions that end at two standard deviations."""
    model = matrix_capsules.MatrixCapsules(start=start, rngs=nnx.Rngs(0))
    scales = [(x.transforms[...], layers) for x in model.layers]
    scales.append((model.classes.transforms[...], classes))
    for transforms, scale in scales:
      noise = np.asarray(transforms - diagonal * jnp.eye(4))
      np.testing.assert_allclose(noise.std(), 0.8796 * scale, rtol=0.03)
      np.testing.assert_allclose(abs(noise).max(), 2 * scale, rtol=0.03)
    if start == "official":
      for conv, scale in (
        (model.conv, 0.05),
        (model.primary.poses, 0.5),
        (model.primary.activations, 3.0),
      ):
        kernel = np.asarray(conv.kernel[...])
        np.testing.assert_allclose(kernel.std(), 0.8796 * scale, rtol=0.06)

  @pytest.mark.long
  def test_layers_route_with_their_own_betas(self):
    model = _model()
    layer = model.layers[0]
    layer.beta_a[...] = jnp.array([2.0, -2.0, 0.0])
    children = model.primary(jax.nn.relu(model.conv(_images(1))))
    got = _call(layer, *children)
    want = em_convolution.em_convolution(
      *(x[0] for x in children),
      layer.transforms[...],
      layer.beta_a[...],
      layer.beta_u[...],
      inverse_temperatures=(5e-4, 9.75e-4),
      stride=2,
      form=em.PAPER._replace(
        beta_a_scale=1 / 9.75e-4, cost_scale=100 * 3 / (9 * 2)
      ),
    )
    chex.assert_trees_all_close(
      jax.tree.map(lambda x: x[0], got), want, atol=1e-5
    )
    means = jnp.mean(got.activations, axis=(0, 1, 2))
    self.assertGreater(means[0], means[2])
    self.assertGreater(means[2], means[1])


def _blobs(count):
  """Smooth figures, so that neighbouring capsules have like poses."""
  random = np.random.default_rng(0)
  places = random.uniform(8, 24, (count, 3, 1, 1, 2))
  sizes = random.uniform(2, 5, (count, 3, 1, 1))
  squares = np.sum((np.mgrid[:32, :32].transpose(1, 2, 0) - places) ** 2, -1)
  images = np.sum(np.exp(-squares / 2 / sizes**2), axis=1)[..., None]
  return jnp.array((images - images.mean()) / images.std(), jnp.float32)


class FreshNetworkTest(absltest.TestCase):
  """Three iterations of EM find no clusters where there is only noise."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.model = matrix_capsules.MatrixCapsules(
      (32, 32, 1), 5, features=16, types=(3, 6, 8), rngs=nnx.Rngs(0)
    )

  def _entropy(self, model):
    coefficients = _call(model, _blobs(8)).coefficients
    return float(jnp.mean(diagnostics.routing_entropy(coefficients)))

  @pytest.mark.long
  @widths.samples_of_float32
  def test_shares_of_classes_are_open(self):
    self.assertGreater(self._entropy(self.model), 0.9)

  @pytest.mark.long
  def test_more_noise_closes_them(self):
    """As 0.1 would, ten times as much."""
    model = nnx.clone(self.model)
    for layer in (*model.layers, model.classes):
      noise = layer.transforms[...] - jnp.eye(4)
      layer.transforms[...] = jnp.eye(4) + 10 * noise
    self.assertLess(self._entropy(model), 0.85)

  @pytest.mark.long
  def test_activations_tell_votes_apart(self):
    """Of convolutional capsules, whose cost would be small next to beta_a."""
    poses, activations = self.model.primary(
      jax.nn.relu(self.model.conv(_blobs(8)))
    )
    layer = self.model.layers[0]
    got = _call(layer, poses, activations).activations
    self.assertGreater(float(jnp.std(got)), 0.01)
    layer = nnx.clone(layer)
    form = layer.em.form._replace(cost_scale=1.0)
    layer.em = layer.em._replace(form=form)
    got = _call(layer, poses, activations).activations
    self.assertLess(float(jnp.std(got)), 0.005)


@jax.jit
@jax.value_and_grad
def _squares(model, images):
  return jnp.sum(jnp.square(model(images).activations))


def _all_weights(scale):
  def change(model):
    parameters = jax.tree.map(lambda x: scale * x, nnx.state(model, nnx.Param))
    nnx.update(model, parameters)

  return change


def _all_activations(logit):
  def change(model):
    conv = model.primary.activations
    conv.kernel[...] = jnp.zeros_like(conv.kernel[...])
    conv.bias[...] = jnp.full_like(conv.bias[...], logit)

  return change


def _identical_votes(model):
  """All capsules have one pose, and all transforms are the identity."""
  poses = model.primary.poses
  poses.kernel[...] = jnp.zeros_like(poses.kernel[...])
  poses.bias[...] = jnp.ones_like(poses.bias[...])
  for layer in (*model.layers, model.classes):
    x = layer.transforms[...]
    layer.transforms[...] = jnp.broadcast_to(jnp.eye(x.shape[-1]), x.shape)


_STARTS = {
  "zero_weights": _all_weights(0.0),
  "tiny_weights": _all_weights(1e-20),
  "huge_weights": _all_weights(1e3),
  "nobody_there": _all_activations(-1e4),
  "all_there": _all_activations(1e4),
  "identical_votes": _identical_votes,
}


class HardInputsTest(parameterized.TestCase):
  @parameterized.product(
    form=tuple(matrix_capsules.FORMS), start=tuple(_STARTS)
  )
  @pytest.mark.long
  def test_bad_starts_are_finite(self, form, start):
    model = _model(form=form)
    _STARTS[start](model)
    value, gradient = _squares(model, _images(2))
    chex.assert_tree_all_finite((value, nnx.state(gradient, nnx.Param)))

  @parameterized.parameters(*matrix_capsules.FORMS)
  @pytest.mark.long
  def test_values_and_gradients_are_finite(self, form):
    one_pixel = jnp.zeros((2, *_SHAPE)).at[:, 8, 8].set(1.0)
    for images in (
      jnp.zeros((2, *_SHAPE)), jnp.ones((2, *_SHAPE)), 1e3 * _images(2),
      one_pixel,
    ):  # fmt: skip
      value, gradient = _squares(_model(form=form), images)
      chex.assert_tree_all_finite(value)
      chex.assert_tree_all_finite(nnx.state(gradient, nnx.Param))

  @parameterized.parameters(
    (dict(padding="FULL"), "padding is 'FULL'; give 'VALID' or 'SAME'"),
    (dict(coordinates="polar"), "coordinates is 'polar'"),
    (dict(pose="tensor"), "pose is 'tensor'"),
    (dict(form="hybrid"), "form is 'hybrid'"),
    (dict(start="random"), "start is 'random'"),
    (dict(data_amount=0.0), "data_amount is 0.0; give a finite number above 0"),
    (dict(num_iterations=0), "num_iterations is 0"),
    *(
      (
        dict(final_inverse_temperature=value, form=form),
        f"final_inverse_temperature is {value}; give a finite number above 0",
      )
      for value in (0.0, -0.01, np.nan, np.inf)
      for form in matrix_capsules.FORMS
    ),
  )
  def test_bad_options_are_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      _model(**options)

  def test_coordinates_have_no_gradient(self):
    """So optimisers of all arrays leave them."""
    model = _model(coordinates="relative")
    gradient = jax.grad(lambda x: jnp.sum(_call(x, _images(2)).poses))(model)
    self.assertGreater(np.abs(model.classes.offsets[...]).max(), 0.1)
    np.testing.assert_array_equal(gradient.classes.offsets[...], 0)
    self.assertGreater(np.abs(gradient.classes.transforms[...]).max(), 0)

  def test_types_are_of_three_layers(self):
    kind = matrix_capsules.MatrixCapsules
    start = inspect.unwrap(kind.__init__)  # without the check of its types
    with self.assertRaisesRegex(ValueError, r"\(8, 16\); give three numbers"):
      start(object.__new__(kind), _SHAPE, 5, types=(8, 16), rngs=nnx.Rngs(0))

  def test_images_that_are_too_small_are_refused(self):
    message = "14x30 are too small for .* pad them to 17x17 or more"
    with self.assertRaisesRegex(ValueError, message):
      matrix_capsules.MatrixCapsules((14, 30, 1), 5, rngs=nnx.Rngs(0))


if __name__ == "__main__":
  absltest.main()
