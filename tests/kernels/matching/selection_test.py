"""The sum over selections, against loops, enumeration and integrals."""

import functools
import itertools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from absl.testing import absltest, parameterized
from jax.test_util import check_grads
from selection_cases import OPTIONS, layers, normal, sigmoid, summands, textbook

from kernels.matching import selection

_SEEDS = (0, 1)
_select = jax.jit(selection.select, static_argnames=tuple(OPTIONS))


@jax.jit
@functools.partial(jax.value_and_grad, has_aux=True)
def _energy(case):
  got = selection.select(*case, **OPTIONS)
  weights = jnp.arange(got.routing.size).reshape(got.routing.shape)
  return jnp.sum(got.log_densities) + jnp.sum(weights * got.routing), got


def check_matches_oracle(select, seed=0):
  case = layers(seed)
  terms = summands(*case, **OPTIONS)
  got = select(*case, **OPTIONS)
  np.testing.assert_allclose(
    got.log_densities, np.log(terms.sum(axis=1)), rtol=1e-4, atol=1e-4
  )
  want = terms / terms.sum(axis=1, keepdims=True)
  np.testing.assert_allclose(got.routing, want, atol=1e-4)


def check_enumeration(select, seed=0):
  """All (1 + J)^I selections together, and the share of each parent."""
  case = layers(seed, num_children=3, num_parents=2)
  terms = summands(*case, **OPTIONS)
  total, shares = 0.0, np.zeros_like(terms)
  for chosen in itertools.product(range(3), repeat=3):
    joint = math.prod(terms[i, j] for i, j in enumerate(chosen))
    total += joint
    for i, j in enumerate(chosen):
      shares[i, j] += joint
  got = select(*case, **OPTIONS)
  np.testing.assert_allclose(
    np.sum(got.log_densities), np.log(total), rtol=1e-4, atol=1e-4
  )
  np.testing.assert_allclose(got.routing, shares / total, atol=1e-4)


def check_presence_is_a_probability(select, seed=0):
  """Where the pose says nothing, the density of the logit integrates to 1.

  All parents expect the child at the identity, with the off scale, so that
  the density is the product of one of the logit and a known one of the pose.
  """
  children, parents, relations = layers(seed, num_children=1)
  grid = jnp.linspace(-60, 60, 4001)
  pose = jnp.zeros((len(grid), 6))
  relations = jax.tree.map(
    lambda x: jnp.broadcast_to(x, (len(grid), *x.shape[1:])), relations
  )
  relations = relations._replace(
    offsets=jnp.zeros_like(relations.offsets),
    scales=jnp.full_like(relations.scales, 2.0),
  )
  parents = parents._replace(poses=jnp.zeros_like(parents.poses))
  options = {**OPTIONS, "dummy_scale": 2.0}
  got = select(selection.Capsules(grid, pose), parents, relations, **options)
  known = -3 * np.log(2 * np.pi * 2.0**2)
  total = np.trapezoid(np.exp(np.float64(got.log_densities) - known), grid)
  np.testing.assert_allclose(total, 1, atol=1e-3)
  del children


def check_pose_is_a_probability(select, seed=0, logit=0.4):
  """Over poses it integrates to sum_j P(s = j) p(t | s = j).

  By importance sampling from a wider mixture, whose weights are bounded.
  """
  children, parents, relations = layers(seed, num_children=1, num_parents=2)
  del children
  count, wider = 20_000, 1.2
  random = np.random.default_rng(seed)
  means = np.float64(
    selection.expected_poses(parents.poses, relations.offsets)[0]
  )
  t = sigmoid(logit)
  scales = np.array([OPTIONS["dummy_scale"], *np.float64(relations.scales[0])])
  scales = wider * (t / scales**2 + (1 - t) / OPTIONS["off_scale"] ** 2) ** -0.5
  chosen = random.integers(3, size=count)
  poses = means[chosen] + scales[chosen, None] * random.normal(size=(count, 6))
  proposal = np.mean(
    [
      np.prod(normal(poses, mean, scale), axis=1)
      for mean, scale in zip(means, scales, strict=True)
    ],
    axis=0,
  )
  many = jax.tree.map(
    lambda x: jnp.broadcast_to(x, (count, *x.shape[1:])), relations
  )
  got = select(
    selection.Capsules(jnp.full(count, logit), jnp.float32(poses)),
    parents,
    many,
    **OPTIONS,
  )
  weights = np.exp(np.float64(got.log_densities)) / proposal
  there = np.array([1.0, *sigmoid(np.float64(parents.logits))])
  chances = there * np.exp(np.float64(relations.log_affinities[0]))
  log_odds = np.float64(relations.presence_logits[0])
  concrete = dist.Logistic(
    log_odds / OPTIONS["temperature"], 1 / OPTIONS["temperature"]
  )
  want = chances / chances.sum() @ np.exp(np.float64(concrete.log_prob(logit)))
  error = np.std(weights) / count**0.5
  np.testing.assert_array_less(abs(np.mean(weights) - want), 4 * error)
  np.testing.assert_array_less(error, 0.01 * want)


