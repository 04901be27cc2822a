"""Efficient-CapsNet against the paper, in NumPy, and its training."""

import functools
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized
from flax import nnx

from capjax import capsnet, efficient_capsnet, layers, losses, tiling

_IMAGE_SHAPE = (13, 10, 2)
_ADAM = optax.adam(0.01)
_SMALL = dict(
  image_shape=_IMAGE_SHAPE,
  num_classes=3,
  conv_features=(5, 8),
  conv_kernels=(4, 3),
  conv_strides=(1, 2),
  part_size=4,
  pose_size=5,
  decoder_features=(6, 7),
)


def _model(seed=0, **options):
  options = {**_SMALL, **options}
  return efficient_capsnet.EfficientCapsNet(**options, rngs=nnx.Rngs(seed))


def _perturbed(seed=0):
  """A model none of whose numbers is at its first value."""
  random = np.random.default_rng(seed)

  def move(leaf):
    return leaf + 0.3 * random.uniform(size=leaf.shape).astype(leaf.dtype)

  return jax.tree.map(move, _model(seed))


def _batch(seed=0, size=3, shape=_IMAGE_SHAPE):
  keys = jax.random.split(jax.random.key(seed))
  images = jax.random.uniform(keys[0], (size, *shape))
  return images, jax.random.randint(keys[1], (size,), 0, 3)


def _num_parameters(tree):
  return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(tree, nnx.Param)))


def _statistics(model):
  return jax.tree.leaves(nnx.state(model, nnx.BatchStat))


@jax.jit
def _run(model, images, classes):
  """The output, an image of it, and the statistics that the call leaves."""
  output = model(images)
  drawn = model.decode(output.poses, classes)
  return output, drawn, nnx.state(model, nnx.BatchStat)


