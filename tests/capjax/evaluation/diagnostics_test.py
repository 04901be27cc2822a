"""Diagnostics of routing against loops over parts, and at their extremes."""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import widths
from absl.testing import absltest, parameterized
from flax import nnx

from capjax import layers
from capjax.evaluation import diagnostics

_SHAPE = (12, 4)  # I J


def _coefficients(seed=0, shape=_SHAPE):
  logits = 2 * jax.random.normal(jax.random.key(seed), shape)
  return jax.nn.softmax(logits)


def _one_parent_each(parents, num_parents):
  return jax.nn.one_hot(jnp.array(parents), num_parents)


def _entropy_oracle(coefficients):
  total = count = 0
  for shares in np.float64(coefficients):
    shares = [share for share in shares if share > 0]
    for share in shares:
      total -= share / sum(shares) * math.log(share / sum(shares))
    count += bool(shares)
  return total / count / math.log(coefficients.shape[1])


def _agreement_oracle(views, num_types):
  """`views` are the coefficients [I J] of two."""
  masses = []
  for coefficients in views:
    mass = np.zeros((num_types, coefficients.shape[1]))
    for i, shares in enumerate(np.float64(coefficients)):
      for j, share in enumerate(shares):
        mass[i % num_types, j] += share if share > 0 else 0
    masses.append(mass)
  weights = np.minimum(*(mass.sum(axis=1) for mass in masses))
  first, second = (mass.argmax(axis=1) for mass in masses)
  agreement = sum(weights[first == second]) / sum(weights)
  chance = 0.0
  for parent in range(masses[0].shape[1]):
    chance += (
      sum(weights[first == parent]) * sum(weights[second == parent])
    ) / sum(weights) ** 2
  return agreement, chance, (agreement - chance) / (1 - chance)


def check_entropy_matches_oracle(entropy):
  for seed in (0, 1):
    coefficients = _coefficients(seed).at[3].set(0).at[5, 2].set(-0.2)
    want = _entropy_oracle(coefficients)
    np.testing.assert_allclose(entropy(coefficients), want, rtol=1e-5)


def check_entropy_has_its_extremes(entropy):
  for num_parents in (2, 4, 30):
    uniform = jnp.full((5, num_parents), 1 / num_parents)
    np.testing.assert_allclose(entropy(uniform), 1, rtol=1e-5)
    # Leaky routing: half of each part goes to an orphan.
    np.testing.assert_allclose(entropy(uniform / 2), 1, rtol=1e-5)
    decided = _one_parent_each([0, 1, 1, 0, 1], num_parents)
    np.testing.assert_allclose(entropy(decided), 0, atol=1e-6)


def check_dead_parents_never_wake(dead_parents):
  activations = jnp.zeros((50, 8)) + 0.005
  np.testing.assert_allclose(dead_parents(activations), 1)
  # One example is enough to wake a parent, whichever it is.
  woken = activations.at[0, 1].set(0.01).at[49, 7].set(0.9)
  np.testing.assert_allclose(dead_parents(woken), 0.75)
  np.testing.assert_allclose(dead_parents(woken, threshold=0.5), 0.875)
  np.testing.assert_allclose(dead_parents(woken, threshold=0.001), 0)


def _uniform(seed=0, shape=_SHAPE[:1]):
  return jax.random.uniform(jax.random.key(seed + 50), shape)


def _pair(seed=0):
  """Two views whose parses are similar but not equal; an orphan has parts."""
  first = _coefficients(seed)
  second = jnp.where(_uniform(seed + 1)[:, None] < 0.6, first, first[::-1])
  return first * _uniform(seed)[:, None], second * _uniform(seed + 2)[:, None]


def check_agreement_matches_oracle(parse_agreement):
  for seed in range(4):
    for num_types in (3, 6, 12):
      views = _pair(seed)
      got = parse_agreement(*views, num_types=num_types)
      want = _agreement_oracle(views, num_types)
      np.testing.assert_allclose(got, want, atol=1e-5)


def check_same_parse_agrees(parse_agreement):
  """Also after the parts have moved to other positions."""
  coefficients = _coefficients(0, (4, 6, 5)) * _uniform(0, (4, 6, 1))
  moved = jnp.roll(coefficients, 1, 0)
  views = (x.reshape(24, 5) for x in (coefficients, moved))
  agreement, chance, kappa = parse_agreement(*views, num_types=6)
  np.testing.assert_allclose([agreement, kappa], 1, rtol=1e-5)
  assert chance < 0.7


