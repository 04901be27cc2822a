"""CapsNet against the paper, in NumPy."""

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
from absl.testing import absltest, parameterized
from flax import nnx
from sklearn import datasets

from capjax import capsnet, losses


@jax.jit
def _run(model, images, classes):
  output = model(images)
  return output, model.decode(output.poses, classes)


def _oracle(model, image, label):
  """The paper's figures 1 and 2 for one image, in float64."""
  parameters = jax.tree.map(np.float64, nnx.to_pure_dict(nnx.state(model)))
  conv, primary = parameters["conv"], parameters["primary"]["conv"]
  features = oracles.convolve(image[None], conv["kernel"]) + conv["bias"]
  features = np.maximum(0, features)
  features = oracles.convolve(features, primary["kernel"], stride=2)[0]
  # The one parent below shares itself out evenly over the three types.
  features = features / 3 + primary["bias"]
  parts = [
    oracles.squash(features[y, x, 4 * kind : 4 * kind + 4])
    for y in range(features.shape[0])
    for x in range(features.shape[1])
    for kind in range(3)
  ]
  classes = parameters["classes"]
  votes = np.array(
    [
      [part @ matrix for matrix in row]
      for part, row in zip(parts, classes["transforms"], strict=True)
    ]
  )
  poses, *rest = oracles.dynamic_routing(votes, bias=classes["bias"])
  drawn = oracles.decode(poses, label, parameters["decoder"]["layers"])
  return poses, *rest, drawn.reshape(image.shape)


def check_matches_oracle(run, seed=0):
  model, (images, labels) = cases.capsnet(seed), cases.batch(seed, 2)
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


@jax.jit
def _no_relu(model, images, classes):
  poses = model.primary(model.conv(images))
  output = model.classes(poses)
  return output, model.decode(output.poses, classes)


def _fewer_iterations(model, images, classes):
  del images
  other = cases.capsnet(num_iterations=2)
  return _run(other, cases.batch(0, 2)[0], classes)


def _capsules_across_types(model, images, classes):
  """Makes a capsule of every third channel instead of four neighbours."""
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
  return cases.capsnet().decoder(poses)


def _others_masked_by_half(poses, classes):
  mask = 0.5 + 0.5 * jax.nn.one_hot(classes, 3)
  return cases.capsnet().decoder(poses * mask[..., None])


def _selected_first(poses, classes):
  """Feeds the chosen 5 numbers always to the same inputs."""
  chosen = poses[jnp.arange(len(poses)), classes]
  return cases.capsnet().decoder(
    jnp.pad(chosen[:, None], ((0, 0), (0, 2), (0, 0)))
  )