def _conv_oracle(image, kernel, bias, stride):
  taps, _, _, filters = kernel.shape
  rows, columns = ((size - taps) // stride + 1 for size in image.shape[:2])
  out = np.zeros((rows, columns, filters))
  for y in range(rows):
    for x in range(columns):
      window = image[stride * y :, stride * x :][:taps, :taps]
      for d in range(filters):
        out[y, x, d] = np.sum(window * kernel[..., d]) + bias[d]
  return out


def _squash_oracle(s):
  norm = np.sqrt(np.sum(s**2))
  return (1 - np.exp(-norm)) * s / norm


def _capsules_oracle(features, parameters):
  """Poses of the classes and coefficients from one example's last map."""
  kernel, bias = parameters["primary"]["kernel"], parameters["primary"]["bias"]
  numbers = [np.sum(features[..., f] * kernel[..., f]) for f in range(8)]
  numbers += bias
  parts = [_squash_oracle(numbers[i : i + 4]) for i in (0, 4)]
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
    coefficients[i] = np.exp(scores) / np.sum(np.exp(scores))
  coefficients += parameters["classes"]["route"]["priors"]
  poses = [
    _squash_oracle(sum(coefficients[i, j] * votes[i, j] for i in range(2)))
    for j in range(3)
  ]
  return np.array(poses), coefficients


def _oracle(model, images, labels, *, training):
  """The paper's section 3 in float64, and Keras' batch normalisation."""
  parameters = jax.tree.map(np.float64, nnx.to_pure_dict(nnx.state(model)))
  maps, statistics = list(np.float64(images)), []
  for layer, stride in enumerate(_SMALL["conv_strides"]):
    conv, norm = parameters["convs"][layer], parameters["norms"][layer]
    maps = [np.maximum(0, _conv_oracle(x, **conv, stride=stride)) for x in maps]
    mean, var = norm["mean"], norm["var"]
    if training:
      mean = np.mean(maps, axis=(0, 1, 2))
      var = np.mean((np.array(maps) - mean) ** 2, axis=(0, 1, 2))
      kept = [
        0.99 * norm["mean"] + 0.01 * mean,
        0.99 * norm["var"] + 0.01 * var,
      ]
      statistics += kept
    else:
      statistics += [mean, var]
    maps = [
      (x - mean) / np.sqrt(var + 1e-3) * norm["scale"] + norm["bias"]
      for x in maps
    ]
  capsules = [_capsules_oracle(x, parameters) for x in maps]
  poses, coefficients = (np.array(x) for x in zip(*capsules, strict=True))
  drawn = []
  for pose, label in zip(poses, labels, strict=True):
    x = np.zeros((3, 5))
    x[label] = pose[label]
    x = x.reshape(-1)
    for i in range(3):
      dense = parameters["decoder"]["layers"][i]
      x = x @ dense["kernel"] + dense["bias"]
      x = np.maximum(0, x) if i < 2 else 1 / (1 + np.exp(-x))
    drawn.append(x.reshape(_IMAGE_SHAPE))
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


def check_learns(update):
  """Adam lowers the loss and statistics follow the data."""
  model, (images, labels) = _model(), _batch()
  opt_state = _ADAM.init(nnx.state(model, nnx.Param))
  before = [np.array(x) for x in _statistics(model)]
  history = []
  for _ in range(40):
    model, opt_state, loss = update(model, opt_state, images, labels)
    history.append(loss)
  np.testing.assert_array_less(history[-1], 0.5 * history[0])
  for a, b in zip(before, _statistics(model), strict=True):
    np.testing.assert_array_less(1e-4, np.max(np.abs(a - b)))


def check_update_keeps_the_tree(update):
  """So that the next step needs no compilation."""
  model = _model()
  opt_state = _ADAM.init(nnx.state(model, nnx.Param))
  updated, *_ = update(model, opt_state, *_batch())
  chex.assert_trees_all_equal_structs(model, updated)


def _loss(model, images, labels):
  return losses.capsnet_loss(
    model, images, labels, reconstruction_weight=0.0005
  )[0]


_gradients = jax.jit(jax.grad(_loss))


@jax.jit
def _update(model, opt_state, images, labels):
  """Differentiates parameters; carries over what else the call changes."""
  graph, parameters, rest = nnx.split(model, nnx.Param, ...)

  def of_parameters(parameters):
    # Variables may only change at the level of the trace that made them.
    model = nnx.merge(graph, parameters, rest, copy=True)
    loss = _loss(model, images, labels)
    return loss, nnx.state(model, nnx.Not(nnx.Param))

  gradient = jax.value_and_grad(of_parameters, has_aux=True)
  (loss, rest), gradients = gradient(parameters)
  updates, opt_state = _ADAM.update(gradients, opt_state, parameters)
  parameters = optax.apply_updates(parameters, updates)
  return nnx.merge(graph, parameters, rest), opt_state, loss


def _forgetful(model, opt_state, images, labels):
  """Drops the statistics that the call leaves."""
  updated, opt_state, loss = _update(model, opt_state, images, labels)
  graph, parameters, _ = nnx.split(updated, nnx.Param, ...)
  rest = nnx.state(model, nnx.Not(nnx.Param))
  return nnx.merge(graph, parameters, rest), opt_state, loss


def _without_gradient(model, opt_state, images, labels):
  """Keeps the statistics alone."""
  updated, _, loss = _update(model, opt_state, images, labels)
  graph, _, rest = nnx.split(updated, nnx.Param, ...)
  parameters = nnx.state(model, nnx.Param)
  return nnx.merge(graph, parameters, rest), opt_state, loss


def _mode_left_on(*arguments):
  """Returns the model in evaluation mode."""
  model, opt_state, loss = _update(*arguments)
  model.eval()
  return model, opt_state, loss


def _with_call(call):
  """`_run` of a model with another way to the class capsules."""

  @jax.jit
  def run(model, images, classes):
    output = capsnet.CapsNetOutput(*model.classes(call(model, images)))
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
  """Takes every second channel for a capsule in place of four neighbours."""
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

  @parameterized.parameters(check_learns, check_update_keeps_the_tree)
  def test_training(self, check):
    check(_update)

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
    (check_learns, _forgetful),
    (check_learns, _without_gradient),
    (check_update_keeps_the_tree, _mode_left_on),
  )
  def test_broken_copy_fails(self, check, broken):
    with self.assertRaises(AssertionError):
      check(broken)

  def test_number_of_parameters(self):
    model = jax.eval_shape(
      lambda: efficient_capsnet.EfficientCapsNet(rngs=nnx.Rngs(0))
    )
    # Taps times channels in and out, and biases.
    convs = [25 * 32 + 32, 9 * 32 * 64 + 64, 9 * 64**2 + 64, 9 * 64 * 128 + 128]
    self.assertEqual([_num_parameters(conv) for conv in model.convs], convs)
    self.assertEqual(_num_parameters(model.norms), 2 * (32 + 64 + 64 + 128))
    self.assertEqual(_num_parameters(model.primary), 81 * 128 + 128)
    self.assertEqual(model.classes.transforms.size, 16 * 10 * 8 * 16)
    self.assertIsNone(model.classes.bias)
    self.assertEqual(model.classes.route.priors.size, 16 * 10)
    self.assertEqual(_num_parameters(model.decoder), 1_411_344)
    # The paper's 161K.
    self.assertEqual(_num_parameters(model) - 1_411_344, 161_824)
    # Keras counts them too, as not trainable.
    self.assertEqual(sum(x.size for x in _statistics(model)), 576)

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
    with mock.patch.object(tiling, "_PIECE", length * model.num_features):
      # Of a new function, since traces are kept.
      run = jax.jit(lambda *arguments: _run.__wrapped__(*arguments))
      lowered = run.lower(model, images, labels)
    self.assertGreater(lowered.as_text().count("stablehlo.while"), 0)
    got = lowered.compile()(model, images, labels)
    chex.assert_trees_all_close(got, want, atol=1e-6)

  def test_mode_is_part_of_the_tree(self):
    """So that a compiled function of one mode is never run in the other."""
    training, evaluating = _model(), _model()
    evaluating.eval()
    self.assertNotEqual(*map(jax.tree.structure, (training, evaluating)))
    evaluating.train()
    chex.assert_trees_all_equal_structs(training, evaluating)

  def test_statistics_stay_where_they_are_not_returned(self):
    model = _model()
    before = [np.array(x) for x in _statistics(model)]
    *_, returned = _run(model, *_batch())
    chex.assert_trees_all_equal(_statistics(model), before)
    for a, b in zip(before, jax.tree.leaves(returned), strict=True):
      self.assertGreater(np.max(np.abs(a - b)), 0)

  def test_differentiable_at_blank_images(self):
    """All votes of a fresh model are zero there."""
    model, labels = _model(), _batch()[1]
    images = jnp.zeros((3, *_IMAGE_SHAPE))
    output, *_ = _run(model, images, labels)
    np.testing.assert_array_equal(output.poses, 0)
    gradients = nnx.state(_gradients(model, images, labels), nnx.Param)
    chex.assert_tree_all_finite(gradients)

  def test_every_parameter_takes_part(self):
    gradients = nnx.state(_gradients(_perturbed(), *_batch()), nnx.Param)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
      name = jax.tree_util.keystr(path)
      self.assertTrue(np.all(np.isfinite(leaf)), name)
      self.assertGreater(np.max(np.abs(leaf)), 0, name)

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
    chex.assert_trees_all_equal_structs(_model(0), _model(1))

  def test_without_decoder(self):
    model = _model(decoder_features=())
    self.assertIsNone(model.decoder)
    with self.assertRaisesRegex(ValueError, "no decoder"):
      model.decode(jnp.zeros((2, 3, 5)), jnp.zeros(2, jnp.int32))

  def test_bfloat16_stays_close(self):
    images, classes = _batch()
    half = _model(dtype=jnp.bfloat16)
    chex.assert_type(jax.tree.leaves(half), jnp.float32)
    got, want = (_run(model, images, classes) for model in (half, _model()))
    chex.assert_type(jax.tree.leaves(got), jnp.float32)
    chex.assert_trees_all_close(got, want, atol=0.03)
    self.assertGreater(np.max(np.abs(got[0].poses - want[0].poses)), 0)

  @parameterized.parameters(
    (dict(image_shape=(5, 12, 1)), "5x12 are too small .*smaller"),
    (dict(image_shape=(12, 5, 1)), "12x5 are too small"),
    (dict(part_size=3), "8 channels .*capsules of 3; give a multiple"),
    (dict(conv_strides=(1,)), r"\(1,\) must be as many"),
    (dict(conv_features=()), "one of each"),
  )
  def test_bad_arguments_are_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      _model(**options)


class DenseCapsTest(chex.TestCase):
  def test_bias_may_be_left_out(self):
    def layer(bias_init):
      return layers.DenseCaps(
        4,
        3,
        2,
        5,
        route=layers.router(3, False),
        transforms_init=nnx.initializers.normal(),
        bias_init=bias_init,
        rngs=nnx.Rngs(0),
      )

    with_bias, without = layer(nnx.initializers.zeros), layer(None)
    self.assertEqual(_num_parameters(with_bias) - _num_parameters(without), 10)
    poses = jax.random.normal(jax.random.key(0), (2, 4, 3))
    run = jax.jit(lambda layer, poses: layer(poses))
    chex.assert_trees_all_equal(run(with_bias, poses), run(without, poses))


if __name__ == "__main__":
  absltest.main()
