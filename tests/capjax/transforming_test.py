"""Transforming auto-encoders against loops, and what coordinates are."""

import functools
import inspect
import math

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from flax import nnx

from capjax import transforming
from kernels import geometry

_SHAPE = (5, 6, 1)
_NUM_CAPSULES = 3


def _make(*arguments, **options):
  return nnx.clone(_make_once(*arguments, **options))


@functools.cache
def _make_once(pose="shift", output="linear", seed=0, **sizes):
  sizes = {
    "num_capsules": _NUM_CAPSULES,
    "recognition_units": 4,
    "generation_units": 5,
  } | sizes
  model = transforming.TransformingAutoencoder(
    _SHAPE, pose=pose, output=output, rngs=nnx.Rngs(seed), **sizes
  )
  # Biases are drawn too, so that one that is left out shows.
  parameters = nnx.state(model, nnx.Param)
  leaves, structure = jax.tree.flatten(parameters)
  keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
  noise = [
    x + 0.3 * jax.random.normal(key, x.shape)
    for x, key in zip(leaves, keys, strict=True)
  ]
  nnx.update(model, jax.tree.unflatten(structure, noise))
  return model


def _batch(pose="shift", count=4, seed=0):
  keys = jax.random.split(jax.random.key(seed), 3)
  images = jax.random.uniform(keys[0], (count, *_SHAPE))
  shifts = 2 * jax.random.normal(keys[1], (count, 2))
  if pose == "shift":
    return images, shifts
  angles, scales = jax.random.uniform(keys[2], (2, count))
  return images, geometry.affine_matrix(
    1 + scales, 1.2, angles, 0.1, shifts[:, 0], shifts[:, 1]
  )


def _sigmoid(x):
  return 1 / (1 + math.exp(-x))


def _oracle(model, image, transform):
  """Section 2 of the paper, unit by unit."""
  weights = {
    name: np.float64(x)
    for name, x in dict(
      recognition=model.recognition.kernel[...],
      recognition_bias=model.recognition.bias[...],
      code=model.code.kernel[...],
      code_bias=model.code.bias[...],
      generation=model.generation.kernel[...],
      generation_bias=model.generation.bias[...],
      drawing=model.drawing.kernel[...],
      drawing_bias=model.drawing_bias[...],
    ).items()
  }
  pixels = np.float64(image).ravel()
  transform = np.float64(transform)
  num_capsules, num_units, code_size = weights["code"].shape
  total = np.zeros(len(pixels))
  for c in range(num_capsules):
    hidden = []
    for unit in range(num_units):
      n = c * num_units + unit
      drive = weights["recognition_bias"][n]
      for p, intensity in enumerate(pixels):
        drive += intensity * weights["recognition"][p, n]
      hidden.append(_sigmoid(drive))
    code = []
    for n in range(code_size):
      value = weights["code_bias"][c, n]
      for unit, activity in enumerate(hidden):
        value += activity * weights["code"][c, unit, n]
      code.append(value)
    presence = _sigmoid(code[-1])
    if transform.shape == (2,):
      moved = [code[0] + transform[0], code[1] + transform[1]]
    else:
      own = np.reshape(code[:9], (3, 3)) + np.eye(3)
      moved = [
        sum(transform[row, k] * own[k, column] for k in range(3))
        for row in range(3)
        for column in range(3)
      ]
    drawing = weights["drawing_bias"][c].copy()
    for unit, bias in enumerate(weights["generation_bias"][c]):
      drive = bias
      for n, value in enumerate(moved):
        drive += value * weights["generation"][c, n, unit]
      drawing += _sigmoid(drive) * weights["drawing"][c, unit]
    total += presence * drawing
  if model.output == "sigmoid":
    total = np.array([_sigmoid(x) for x in total])
  return total.reshape(image.shape)


def _unmoved(model, images, transforms):
  """Broken: never tells the capsules how the image moves."""
  del transforms
  return model.generate(*model.recognise(images))


def _moved_before(model, images, transforms):
  """Broken: A T in place of T A."""
  poses, presences = model.recognise(images)
  return model.generate(poses @ transforms[:, None], presences)


def check_forward(forward, pose, output):
  model = _make(pose, output)
  images, transforms = _batch(pose)
  got = jax.jit(forward)(model, images, transforms)
  for n, image in enumerate(images[:2]):
    want = _oracle(model, image, transforms[n])
    np.testing.assert_allclose(got[n], want, atol=1e-5)