def check_unrelated_parses_agree_by_chance(parse_agreement):
  for num_parents in (2, 10):
    first, second = (
      jax.random.randint(jax.random.key(seed), (20_000,), 0, num_parents)
      for seed in (0, 1)
    )
    agreement, chance, kappa = parse_agreement(
      _one_parent_each(first, num_parents),
      _one_parent_each(second, num_parents),
    )
    np.testing.assert_allclose([agreement, chance], 1 / num_parents, atol=0.02)
    np.testing.assert_allclose(kappa, 0, atol=0.03)


def check_one_parent_for_all_is_no_parse(parse_agreement):
  """As when every part goes to the predicted class, or routing is uniform."""
  for coefficients in (
    _one_parent_each([2] * 7, 3),
    jnp.full((7, 3), 1 / 3),
  ):
    agreement, chance, kappa = parse_agreement(coefficients, coefficients)
    np.testing.assert_allclose([agreement, chance, kappa], [1, 1, 0], atol=1e-5)


def check_silent_parts_do_not_count(parse_agreement):
  """Parts that only one view has, or neither, change nothing."""
  first, second = _pair()
  want = parse_agreement(first, second)
  more = _coefficients(9, (3, 4)) * jnp.array([[0.0], [0.5], [1.0]])
  got = parse_agreement(
    jnp.concatenate([first, 0 * more]), jnp.concatenate([second, more])
  )
  np.testing.assert_allclose(got, want, atol=1e-6)


def check_negative_coefficients_count_as_zero(parse_agreement):
  """Learned priors make them; a type's sum would be negative here."""
  views = [x.at[::3, 1].add(-1.5).at[1::4, 2].add(0.5) for x in _pair()]
  for num_types in (3, 12):
    got = parse_agreement(*views, num_types=num_types)
    want = _agreement_oracle(views, num_types)
    np.testing.assert_allclose(got, want, atol=1e-5)
    np.testing.assert_array_less(-1e-6, got[:2])
    np.testing.assert_array_less(got[:2], 1 + 1e-6)


def _entropy(coefficients, *, fault):
  """`routing_entropy`, and ways to get it wrong."""
  if fault == "over_children":
    coefficients = coefficients.T
  if fault == "orphan_counted":
    rest = 1 - jnp.sum(coefficients, axis=1, keepdims=True)
    coefficients = jnp.concatenate([coefficients, rest], axis=1)
  entropy = diagnostics.routing_entropy(coefficients)
  if fault == "silent_counted":
    entropy *= jnp.mean(jnp.any(coefficients > 0, axis=1))
  nats = entropy * jnp.log(coefficients.shape[1])
  return {"nats": nats, "bits": nats / jnp.log(2)}.get(fault, entropy)


def _dead(activations, *, threshold=0.01, fault):
  if fault == "mean":
    return jnp.mean(jnp.mean(activations, axis=0) < threshold)
  if fault == "over_parents":
    return jnp.mean(jnp.max(activations, axis=1) < threshold)
  if fault == "alive":
    return 1 - diagnostics.dead_parents(activations, threshold=threshold)
  assert fault == "at_threshold"
  return jnp.mean(jnp.max(activations, axis=0) <= threshold)


def _parse(first, second, *, num_types=None, fault):
  if fault == "silent_counted":
    first, second = (x + 1e-3 for x in (first, second))
  if fault == "magnitudes":
    first, second = jnp.abs(first), jnp.abs(second)
  if fault == "position_is_type":
    num_types = None
  if fault == "types_first" and num_types is not None:
    order = np.arange(len(first)).reshape(num_types, -1).T.ravel()
    first, second = first[order], second[order]
  if fault == "one_view":
    first = jnp.where(jnp.any(first, axis=1, keepdims=True), first, second)
  agreement, chance, kappa = diagnostics.parse_agreement(
    first, second, num_types=num_types
  )
  if fault == "uniform_chance":
    chance = jnp.full_like(chance, 1 / first.shape[1])
    kappa = (agreement - chance) / (1 - chance)
  if fault == "not_chance_corrected":
    kappa = agreement
  return diagnostics.ParseAgreement(agreement, chance, kappa)