def check_poses_move_together(select, seed=0):
  """A parent that moves takes along where its children are expected.

  Without the dummy, and with a move that keeps lengths, nothing else changes.
  """
  children, parents, relations = layers(seed)
  relations = relations._replace(
    log_affinities=relations.log_affinities.at[:, 0].set(-1e4)
  )
  angle = 0.7
  move = np.array(
    [
      [np.cos(angle), -np.sin(angle), 0.3],
      [np.sin(angle), np.cos(angle), -0.4],
      [0, 0, 1],
    ],
    np.float32,
  )

  def moved(poses):
    matrices = move @ selection.identity_plus(poses) - np.eye(3)
    return jnp.float32(matrices[..., :2, :].reshape(poses.shape))

  want = select(children, parents, relations, **OPTIONS)
  got = select(
    children._replace(poses=moved(children.poses)),
    parents._replace(poses=moved(parents.poses)),
    relations,
    **OPTIONS,
  )
  chex.assert_trees_all_close(got, want, rtol=1e-3, atol=1e-3)


def check_parents_permute(select, seed=0):
  children, parents, relations = layers(seed)
  order = np.array([2, 0, 1])
  with_dummy = np.array([0, *(order + 1)])
  want = select(children, parents, relations, **OPTIONS)
  got = select(
    children,
    jax.tree.map(lambda x: x[order], parents),
    selection.Relations(
      relations.log_affinities[:, with_dummy],
      relations.presence_logits[:, with_dummy],
      relations.offsets[:, order],
      relations.scales[:, order],
    ),
    **OPTIONS,
  )
  want = want._replace(routing=want.routing[:, with_dummy])
  chex.assert_trees_all_close(got, want, rtol=1e-4, atol=1e-4)


def check_absent_parents_are_not_selected(select, seed=0):
  children, parents, relations = layers(seed)
  parents = parents._replace(logits=jnp.array([-60.0, 2.0, -60.0]))
  got = select(children, parents, relations, **OPTIONS).routing
  np.testing.assert_allclose(got[:, [1, 3]], 0, atol=1e-6)
  np.testing.assert_allclose(np.sum(got, axis=1), 1, atol=1e-6)


def _broken(fault):
  return jax.jit(
    functools.partial(textbook, fault=fault), static_argnames=tuple(OPTIONS)
  )


_CHECKS = (
  check_matches_oracle,
  check_enumeration,
  check_presence_is_a_probability,
  check_pose_is_a_probability,
  check_poses_move_together,
  check_parents_permute,
  check_absent_parents_are_not_selected,
)