class ForwardTest(parameterized.TestCase):
  @parameterized.product(
    pose=list(transforming.POSES), output=list(transforming.OUTPUTS)
  )
  def test_images_are_those_of_the_loops(self, pose, output):
    check_forward(lambda model, *batch: model(*batch), pose, output)

  @parameterized.parameters(
    (_unmoved, "shift"), (_unmoved, "affine"), (_moved_before, "affine")
  )
  @pytest.mark.long
  def test_broken_copies_fail(self, broken, pose):
    with self.assertRaises(AssertionError):
      check_forward(broken, pose, "linear")

  @parameterized.parameters("shift", "affine")
  def test_compiled_is_the_same(self, pose):
    model = _make(pose)
    batch = _batch(pose)
    got = jax.jit(lambda model, *batch: model(*batch))(model, *batch)
    np.testing.assert_allclose(got, model(*batch), atol=1e-5)

  def test_the_paper_s_sizes(self):
    model = transforming.TransformingAutoencoder(rngs=nnx.Rngs(0))
    sizes = [x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param))]
    recognition = 30 * (10 * 785 + 3 * 11)
    generation = 30 * (20 * 3 + 784 * 21)
    self.assertEqual(sum(sizes), recognition + generation)

  def test_loss_is_the_summed_square(self):
    model, (images, transforms) = _make(), _batch()
    targets = jnp.flip(images, axis=2)
    loss, metrics = transforming.transforming_loss(
      model, images, transforms, targets
    )
    want = np.mean(
      [
        np.sum((_oracle(model, x, t) - np.float64(y)) ** 2)
        for x, t, y in zip(images, transforms, targets, strict=True)
      ]
    )
    np.testing.assert_allclose(loss, want, rtol=1e-5)
    np.testing.assert_allclose(metrics["loss"], want, rtol=1e-5)

  @parameterized.parameters(
    (dict(num_capsules=0), "num_capsules is 0; give"),
    (dict(recognition_units=0), "recognition_units is 0; give"),
    (dict(generation_units=-1), "generation_units is -1; give"),
    (dict(pose="rotation"), "pose='rotation'; give one of shift, affine"),
    (dict(output="relu"), "output='relu'; give one of linear, sigmoid"),
  )
  def test_bad_options_are_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      _make(**options)


