"""Losses of one object against plain loops.

Those of overlapping objects are in `losses_overlap_test`.
"""

import functools
import inspect

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from capjax import losses


@jax.jit
def _draw(model, images, classes):
  output = model(images)
  return output, model.decode(output.poses, classes)


@functools.partial(jax.jit, static_argnums=3)
def _capsnet_loss(model, images, labels, weight):
  return losses.capsnet_loss(
    model, images, labels, reconstruction_weight=weight
  )


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


class LossesTest(chex.TestCase):
  @parameterized.parameters(0, 1)
  def test_margin_loss(self, seed):
    check_margin_loss_matches_oracle(losses.margin_loss, seed)

  @parameterized.parameters(0, 1)
  def test_official_weight(self, seed):
    check_official_loss(losses.RECONSTRUCTION_WEIGHTS, seed)

  @parameterized.parameters(
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
    model, (images, labels) = cases.capsnet(), cases.batch()
    output, drawn = _draw(model, images, labels)
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
    model = cases.capsnet(decoder_features=())
    loss, metrics = _capsnet_loss(model, *cases.batch(), 0.0)
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


class SpreadTest(parameterized.TestCase):
  def _oracle(self, activations, label, margin):
    return sum(
      max(0.0, margin - (activations[label] - a)) ** 2
      for i, a in enumerate(activations)
      if i != label
    )

  @parameterized.parameters(0.2, 0.55, 0.9)
  def test_loss_in_a_loop(self, margin):
    random = np.random.default_rng(0)
    activations = random.uniform(size=(6, 4))
    labels = np.array([0, 1, 2, 3, 0, 1])
    want = [
      self._oracle(a, t, margin)
      for a, t in zip(activations, labels, strict=True)
    ]
    got = losses.spread_loss(
      jnp.float32(activations), jnp.array(labels), margin=margin
    )
    np.testing.assert_allclose(got, want, rtol=1e-5)
    # The true class itself does not enter.
    broken = np.array(want) + margin**2
    self.assertFalse(np.allclose(got, broken, atol=1e-3))

  def test_a_clear_lead_costs_nothing(self):
    activations = jnp.array([0.95, 0.0, 0.04])
    label = jnp.array(0)
    self.assertEqual(losses.spread_loss(activations, label, margin=0.9), 0)
    self.assertGreater(losses.spread_loss(activations, label, margin=0.99), 0)

  def test_margin_grows_from_0_2_to_0_99(self):
    margins = [
      float(losses.spread_margin(step)) for step in (0, 200_000, 700_000, 10**7)
    ]
    want = 0.2 + 0.79 / (1 + np.exp([4.0, 0.0, -10.0, -10.0]))
    np.testing.assert_allclose(margins, want, rtol=1e-5)
    self.assertAlmostEqual(
      float(losses.spread_margin(40, timescale=10.0)), margins[1], places=6
    )
    with self.assertRaisesRegex(ValueError, "timescale is 0.0"):
      losses.spread_margin(1, timescale=0.0)

  def test_share_loss_is_finite_and_right(self):
    got = losses.share_loss(
      jnp.array([[0.6, 0.2, 0.2], [0.0, 0.0, 0.0]]), jnp.array([0, 1])
    )
    np.testing.assert_allclose(got, -np.log([0.6, 1 / 3]), rtol=1e-5)


class BoundTest(parameterized.TestCase):
  def test_bounds_are_means_of_logs_and_the_log_of_means(self):
    weights = np.log([[0.1, 0.4, 0.2], [3.0, 3.0, 3.0]])
    got = losses.likelihood_bound(jnp.float32(weights))
    np.testing.assert_allclose(got.elbo, weights.mean(1), rtol=1e-5)
    want = np.log(np.exp(weights).mean(1))
    np.testing.assert_allclose(got.importance, want, rtol=1e-5)
    self.assertLess(got.elbo[0], got.importance[0])

  def test_no_weight_is_too_small_or_large(self):
    got = losses.likelihood_bound(jnp.array([[-2e4, -2e4], [3e4, 3e4]]))
    np.testing.assert_allclose(got.importance, [-2e4, 3e4])

  def test_labels_where_classes_belong_are_told_the_remedy(self):
    with self.assertRaisesRegex(
      TypeError, r"int(32|64); .*one_hot\(labels, 10\)"
    ):
      inspect.unwrap(losses.margin_loss)(jnp.zeros((2, 10)), jnp.array([1, 2]))

  def test_integers_for_each_class_become_floats(self):
    with self.assertRaisesRegex(TypeError, r"int32; .*present\.astype"):
      inspect.unwrap(losses.margin_loss)(
        jnp.zeros((2, 3)), jnp.zeros((2, 3), jnp.int32)
      )

  def test_no_samples_are_refused(self):
    with self.assertRaisesRegex(ValueError, "is empty; give at least 1"):
      losses.likelihood_bound(jnp.zeros((2, 0)))


@pytest.mark.parametrize(
  "loss",
  [
    lambda x: losses.margin_loss(x, jnp.ones_like(x)),
    lambda x: losses.spread_loss(x, jnp.zeros(1, jnp.int32), margin=0.9),
    lambda x: losses.share_loss(x, jnp.zeros(1, jnp.int32)),
    lambda x: losses.multilabel_loss(x, jnp.zeros((1, 1), jnp.int32))[0],
    lambda x: losses.reconstruction_loss(
      x.reshape(1, 28, 28, 1), jnp.zeros((1, 28, 28, 1), x.dtype)
    ),
  ],
)
def test_losses_of_bfloat16_are_those_of_float32(loss):
  narrow = jnp.full((1, 784), 0.3, jnp.bfloat16)
  got, want = loss(narrow), loss(narrow.astype(jnp.float32))
  assert got.dtype == jnp.float32
  np.testing.assert_array_equal(got, want)


def test_scores_that_are_nan_are_never_right():
  scores = jnp.array([[jnp.nan] * 3, [0.1, 0.2, jnp.nan], [0.1, 0.2, 0.3]])
  for label, want in enumerate(([0, 0, 0], [0, 0, 0], [0, 0, 1])):
    found = losses.exact_set(scores, jnp.full((3, 1), label))
    np.testing.assert_array_equal(found, np.bool_(want))


def test_entropies_of_bfloat16_are_summed_in_float32():
  logits = jnp.array([[5.0, 0, 0, 0, 0]], jnp.bfloat16)
  want = losses.cross_entropy(logits.astype(jnp.float32), jnp.array([0]))
  got = losses.cross_entropy(logits, jnp.array([0]))
  assert got.dtype == jnp.float32 and got == want


if __name__ == "__main__":
  absltest.main()