class SelectionTest(chex.TestCase):
  @parameterized.product(check=_CHECKS, seed=_SEEDS)
  def test_property(self, check, seed):
    check(_select, seed=seed)

  def test_textbook_form_is_right(self):
    for check in _CHECKS:
      check(_broken(None))

  @parameterized.parameters(
    (check_matches_oracle, "parents_always_there"),
    (check_matches_oracle, "over_children"),
    (check_matches_oracle, "presence_of_any"),
    (check_matches_oracle, "offset_first"),
    (check_matches_oracle, "always_on"),
    (check_matches_oracle, "not_normalised"),
    (check_matches_oracle, "routing_is_the_prior"),
    (check_enumeration, "best_parent"),
    (check_enumeration, "no_dummy"),
    (check_presence_is_a_probability, "density_of_t"),
    (check_presence_is_a_probability, "no_temperature"),
    (check_presence_is_a_probability, "unnormalised"),
    (check_pose_is_a_probability, "not_normalised"),
    (check_poses_move_together, "offset_added"),
    (check_poses_move_together, "offset_first"),
    (check_parents_permute, "no_dummy_column"),
    (check_absent_parents_are_not_selected, "parents_always_there"),
    (check_absent_parents_are_not_selected, "over_children"),
  )
  @pytest.mark.long_after_first
  def test_broken_copy_fails(self, check, fault):
    broken = _broken(fault)
    if fault == "no_dummy_column":  # counts parents from the wrong end

      def broken(children, parents, relations, **options):
        rolled = jnp.roll(relations.log_affinities, 1, axis=1)
        relations = relations._replace(log_affinities=rolled)
        return textbook(children, parents, relations, **options)

    with self.assertRaises(AssertionError):
      check(broken)

  @parameterized.parameters((0.3, -1.0), (1.0, 0.0), (0.5, 3.0))
  def test_binary_concrete_is_that_of_numpyro(self, temperature, log_odds):
    logits = jnp.linspace(-5, 5, 21)
    relaxed = dist.RelaxedBernoulliLogits(temperature, log_odds)
    t = jax.nn.sigmoid(logits)
    want = relaxed.log_prob(t) + jnp.log(t) + jnp.log1p(-t)
    got = selection.binary_concrete(
      logits, jnp.float32(log_odds), temperature=temperature
    )
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)

  def test_binary_concrete_in_the_corners(self):
    """Far out it falls by the temperature for each unit of the logit."""
    density = functools.partial(selection.binary_concrete, temperature=0.5)
    for logit in (-1e4, -200.0, 200.0, 1e4):
      got, slope = jax.value_and_grad(density)(
        jnp.float32(logit), jnp.float32(0.3)
      )
      want = math.log(0.5) - 0.5 * abs(logit) + np.sign(logit) * 0.3
      np.testing.assert_allclose(got, want, rtol=1e-5)
      np.testing.assert_allclose(slope, -0.5 * np.sign(logit), rtol=1e-5)

  @parameterized.parameters(jnp.float32, jnp.bfloat16)
  def test_expected_poses_keep_the_digits_of_small_poses(self, dtype):
    random = np.random.default_rng(0)
    parents, offsets = (
      jnp.asarray(1e-4 * random.normal(size=size), dtype)
      for size in ((2, 6), (3, 2, 6))
    )
    got = selection.expected_poses(parents, offsets)
    self.assertEqual(got.dtype, dtype)
    sums = np.float64(parents) + np.float64(offsets)
    np.testing.assert_allclose(
      got[:, 1:], sums, atol=1e-7, rtol=jnp.finfo(dtype).eps
    )

  def test_scale_of_a_pose_at_either_end(self):
    got = selection.pose_scales(
      jnp.array([-200.0, 0.0, 200.0]), jnp.full(3, 0.1), off_scale=2.0
    )
    middle = (0.5 / 0.1**2 + 0.5 / 2.0**2) ** -0.5
    np.testing.assert_allclose(got, [2.0, middle, 0.1], rtol=1e-5)

  @parameterized.parameters(*_SEEDS)
  def test_gradients(self, seed):
    with jax.enable_x64(True):
      case = layers(seed, num_children=2, num_parents=2, dtype=jnp.float64)

      @jax.jit
      def select(*case):
        return selection.select(*case, **OPTIONS)

      check_grads(select, case, 1, rtol=1e-4)

  @parameterized.parameters(*OPTIONS)
  def test_scales_may_be_traced(self, name):
    def value(scale):
      options = {**OPTIONS, name: scale}
      return jnp.sum(selection.select(*layers(0), **options).log_densities)

    low, high = (value(OPTIONS[name] * (1 + x)) for x in (-1e-2, 1e-2))
    want = (high - low) / (2e-2 * OPTIONS[name])
    got, slope = jax.value_and_grad(value)(jnp.float32(OPTIONS[name]))
    np.testing.assert_allclose(got, value(OPTIONS[name]), rtol=1e-5)
    np.testing.assert_allclose(slope, want, rtol=0.02, atol=1e-3)

  @parameterized.product(
    logit=(-1e4, -50.0, 0.0, 50.0, 1e4),
    parent=(-1e4, 1e4),
    scale=(1e-6, 1.0),
    dtype=(jnp.float32, jnp.bfloat16),
  )
  def test_finite_at_the_limits(self, logit, parent, scale, dtype):
    children, parents, relations = layers(0, dtype=dtype)
    children = children._replace(logits=jnp.full_like(children.logits, logit))
    parents = parents._replace(logits=jnp.full_like(parents.logits, parent))
    relations = relations._replace(
      scales=jnp.full_like(relations.scales, scale)
    )

    (_, got), gradients = _energy((children, parents, relations))
    assert got.routing.dtype == dtype
    chex.assert_tree_all_finite((got, gradients))

  @pytest.mark.long
  def test_bfloat16(self):
    case = layers(0, dtype=jnp.bfloat16)
    exact = jax.tree.map(jnp.float32, case)
    got, want = (_select(*x, **OPTIONS) for x in (case, exact))
    np.testing.assert_allclose(
      jnp.float32(got.log_densities), want.log_densities, rtol=1e-2
    )

  @chex.variants(with_jit=True, without_jit=True)
  @pytest.mark.long_after_first
  def test_vmap_is_a_loop(self):
    select = self.variant(functools.partial(selection.select, **OPTIONS))
    batch = jax.tree.map(lambda *x: jnp.stack(x), layers(0), layers(1))
    want = jax.tree.map(
      lambda *x: jnp.stack(x), select(*layers(0)), select(*layers(1))
    )
    chex.assert_trees_all_close(
      jax.vmap(select)(*batch), want, rtol=1e-5, atol=1e-5
    )

  @parameterized.product(name=[*OPTIONS], value=[0.0, float("nan")])
  def test_scales_are_above_zero(self, name, value):
    with self.assertRaisesRegex(ValueError, "above 0"):
      selection.select(*layers(0), **{**OPTIONS, name: value})


if __name__ == "__main__":
  absltest.main()