class CoordinatesTest(parameterized.TestCase):
  def test_a_shift_is_added_to_coordinates(self):
    """A capsule 2 pixels further right draws as one told to shift by 2."""
    model, (images, shifts) = _make(), _batch()
    poses, presences = model.recognise(images)
    want = model.generate(poses + shifts[:, None], presences)
    np.testing.assert_allclose(model(images, shifts), want, atol=1e-6)
    half = model.move(model.move(poses, 0.25 * shifts), 0.75 * shifts)
    np.testing.assert_allclose(half, poses + shifts[:, None], atol=1e-5)
    np.testing.assert_allclose(model.move(poses, 0 * shifts), poses)

  def test_movements_compose_in_their_order(self):
    model = _make("affine")
    images, first = _batch("affine")
    second = _batch("affine", seed=1)[1]
    poses, presences = model.recognise(images)
    got = model.move(model.move(poses, first), second)
    want = model.move(poses, geometry.compose(second, first))
    np.testing.assert_allclose(got, want, atol=1e-4)
    other = model.move(poses, geometry.compose(first, second))
    self.assertGreater(np.max(np.abs(other - want)), 0.1)
    np.testing.assert_allclose(
      model.generate(got, presences),
      model(images, geometry.compose(second, first)),
      atol=1e-4,
    )

  def test_affine_poses_start_near_the_identity(self):
    model = transforming.TransformingAutoencoder(
      _SHAPE, pose="affine", rngs=nnx.Rngs(0)
    )
    poses = model.recognise(_batch()[0]).poses
    self.assertLess(np.abs(np.mean(poses, axis=(0, 1)) - np.eye(3)).max(), 0.5)

  @parameterized.parameters("shift", "affine")
  def test_an_absent_capsule_draws_and_learns_nothing(self, pose):
    model = _make(pose)
    images, transforms = _batch(pose)
    poses, presences = model.recognise(images)
    present = presences.at[:, 1].set(0.0)

    def drawn(parameters, poses, presences):
      return jnp.sum(
        jnp.sin(nnx.merge(graph, parameters).generate(poses, presences))
      )

    graph, parameters = nnx.split(model, nnx.Param)
    moved = model.move(poses, transforms)
    gradient, of_poses = jax.grad(drawn, (0, 1))(parameters, moved, present)
    for name in ("generation", "drawing"):
      for x in jax.tree.leaves(gradient[name]):
        np.testing.assert_array_equal(x[1], 0)
        self.assertGreater(np.abs(x[0]).max(), 0)
    np.testing.assert_array_equal(gradient["drawing_bias"][...][1], 0)
    np.testing.assert_array_equal(of_poses[:, 1], 0)
    self.assertGreater(np.abs(of_poses[:, 0]).max(), 0)
    far = moved.at[:, 1].add(100.0)
    np.testing.assert_array_equal(
      model.generate(far, present), model.generate(moved, present)
    )

  def test_presence_gates_in_proportion(self):
    model, (images, _) = _make(), _batch()
    poses, presences = model.recognise(images)
    np.testing.assert_allclose(
      model.generate(poses, 0.5 * presences),
      0.5 * model.generate(poses, presences),
      atol=1e-5,
    )
    np.testing.assert_array_equal(model.generate(poses, 0 * presences), 0)

  def test_capsules_do_not_see_each_other(self):
    """The output of a capsule does not depend on another's parameters."""
    model, (images, shifts) = _make(), _batch()
    before = model.recognise(images)
    width = model.recognition.kernel.shape[1] // _NUM_CAPSULES
    kernel = model.recognition.kernel
    kernel[...] = kernel[...].at[:, :width].add(1.0)
    after = model.recognise(images)
    for old, new in zip(before, after, strict=True):
      np.testing.assert_array_equal(old[:, 1:], new[:, 1:])
      self.assertGreater(np.abs(old[:, 0] - new[:, 0]).max(), 1e-4)
    del shifts

  @parameterized.parameters("shift", "affine")
  def test_black_and_extreme_images_are_finite(self, pose):
    model = _make(pose, "sigmoid")
    images, transforms = _batch(pose)
    graph, parameters = nnx.split(model, nnx.Param)

    @jax.jit
    @jax.value_and_grad
    def loss(parameters, x):
      return transforming.transforming_loss(
        nnx.merge(graph, parameters), x, 1e3 * transforms, images
      )[0]

    for x in (0 * images, 1e4 * images):
      value, gradient = loss(parameters, x)
      self.assertTrue(np.isfinite(value))
      for leaf in jax.tree.leaves(gradient):
        self.assertTrue(np.isfinite(leaf).all())

  @parameterized.parameters("shift", "affine")
  def test_gradients_are_those_of_differences(self, pose):
    with jax.enable_x64(True):
      model = _make(pose, "sigmoid", num_capsules=2)
      images, transforms = _batch(pose, 2)
      graph, parameters = nnx.split(model, nnx.Param)
      parameters = jax.tree.map(lambda x: x.astype(jnp.float64), parameters)

      @jax.jit
      def loss(parameters, transforms):
        model = nnx.merge(graph, parameters)
        return transforming.transforming_loss(
          model, images, transforms, images
        )[0]

      jax.test_util.check_grads(
        loss, (parameters, jnp.float64(transforms)), 1, modes=["rev"]
      )


@pytest.mark.parametrize("shape", [(2,), (2, 1), (3, 2), (2, 3, 3)])
def test_transforms_of_another_shape_are_refused(shape):
  model = transforming.TransformingAutoencoder(
    (6, 6, 1), num_capsules=2, rngs=nnx.Rngs(0)
  )
  poses, _ = model.recognise(jnp.zeros((2, 6, 6, 1)))
  move = inspect.unwrap(type(model).move)  # annotations are checked in tests
  with pytest.raises(ValueError, match=r"give one for each image, \[2, 2\]"):
    move(model, poses, jnp.zeros(shape))


def test_transforms_of_whole_numbers_are_refused():
  model = transforming.TransformingAutoencoder(
    (6, 6, 1), num_capsules=2, pose="affine", rngs=nnx.Rngs(0)
  )
  poses, _ = model.recognise(jnp.zeros((2, 6, 6, 1)))
  move = inspect.unwrap(type(model).move)  # annotations are checked in tests
  with pytest.raises(TypeError, match="transforms holds int(32|64);"):
    move(model, poses, jnp.tile(jnp.eye(3, dtype=int), (2, 1, 1)))


if __name__ == "__main__":
  absltest.main()
