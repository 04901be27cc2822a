"""CapsNet, its losses and its baseline against the paper, in NumPy."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized
from flax import nnx

from capjax import baselines, capsnet, losses

_SEEDS = (0, 1)
_IMAGE_SHAPE = (12, 11, 2)
_SMALL = dict(
  image_shape=_IMAGE_SHAPE,
  num_classes=3,
  conv_features=4,
  conv_kernel=3,
  num_types=3,
  part_size=4,
  primary_kernel=3,
  pose_size=5,
  decoder_features=(6, 7),
)


def _model(seed=0, **options):
  return capsnet.CapsNet(**{**_SMALL, **options}, rngs=nnx.Rngs(seed))


def _batch(seed=0, size=4, shape=_IMAGE_SHAPE):
  keys = jax.random.split(jax.random.key(seed))
  images = jax.random.uniform(keys[0], (size, *shape))
  return images, jax.random.randint(keys[1], (size,), 0, 3)


def _num_parameters(tree):
  return sum(leaf.size for leaf in jax.tree.leaves(tree))


@jax.jit
def _run(model, images, classes):
  output = model(images)
  return output, model.decode(output.poses, classes)


@functools.partial(jax.jit, static_argnums=3)
def _capsnet_loss(model, images, labels, weight):
  return losses.capsnet_loss(
    model, images, labels, reconstruction_weight=weight
  )


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
  return norm**2 / (1 + norm**2) * s / norm


def _oracle(model, image, label, *, num_iterations=3):
  """The paper's figures 1 and 2 for one image, in float64."""
  parameters = jax.tree.map(np.float64, nnx.to_pure_dict(nnx.state(model)))
  conv, primary = parameters["conv"], parameters["primary"]["conv"]
  features = np.maximum(0, _conv_oracle(np.float64(image), **conv, stride=1))
  features = _conv_oracle(features, **primary, stride=2)
  parts = [
    _squash_oracle(features[y, x, 4 * kind : 4 * kind + 4])
    for y in range(features.shape[0])
    for x in range(features.shape[1])
    for kind in range(3)
  ]
  transforms = parameters["classes"]["transforms"]
  votes = np.array(
    [
      [part @ matrix for matrix in row]
      for part, row in zip(parts, transforms, strict=True)
    ]
  )
  logits = np.zeros(votes.shape[:2])
  for _ in range(num_iterations):
    weights = np.exp(logits)
    coefficients = weights / weights.sum(axis=1, keepdims=True)
    poses = np.array(
      [
        _squash_oracle(
          sum(
            c * u for c, u in zip(coefficients[:, j], votes[:, j], strict=True)
          )
          + parameters["classes"]["bias"][j]
        )
        for j in range(3)
      ]
    )
    logits = logits + np.sum(votes * poses, axis=2)
  x = np.zeros((3, 5))
  x[label] = poses[label]
  x = x.reshape(-1)
  dense = parameters["decoder"]["layers"]
  for layer in range(3):
    x = x @ dense[layer]["kernel"] + dense[layer]["bias"]
    x = np.maximum(0, x) if layer < 2 else 1 / (1 + np.exp(-x))
  lengths = np.sqrt(np.sum(poses**2, axis=1))
  return poses, lengths, coefficients, x.reshape(image.shape)