_ENTROPY_CHECKS = (
  check_entropy_matches_oracle,
  check_entropy_has_its_extremes,
)
_PARSE_CHECKS = (
  check_agreement_matches_oracle,
  check_same_parse_agrees,
  check_unrelated_parses_agree_by_chance,
  check_one_parent_for_all_is_no_parse,
  check_silent_parts_do_not_count,
  check_negative_coefficients_count_as_zero,
)
_parse_agreement = jax.jit(
  diagnostics.parse_agreement, static_argnames="num_types"
)


class DiagnosticsTest(chex.TestCase):
  @parameterized.parameters(*_ENTROPY_CHECKS)
  def test_entropy(self, check):
    check(jax.jit(diagnostics.routing_entropy))

  @parameterized.parameters(
    # Even shares; decided ones that stay; a parent for each image; half of it.
    ([[[0.5, 0.5]], [[0.5, 0.5]]], 0.0),
    ([[[1.0, 0.0]], [[1.0, 0.0]]], 0.0),
    ([[[1.0, 0.0]], [[0.0, 1.0]]], 1.0),
    ([[[1.0, 0.0], [0.2, 0.2]], [[0.0, 1.0], [0.2, 0.2]]], 0.5),
    # Where a part sends nothing, or less than nothing, it does not count.
    ([[[1.0, 0.0]], [[0.0, 1.0]], [[0.0, 0.0]]], 1.0),
    ([[[1.0, -3.0]], [[0.0, 1.0]]], 1.0),
    ([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]], 1.0),
    ([[[0.0, 0.0]], [[0.0, 0.0]]], 0.0),
  )
  def test_image_information(self, coefficients, want):
    got = diagnostics.image_information(jnp.array(coefficients))
    np.testing.assert_allclose(got, want, atol=1e-6)

  def test_sums_of_batches_add_up(self):
    coefficients = jnp.float32(_coefficients(0, (5, *_SHAPE)))
    coefficients = coefficients.at[1:, 0].set(0)
    sums = jax.tree.map(
      jnp.add,
      diagnostics.share_sums(coefficients[:2]),
      diagnostics.share_sums(coefficients[2:]),
    )
    np.testing.assert_allclose(
      diagnostics.information_of_sums(sums),
      diagnostics.image_information(coefficients),
      rtol=1e-5,
    )

  def test_image_information_is_mutual_information(self):
    """Of the joint distribution of an image, drawn evenly, and the parent."""
    coefficients = np.float64(_coefficients(0, (5, *_SHAPE)))
    total = 0.0
    for i in range(_SHAPE[0]):
      joint = coefficients[:, i] / len(coefficients)
      margins = joint.sum(1, keepdims=True) * joint.sum(0)
      total += np.sum(joint * np.log(joint / margins))
    got = diagnostics.image_information(jnp.float32(coefficients))
    want = total / _SHAPE[0] / math.log(_SHAPE[1])
    np.testing.assert_allclose(got, want, rtol=1e-4)

  def test_peaks_are_those_of_each_parent(self):
    """Also where no activation comes near 0, as of logistic ones."""
    activations = jnp.array([[0.5, 0.4, 0.9], [0.3, 0.7, 0.2]])
    peaks = diagnostics.peak_activations(activations)
    np.testing.assert_array_equal(peaks, activations[[0, 1, 0], [0, 1, 2]])

  def test_what_is_not_a_number_is_neither_dead_nor_alive(self):
    unknown = jnp.ones((4, 3)).at[1, 2].set(jnp.nan)
    self.assertTrue(np.isnan(diagnostics.dead_parents(unknown)))
    parse = jnp.full((2, 3), jnp.nan)
    agreement = diagnostics.parse_agreement(parse, parse)
    self.assertTrue(np.isnan(agreement.kappa))

  def test_dead_parents(self):
    check_dead_parents_never_wake(diagnostics.dead_parents)

  @parameterized.parameters(*_PARSE_CHECKS)
  @widths.samples_of_float32
  def test_parse_agreement(self, check):
    check(_parse_agreement)

  @parameterized.parameters(
    (check_entropy_matches_oracle, "over_children"),
    (check_entropy_matches_oracle, "silent_counted"),
    (check_entropy_matches_oracle, "bits"),
    (check_entropy_has_its_extremes, "nats"),
    (check_entropy_has_its_extremes, "orphan_counted"),
  )
  def test_broken_entropy_fails(self, check, fault):
    with self.assertRaises(AssertionError):
      check(functools.partial(_entropy, fault=fault))

  @parameterized.parameters("mean", "over_parents", "alive", "at_threshold")
  def test_broken_dead_parents_fail(self, fault):
    with self.assertRaises(AssertionError):
      check_dead_parents_never_wake(functools.partial(_dead, fault=fault))

  @parameterized.parameters(
    (check_agreement_matches_oracle, "silent_counted"),
    (check_agreement_matches_oracle, "types_first"),
    (check_agreement_matches_oracle, "position_is_type"),
    (check_agreement_matches_oracle, "uniform_chance"),
    (check_same_parse_agrees, "position_is_type"),
    (check_unrelated_parses_agree_by_chance, "not_chance_corrected"),
    (check_one_parent_for_all_is_no_parse, "uniform_chance"),
    (check_silent_parts_do_not_count, "silent_counted"),
    (check_silent_parts_do_not_count, "one_view"),
    (check_negative_coefficients_count_as_zero, "magnitudes"),
  )
  @pytest.mark.long_after_first
  def test_broken_agreement_fails(self, check, fault):
    with self.assertRaises(AssertionError):
      check(functools.partial(_parse, fault=fault))

  def test_batches_are_loops(self):
    first, second = (_coefficients(seed, (2, 3, *_SHAPE)) for seed in (0, 1))
    entropy = diagnostics.routing_entropy
    agree = functools.partial(_parse_agreement, num_types=6)
    for function, arguments in ((entropy, (first,)), (agree, (first, second))):
      got = function(*arguments)
      chex.assert_tree_shape_prefix(got, (2, 3))
      over = jax.vmap(jax.vmap(function))(*arguments)
      chex.assert_trees_all_close(got, over, atol=1e-6)

  def test_types_are_those_of_primary_capsules(self):
    """Where all positions look alike, capsules i and i mod T do."""
    init = nnx.initializers.normal(1.0)
    options = dict(stride=1, kernel_init=init, bias_init=init)
    layer = layers.PrimaryCaps(2, 3, 4, 1, **options, rngs=nnx.Rngs(0))
    poses = np.asarray(layer(jnp.ones((1, 5, 5, 2)))).reshape(75, 4)
    np.testing.assert_array_equal(poses, np.tile(poses[:3], (25, 1)))
    assert np.ptp(poses[:3], axis=0).min() > 0.01

  def test_nothing_is_active(self):
    none = 0 * _coefficients()
    np.testing.assert_array_equal(diagnostics.routing_entropy(none), 0)
    got = diagnostics.parse_agreement(none, none)
    np.testing.assert_array_equal(got, (0, 0, 0))

  def test_gradient_of_the_entropy_is_finite(self):
    """Also of parts that have decided, or send nothing."""
    slope = jax.jit(jax.grad(diagnostics.routing_entropy))
    coefficients = _one_parent_each([0, 1, 2, 3] * 3, 4).at[0].set(0)
    chex.assert_tree_all_finite(slope(coefficients))
    chex.assert_tree_all_finite(slope(0 * coefficients))

  def test_bfloat16_sums_in_float32(self):
    """A thousand parts of weight 1 would stop adding up at 256."""
    coefficients = _coefficients(0, (1000, 4)).astype(jnp.bfloat16)
    got = diagnostics.routing_entropy(coefficients)
    want = _entropy_oracle(coefficients.astype(jnp.float32))
    np.testing.assert_allclose(got, want, rtol=1e-4)

  @parameterized.parameters(
    (lambda: diagnostics.routing_entropy(jnp.ones((3, 1))), r"1 parent\(s\)"),
    (lambda: diagnostics.dead_parents(jnp.ones((0, 3))), "no examples"),
    (
      lambda: diagnostics.dead_parents(jnp.ones((2, 3)), threshold=0.0),
      "threshold=0.0",
    ),
    (
      lambda: diagnostics.parse_agreement(
        jnp.ones((4, 3)), jnp.ones((4, 3)), num_types=3
      ),
      "num_types=3 does not divide 4",
    ),
    (
      lambda: diagnostics.parse_agreement(
        jnp.ones((4, 3)), jnp.ones((4, 3)), num_types=0
      ),
      "num_types=0",
    ),
  )
  def test_bad_options_are_refused(self, call, message):
    with self.assertRaisesRegex(ValueError, message):
      call()


if __name__ == "__main__":
  absltest.main()