class CapsNetTest(chex.TestCase):
  @parameterized.parameters(0, 1)
  def test_matches_oracle(self, seed):
    check_matches_oracle(_run, seed)

  @parameterized.parameters(
    check_only_the_chosen_capsule_is_drawn, check_capsules_share_no_position
  )
  def test_decoder(self, check):
    check(cases.capsnet().decode)

  @parameterized.parameters(
    (check_matches_oracle, _no_relu),
    (check_matches_oracle, _fewer_iterations),
    (check_matches_oracle, _capsules_across_types),
    (check_matches_oracle, _next_class_drawn),
    (check_only_the_chosen_capsule_is_drawn, _unmasked),
    (check_only_the_chosen_capsule_is_drawn, _others_masked_by_half),
    (check_capsules_share_no_position, _selected_first),
  )
  @pytest.mark.long_after_first
  def test_broken_copy_fails(self, check, broken):
    with self.assertRaises(AssertionError):
      check(broken)

  def test_number_of_parameters(self):
    model = jax.eval_shape(lambda: capsnet.CapsNet(rngs=nnx.Rngs(0)))
    self.assertEqual(cases.num_parameters(model), 8_215_728)
    self.assertEqual(cases.num_parameters(model.conv), 20_992)
    self.assertEqual(cases.num_parameters(model.primary), 5_308_672)
    self.assertEqual(model.classes.transforms.size, 1_474_560)
    self.assertEqual(model.classes.bias.size, 160)
    self.assertEqual(cases.num_parameters(model.decoder), 1_411_344)

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
    shape = options.get("image_shape", cases.IMAGE_SHAPE)
    model = jax.eval_shape(lambda: cases.capsnet(**options))
    images = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
    output = jax.eval_shape(lambda model, x: model(x), model, images)
    chex.assert_shape(output.coefficients, (2, num_parts, 3))
    self.assertEqual(model.classes.transforms.shape[0], num_parts)

  def test_outputs_are_in_range(self):
    output, drawn = _run(cases.capsnet(), *cases.batch())
    np.testing.assert_array_less(output.activations, 1)
    lengths = np.linalg.norm(output.poses, axis=-1)
    np.testing.assert_allclose(output.activations, lengths, atol=1e-6)
    total = np.sum(output.coefficients, axis=-1)
    np.testing.assert_allclose(total, 1, atol=1e-5)
    np.testing.assert_array_less(0, drawn)
    np.testing.assert_array_less(drawn, 1)

  def test_options_reach_the_routing(self):
    images, classes = cases.batch()
    uniform, _ = _run(cases.capsnet(num_iterations=1), images, classes)
    np.testing.assert_allclose(uniform.coefficients, 1 / 3, rtol=1e-6)
    leaky, _ = _run(cases.capsnet(leaky=True), images, classes)
    total = np.sum(leaky.coefficients, axis=-1)
    np.testing.assert_array_less(total, 0.99)

  def test_without_decoder(self):
    model = cases.capsnet(decoder_features=())
    self.assertIsNone(model.decoder)
    with self.assertRaisesRegex(ValueError, "no decoder"):
      model.decode(jnp.zeros((2, 3, 5)), jnp.zeros(2, jnp.int32))

  @parameterized.parameters((4, 12), (12, 4))
  def test_small_images_are_refused(self, height, width):
    with self.assertRaisesRegex(ValueError, f"{height}x{width} are too small"):
      cases.capsnet(image_shape=(height, width, 1))

  @parameterized.parameters(0, -1)
  def test_strides_below_one_are_refused(self, stride):
    with self.assertRaisesRegex(ValueError, f"primary_stride is {stride}; "):
      cases.capsnet(primary_stride=stride)

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
      [np.array(leaf) for leaf in jax.tree.leaves(cases.capsnet(seed))]
      for seed in (0, 0, 1)
    )
    chex.assert_trees_all_equal(first, same)
    for a, b in zip(first, other, strict=True):
      # Biases start at constants.
      self.assertEqual(np.any(a != b), np.ptp(a) > 0)

  def test_models_of_the_same_widths_are_the_same_tree(self):
    """So that copies mix, and a restored model needs no new compilation."""
    trees = [jax.tree.structure(cases.capsnet(seed)) for seed in (0, 1)]
    self.assertEqual(*trees)
    other = jax.tree.structure(cases.capsnet(num_iterations=1))
    self.assertNotEqual(trees[0], other)

  def test_hidden_capsules_are_routed_like_the_classes(self):
    model = cases.capsnet(hidden_capsules=(6, 4), decoder_features=())
    images, _ = cases.batch(size=2)
    output, poses = jax.jit(
      lambda model, images: (model(images), model.capsules(images)[0][0])
    )(model, images)
    parameters = jax.tree.map(np.float64, nnx.to_pure_dict(nnx.state(model)))
    for b in range(2):
      below = np.float64(poses[b]).reshape(48, 4)
      hidden = parameters["hidden"]
      for layer in (hidden[0], hidden[1], parameters["classes"]):
        votes = np.einsum("ic,ijcd->ijd", below, layer["transforms"])
        want = oracles.dynamic_routing(votes, bias=layer["bias"])
        below = want[0]
      for got, value in zip(output, want, strict=True):
        np.testing.assert_allclose(got[b], value, atol=1e-5)

  @pytest.mark.long
  def test_activations_of_hidden_capsules_are_passed_on(self):
    """Activations of EM are not the lengths of poses."""
    model = cases.capsnet(hidden_capsules=(6,), routing="em")
    images, _ = cases.batch(size=2)
    (below, none), (poses, activations) = model.capsules(images)
    self.assertIsNone(none)
    want = model.hidden[0](below)
    chex.assert_trees_all_equal((poses, activations), want[:2])
    lengths = np.linalg.norm(poses, axis=-1)
    self.assertGreater(np.max(np.abs(lengths - activations)), 0.01)
    chex.assert_trees_all_close(
      model(images), model.classes(poses, activations), atol=1e-6
    )

  def test_without_hidden_capsules_nothing_is_added(self):
    paths = [
      [path for path, _ in jax.tree_util.tree_leaves_with_path(model)]
      for model in (cases.capsnet(), cases.capsnet(hidden_capsules=()))
    ]
    self.assertEqual(*paths)
    with self.assertRaisesRegex(ValueError, "hidden_capsules"):
      cases.capsnet(hidden_capsules=(3, 0))

  @pytest.mark.long
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

    (images, labels), history = cases.batch(seed), []
    model = cases.capsnet(seed)
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
    images, classes = cases.batch()
    half = cases.capsnet(dtype=jnp.bfloat16)
    chex.assert_type(jax.tree.leaves(half), jnp.float32)
    got, want = (
      _run(model, images, classes) for model in (half, cases.capsnet())
    )
    chex.assert_type(jax.tree.leaves(got), jnp.float32)
    chex.assert_trees_all_close(got, want, atol=0.02)
    self.assertGreater(np.max(np.abs(got[0].poses - want[0].poses)), 0)

  @parameterized.parameters(
    # Lengths of nine capsules in ten; median gain of the squash along a pose,
    # 2|s| / (1 + |s|^2)^2.
    dict(scale=None, lengths=(0.04, 0.25), gain=(0.5, 0.6)),
    dict(scale=1.0, lengths=(0.92, 1.0), gain=(0.001, 0.02)),
  )
  @pytest.mark.long
  def test_primary_capsules_start_within_reach(self, scale, lengths, gain):
    """At full width; without the authors' factor they start saturated."""
    model = capsnet.CapsNet(
      primary_scale=scale, decoder_features=(), rngs=nnx.Rngs(0)
    )
    digits = datasets.load_digits().images[:4, :, :, None] / 16
    images = np.pad(
      digits.repeat(3, 1).repeat(3, 2), ((0, 0), *[(2, 2)] * 2, (0, 0))
    )
    poses = model.primary(jax.nn.relu(model.conv(jnp.float32(images))))
    norms = np.linalg.norm(poses, axis=-1)
    squares = norms / (1 - norms)
    gains = 2 * np.sqrt(squares) / (1 + squares) ** 2
    low, high = np.quantile(norms, (0.05, 0.95))
    self.assertBetween(low, *lengths)
    self.assertBetween(high, *lengths)
    self.assertBetween(np.median(gains), *gain)


if __name__ == "__main__":
  absltest.main()