def check_matches_oracle(run, seed=0):
  model, (images, labels) = _model(seed), _batch(seed, 2)
  output, drawn = run(model, images, labels)
  for b in range(2):
    *want, want_drawn = _oracle(model, images[b], labels[b])
    for name, value in zip(output._fields, want, strict=True):
      got = getattr(output, name)[b]
      np.testing.assert_allclose(got, value, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(drawn[b], want_drawn, atol=1e-5)


def check_only_the_chosen_capsule_is_drawn(decode, seed=0):
  poses = jax.random.normal(jax.random.key(seed), (2, 3, 5))
  classes = jnp.array([2, 0])
  want = decode(poses, classes)
  chosen = np.arange(3) == classes[:, None]
  others = jnp.where(chosen[..., None], poses, -3 * poses + 1)
  chex.assert_trees_all_equal(decode(others, classes), want)
  itself = jnp.where(chosen[..., None], poses + 1, poses)
  changes = jnp.max(jnp.abs(decode(itself, classes) - want), axis=(1, 2, 3))
  np.testing.assert_array_less(1e-3, changes)


def check_capsules_share_no_position(decode):
  """Equal poses of different classes draw different images."""
  poses = jnp.ones((2, 3, 5))
  first, second = decode(poses, jnp.array([0, 1]))
  np.testing.assert_array_less(1e-3, jnp.max(jnp.abs(first - second)))


def check_margin_loss_matches_oracle(margin_loss, seed=0):
  keys = jax.random.split(jax.random.key(seed))
  lengths = jax.random.uniform(keys[0], (6, 5))
  present = jax.random.bernoulli(keys[1], 0.4, (6, 5)).astype(jnp.float32)
  want = []
  for row, flags in zip(np.float64(lengths), np.array(present), strict=True):
    total = 0.0
    for length, flag in zip(row, flags, strict=True):
      if flag:
        total += max(0, 0.9 - length) ** 2
      else:
        total += 0.5 * max(0, length - 0.1) ** 2
    want.append(total)
  np.testing.assert_allclose(margin_loss(lengths, present), want, rtol=1e-5)


def check_official_loss(weights, seed=0):
  """1/20 of ours: a mean over 10 classes, halved, + 0.0005 sum of squares."""
  keys = jax.random.split(jax.random.key(seed), 3)
  lengths = jax.random.uniform(keys[0], (6, 10))
  present = jax.nn.one_hot(jax.random.randint(keys[1], (6,), 0, 10), 10)
  images, drawn = jax.random.uniform(keys[2], (2, 6, 8, 8, 1))
  lacking = np.maximum(0, 0.9 - np.float64(lengths)) ** 2
  excess = np.maximum(0, np.float64(lengths) - 0.1) ** 2
  pairs = 0.5 * present * lacking + 0.25 * (1 - present) * excess
  squares = np.sum((np.float64(drawn) - np.float64(images)) ** 2, (1, 2, 3))
  official = np.mean(pairs) + 0.0005 * np.mean(squares)
  ours = losses.margin_loss(lengths, present) + weights[
    "official"
  ] * losses.reconstruction_loss(drawn, images)
  np.testing.assert_allclose(20 * official, np.mean(ours), rtol=1e-5)


@jax.jit
def _no_relu(model, images, classes):
  poses = model.primary(model.conv(images))
  output = capsnet.CapsNetOutput(*model.classes(poses))
  return output, model.decode(output.poses, classes)


def _fewer_iterations(model, images, classes):
  del images
  other = _model(num_iterations=2)
  return _run(other, _batch(0, 2)[0], classes)


def _capsules_across_types(model, images, classes):
  """Takes every third channel for a capsule in place of four neighbours."""
  order = np.arange(12).reshape(4, 3).T.reshape(-1)
  kernel, bias = model.primary.conv.kernel, model.primary.conv.bias
  model = nnx.clone(model)
  model.primary.conv.kernel = nnx.Param(kernel[...][..., order])
  model.primary.conv.bias = nnx.Param(bias[...][order])
  return _run(model, images, classes)


def _next_class_drawn(model, images, classes):
  return _run(model, images, (classes + 1) % 3)


def _unmasked(poses, classes):
  del classes
  return _model().decoder(poses)


def _others_masked_by_half(poses, classes):
  mask = 0.5 + 0.5 * jax.nn.one_hot(classes, 3)
  return _model().decoder(poses * mask[..., None])


def _selected_first(poses, classes):
  """Feeds the chosen 5 numbers always to the same inputs."""
  chosen = poses[jnp.arange(len(poses)), classes]
  return _model().decoder(jnp.pad(chosen[:, None], ((0, 0), (0, 2), (0, 0))))


class CapsNetTest(chex.TestCase):
  @parameterized.parameters(*_SEEDS)
  def test_matches_oracle(self, seed):
    check_matches_oracle(_run, seed)

  @parameterized.parameters(
    check_only_the_chosen_capsule_is_drawn, check_capsules_share_no_position
  )
  def test_decoder(self, check):
    check(_model().decode)

  @parameterized.parameters(
    (check_matches_oracle, _no_relu),
    (check_matches_oracle, _fewer_iterations),
    (check_matches_oracle, _capsules_across_types),
    (check_matches_oracle, _next_class_drawn),
    (check_only_the_chosen_capsule_is_drawn, _unmasked),
    (check_only_the_chosen_capsule_is_drawn, _others_masked_by_half),
    (check_capsules_share_no_position, _selected_first),
    (
      check_margin_loss_matches_oracle,
      functools.partial(losses.margin_loss, absent_weight=1.0),
    ),
    (
      check_margin_loss_matches_oracle,
      functools.partial(losses.margin_loss, upper=1.0),
    ),
    (
      check_margin_loss_matches_oracle,
      lambda lengths, present: losses.margin_loss(lengths, present) / 5,
    ),
    (check_official_loss, {"official": 0.0005}),
    (check_official_loss, {"official": 0.005}),
  )
  def test_broken_copy_fails(self, check, broken):
    with self.assertRaises(AssertionError):
      check(broken)

  def test_number_of_parameters(self):
    model = jax.eval_shape(lambda: capsnet.CapsNet(rngs=nnx.Rngs(0)))
    self.assertEqual(_num_parameters(model), 8_215_728)
    self.assertEqual(_num_parameters(model.conv), 20_992)
    self.assertEqual(_num_parameters(model.primary), 5_308_672)
    self.assertEqual(model.classes.transforms.size, 1_474_560)
    self.assertEqual(model.classes.bias.size, 160)
    self.assertEqual(_num_parameters(model.decoder), 1_411_344)

  def test_shapes_of_the_paper(self):
    def run(images):
      model = capsnet.CapsNet(rngs=nnx.Rngs(0))
      output = model(images)
      return output, model.decode(output.poses, jnp.zeros(2, jnp.int32))

    images = jax.ShapeDtypeStruct((2, 28, 28, 1), jnp.float32)
    output, drawn = jax.eval_shape(run, images)
    chex.assert_shape(
      [*output, drawn],
      [(2, 10, 16), (2, 10), (2, 1152, 10), (2, 28, 28, 1)],
    )

  @parameterized.parameters(
    (dict(), 4 * 4 * 3),
    (dict(primary_stride=1), 8 * 7 * 3),
    (dict(primary_kernel=8), 2 * 1 * 3),
    (dict(num_types=2, image_shape=(9, 12, 1)), 3 * 4 * 2),
  )
  def test_number_of_primary_capsules(self, options, num_parts):
    shape = options.get("image_shape", _IMAGE_SHAPE)
    model = jax.eval_shape(lambda: _model(**options))
    images = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
    output = jax.eval_shape(lambda model, x: model(x), model, images)
    chex.assert_shape(output.coefficients, (2, num_parts, 3))
    self.assertEqual(model.classes.transforms.shape[0], num_parts)

  def test_outputs_are_in_range(self):
    output, drawn = _run(_model(), *_batch())
    np.testing.assert_array_less(output.activations, 1)
    lengths = np.linalg.norm(output.poses, axis=-1)
    np.testing.assert_allclose(output.activations, lengths, atol=1e-6)
    total = np.sum(output.coefficients, axis=-1)
    np.testing.assert_allclose(total, 1, atol=1e-5)
    np.testing.assert_array_less(0, drawn)
    np.testing.assert_array_less(drawn, 1)

  def test_options_reach_the_routing(self):
    images, classes = _batch()
    uniform, _ = _run(_model(num_iterations=1), images, classes)
    np.testing.assert_allclose(uniform.coefficients, 1 / 3, rtol=1e-6)
    leaky, _ = _run(_model(leaky=True), images, classes)
    total = np.sum(leaky.coefficients, axis=-1)
    np.testing.assert_array_less(total, 0.99)

  def test_without_decoder(self):
    model = _model(decoder_features=())
    self.assertIsNone(model.decoder)
    with self.assertRaisesRegex(ValueError, "no decoder"):
      model.decode(jnp.zeros((2, 3, 5)), jnp.zeros(2, jnp.int32))

  @parameterized.parameters((4, 12), (12, 4))
  def test_small_images_are_refused(self, height, width):
    with self.assertRaisesRegex(ValueError, f"{height}x{width} are too small"):
      _model(image_shape=(height, width, 1))

  def test_starts_as_the_official_code(self):
    model = capsnet.CapsNet(num_types=4, decoder_features=(), rngs=nnx.Rngs(0))
    # A normal cut at two standard deviations keeps 0.88 of its spread.
    for parameter, scale in [
      (model.conv.kernel, 0.05),
      (model.primary.conv.kernel, 0.1),
      (model.classes.transforms, 0.1),
    ]:
      values = np.array(parameter[...])
      np.testing.assert_allclose(np.std(values), 0.8796 * scale, rtol=0.02)
      np.testing.assert_allclose(np.mean(values), 0, atol=0.02 * scale)
      np.testing.assert_array_less(np.abs(values), 2.001 * scale)
    for bias in (model.conv.bias, model.primary.conv.bias, model.classes.bias):
      np.testing.assert_array_equal(bias[...], np.float32(0.1))

  def test_seed_decides_the_parameters(self):
    first, same, other = (
      [np.array(leaf) for leaf in jax.tree.leaves(_model(seed))]
      for seed in (0, 0, 1)
    )
    chex.assert_trees_all_equal(first, same)
    for a, b in zip(first, other, strict=True):
      # Biases start at constants.
      self.assertEqual(np.any(a != b), np.ptp(a) > 0)

  def test_models_of_the_same_widths_are_the_same_tree(self):
    """So that copies mix, and a restored model needs no new compilation."""
    trees = [jax.tree.structure(_model(seed)) for seed in (0, 1)]
    self.assertEqual(*trees)
    other = jax.tree.structure(_model(num_iterations=1))
    self.assertNotEqual(trees[0], other)

  def test_adam_lowers_the_loss(self, seed=0):
    """With plain transformations of the module as a tree."""
    optimizer = optax.adam(0.01)

    def loss(model, images, labels):
      return losses.capsnet_loss(
        model, images, labels, reconstruction_weight=0.01
      )

    @jax.jit
    def update(model, opt_state, images, labels):
      (_, metrics), gradients = jax.value_and_grad(loss, has_aux=True)(
        model, images, labels
      )
      updates, opt_state = optimizer.update(gradients, opt_state, model)
      model = optax.apply_updates(model, updates)
      return model, opt_state, metrics, gradients

    (images, labels), history = _batch(seed), []
    model = _model(seed)
    opt_state = optimizer.init(model)
    for step in range(60):
      model, opt_state, metrics, gradients = update(
        model, opt_state, images, labels
      )
      history.append(metrics)
      if step == 0:
        # Every parameter takes part.
        for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
          name = jax.tree_util.keystr(path)
          self.assertTrue(np.all(np.isfinite(leaf)), name)
          self.assertGreater(np.max(np.abs(leaf)), 0, name)
    self.assertIsInstance(model, capsnet.CapsNet)
    for name in ("loss", "margin_loss", "reconstruction_loss"):
      self.assertLess(history[-1][name], 0.7 * history[0][name], name)

  def test_bfloat16_stays_close(self):
    images, classes = _batch()
    half = _model(dtype=jnp.bfloat16)
    chex.assert_type(jax.tree.leaves(half), jnp.float32)
    got, want = (_run(model, images, classes) for model in (half, _model()))
    chex.assert_type(jax.tree.leaves(got), jnp.float32)
    chex.assert_trees_all_close(got, want, atol=0.02)
    self.assertGreater(np.max(np.abs(got[0].poses - want[0].poses)), 0)


class LossesTest(chex.TestCase):
  @parameterized.parameters(*_SEEDS)
  def test_margin_loss(self, seed):
    check_margin_loss_matches_oracle(losses.margin_loss, seed)

  @parameterized.parameters(*_SEEDS)
  def test_official_weight(self, seed):
    check_official_loss(losses.RECONSTRUCTION_WEIGHTS, seed)

  def test_presets(self):
    weights = losses.RECONSTRUCTION_WEIGHTS
    self.assertEqual(weights["none"], 0)
    self.assertEqual(weights["paper"], 0.0005)
    self.assertAlmostEqual(weights["official"], 20 * weights["paper"])

  def test_perfect_output_costs_nothing(self):
    present = jnp.array([[1.0, 0.0, 1.0, 0.0]])
    lengths = jnp.where(present > 0, 0.95, 0.05)
    np.testing.assert_array_equal(losses.margin_loss(lengths, present), [0])
    np.testing.assert_array_less(0, losses.margin_loss(1 - lengths, present))

  def test_reconstruction_loss_is_a_sum(self):
    a, b = jnp.zeros((2, 3, 4, 2)), jnp.full((2, 3, 4, 2), 0.5)
    np.testing.assert_allclose(losses.reconstruction_loss(a, b), [6, 6])

  def test_capsnet_loss(self):
    """The true class is decoded, also where another capsule is longer."""
    model, (images, labels) = _model(), _batch()
    output, drawn = _run(model, images, labels)
    present = jax.nn.one_hot(labels, 3)
    margin = np.mean(losses.margin_loss(output.activations, present))
    squares = np.mean(losses.reconstruction_loss(drawn, images))
    longest = np.argmax(output.activations, axis=1)
    self.assertTrue(np.any(longest != labels))
    loss, metrics = _capsnet_loss(model, images, labels, 0.01)
    want = {
      "loss": margin + 0.01 * squares,
      "margin_loss": margin,
      "reconstruction_loss": squares,
      "accuracy": np.mean(longest == labels),
    }
    chex.assert_trees_all_close(metrics, want, rtol=1e-5)
    chex.assert_trees_all_equal(loss, metrics["loss"])

  def test_capsnet_loss_without_reconstruction(self):
    model = _model(decoder_features=())
    loss, metrics = _capsnet_loss(model, *_batch(), 0.0)
    self.assertEqual(set(metrics), {"loss", "margin_loss", "accuracy"})
    chex.assert_trees_all_equal(loss, metrics["margin_loss"])

  def test_classifier_loss(self):
    logits = jnp.array([[2.0, 0.0, -1.0], [0.0, 3.0, 1.0]])
    loss, metrics = losses.classifier_loss(logits, jnp.array([0, 2]))
    rows = np.float64(logits)
    want = np.mean(np.log(np.exp(rows).sum(1)) - rows[[0, 1], [0, 2]])
    np.testing.assert_allclose(loss, want, rtol=1e-6)
    want = {"loss": want, "accuracy": 0.5}
    chex.assert_trees_all_close(metrics, want, rtol=1e-6)


class BaselineTest(chex.TestCase):
  def _small(self, **options):
    widths = dict(conv_features=(2, 2, 2), dense_features=(8, 200))
    return baselines.CapsNetBaseline(
      (6, 5, 1), 3, **{**widths, **options}, rngs=nnx.Rngs(0)
    )

  def test_number_of_parameters(self):
    model = jax.eval_shape(lambda: baselines.CapsNetBaseline(rngs=nnx.Rngs(0)))
    self.assertEqual(_num_parameters(model), 35_445_522)

  def test_shape(self):
    logits = self._small()(_batch(0, 4, (6, 5, 1))[0])
    chex.assert_shape(logits, (4, 3))
    chex.assert_tree_all_finite(logits)

  def test_dropout_needs_a_key_and_keeps_the_expectation(self):
    model, (images, _) = self._small(), _batch(0, 2, (6, 5, 1))
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
    model, (images, _) = self._small(dropout=0.0), _batch(0, 2, (6, 5, 1))
    got = model(images, jax.random.key(0))
    chex.assert_trees_all_close(got, model(images), rtol=1e-6)


if __name__ == "__main__":
  absltest.main()
