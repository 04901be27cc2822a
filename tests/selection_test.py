"""The sum over selections, against loops, enumeration and integrals."""

import functools
import itertools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from absl.testing import absltest, parameterized
from jax.test_util import check_grads

from kernels import selection

_SEEDS = (0, 1)
_OPTIONS = {"temperature": 0.6, "off_scale": 2.0, "dummy_scale": 3.0}
_select = jax.jit(selection.select, static_argnames=tuple(_OPTIONS))


def _case(seed, num_children=4, num_parents=3, dtype=jnp.float32):
  """Children near to where one of the parents expects them."""
  keys = jax.random.split(jax.random.key(seed), 8)
  shape = (num_children, num_parents)

  def normal(n, *shape):
    return jax.random.normal(keys[n], shape, dtype)

  parents = selection.Capsules(
    normal(0, num_parents), 0.5 * normal(1, num_parents, 6)
  )
  relations = selection.Relations(
    normal(2, num_children, num_parents + 1),
    normal(3, num_children, num_parents + 1),
    0.5 * normal(4, *shape, 6),
    0.3 * jnp.exp(0.3 * normal(5, *shape)),
  )
  expected = selection.expected_poses(parents.poses, relations.offsets)
  nearest = jnp.arange(num_children) % num_parents + 1
  poses = expected[jnp.arange(num_children), nearest]
  children = selection.Capsules(
    2 * normal(6, num_children), poses + 0.2 * normal(7, num_children, 6)
  )
  return children, parents, relations


@jax.jit
@functools.partial(jax.value_and_grad, has_aux=True)
def _energy(case):
  got = selection.select(*case, **_OPTIONS)
  weights = jnp.arange(got.routing.size).reshape(got.routing.shape)
  return jnp.sum(got.log_densities) + jnp.sum(weights * got.routing), got


def _float64(tree):
  return jax.tree.map(np.float64, tree)


def _sigmoid(x):
  return 1 / (1 + np.exp(-x))


def _matrix(pose):
  matrix = np.eye(3)
  for n in range(6):
    matrix[n // 3, n % 3] += pose[n]
  return matrix


def _normal(x, mean, scale):
  return np.exp(-(((x - mean) / scale) ** 2) / 2) / (scale * np.sqrt(2 * np.pi))


def _summands(
  children, parents, relations, *, temperature, off_scale, dummy_scale
):
  """P(s = j) p(t | s) p(A | t, s) of eqs. 3 to 6, in probabilities."""
  children, parents, relations = _float64((children, parents, relations))
  num_children, num_parents = relations.scales.shape
  terms = np.zeros((num_children, num_parents + 1))
  for i in range(num_children):
    weights = [
      np.exp(relations.log_affinities[i, j])
      * (1.0 if j == 0 else _sigmoid(parents.logits[j - 1]))
      for j in range(num_parents + 1)
    ]
    t = _sigmoid(children.logits[i])
    for j in range(num_parents + 1):
      odds = np.exp(relations.presence_logits[i, j])
      # Maddison et al.: density of t, times dt / dl.
      density = temperature * odds * t ** (-temperature - 1)
      density *= (1 - t) ** (-temperature - 1)
      density /= (odds * t**-temperature + (1 - t) ** -temperature) ** 2
      density *= t * (1 - t)
      if j == 0:
        mean, scale = np.zeros(6), dummy_scale
      else:
        mean = _matrix(parents.poses[j - 1]) @ _matrix(
          relations.offsets[i, j - 1]
        )
        mean = (mean - np.eye(3))[:2].reshape(6)
        scale = relations.scales[i, j - 1]
      scale = (t / scale**2 + (1 - t) / off_scale**2) ** -0.5
      terms[i, j] = weights[j] / sum(weights) * density
      for n in range(6):
        terms[i, j] *= _normal(children.poses[i, n], mean[n], scale)
  return terms


def _textbook(
  children, parents, relations, *, temperature, off_scale, dummy_scale,
  fault=None,
):  # fmt: skip
  """The sum of logs in jnp, and ways to get it wrong."""
  presences = jax.nn.sigmoid(parents.logits)
  there = jnp.concatenate([jnp.ones(1), presences])
  if fault == "parents_always_there":
    there = jnp.ones_like(there)
  weights = there * jnp.exp(relations.log_affinities)
  if fault == "no_dummy":
    weights = weights.at[:, 0].set(0.0)
  if fault == "over_children":
    weights = weights / jnp.sum(weights, axis=0)
  elif fault != "unnormalised":
    weights = weights / jnp.sum(weights, axis=1, keepdims=True)
  t = jax.nn.sigmoid(children.logits)[:, None]
  log_odds = relations.presence_logits
  if fault == "presence_of_any":
    log_odds = jnp.zeros_like(log_odds)
  d = log_odds - temperature * children.logits[:, None]
  logs = jnp.log(temperature) + d - 2 * jnp.logaddexp(0.0, d)
  if fault == "density_of_t":
    logs -= jnp.log(t * (1 - t))
  if fault == "no_temperature":
    logs -= jnp.log(temperature)
  offsets, poses = relations.offsets, parents.poses
  if fault == "offset_added":
    means = poses + offsets
  elif fault == "offset_first":
    means = jax.vmap(
      lambda pose: selection.pose_matrix(offsets) @ selection.pose_matrix(pose),
      0, 1,
    )(poses)[:, :, 0]  # fmt: skip
    means = (means - jnp.eye(3))[..., :2, :].reshape(offsets.shape)
  else:
    means = selection.pose_matrix(poses) @ selection.pose_matrix(offsets)
    means = (means - jnp.eye(3))[..., :2, :].reshape(offsets.shape)
  means = jnp.concatenate([jnp.zeros_like(means[:, :1]), means], axis=1)
  scales = jnp.concatenate(
    [jnp.full((len(t), 1), dummy_scale), relations.scales], axis=1
  )
  squares = jnp.sum((children.poses[:, None] - means) ** 2, axis=-1)
  precisions = t / scales**2 + (1 - t) / off_scale**2
  if fault == "always_on":
    precisions = 1 / scales**2
  logs += 3 * jnp.log(precisions / (2 * jnp.pi)) - squares * precisions / 2
  if fault == "not_normalised":  # N_on^t N_off^(1 - t) as it is
    on, off = -jnp.log(scales), -jnp.log(off_scale)
    logs += 6 * (t * on + (1 - t) * off) - 3 * jnp.log(precisions)
  terms = weights * jnp.exp(logs)
  if fault == "best_parent":
    densities = jnp.max(terms, axis=1)
  else:
    densities = jnp.sum(terms, axis=1)
  routing = terms / jnp.sum(terms, axis=1, keepdims=True)
  if fault == "routing_is_the_prior":
    routing = weights
  return selection.Selection(jnp.log(densities), routing)


def check_matches_oracle(select, seed=0):
  case = _case(seed)
  terms = _summands(*case, **_OPTIONS)
  got = select(*case, **_OPTIONS)
  np.testing.assert_allclose(
    got.log_densities, np.log(terms.sum(axis=1)), rtol=1e-4, atol=1e-4
  )
  want = terms / terms.sum(axis=1, keepdims=True)
  np.testing.assert_allclose(got.routing, want, atol=1e-4)


def check_enumeration(select, seed=0):
  """All (1 + J)^I selections together, and the share of each parent."""
  case = _case(seed, num_children=3, num_parents=2)
  terms = _summands(*case, **_OPTIONS)
  total, shares = 0.0, np.zeros_like(terms)
  for chosen in itertools.product(range(3), repeat=3):
    joint = math.prod(terms[i, j] for i, j in enumerate(chosen))
    total += joint
    for i, j in enumerate(chosen):
      shares[i, j] += joint
  got = select(*case, **_OPTIONS)
  np.testing.assert_allclose(
    np.sum(got.log_densities), np.log(total), rtol=1e-4, atol=1e-4
  )
  np.testing.assert_allclose(got.routing, shares / total, atol=1e-4)


def check_presence_is_a_probability(select, seed=0):
  """Where the pose says nothing, the density of the logit integrates to 1.

  All parents expect the child at the identity, with the off scale, so that
  the density is the product of one of the logit and a known one of the pose.
  """
  children, parents, relations = _case(seed, num_children=1)
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
  options = {**_OPTIONS, "dummy_scale": 2.0}
  got = select(selection.Capsules(grid, pose), parents, relations, **options)
  known = -3 * np.log(2 * np.pi * 2.0**2)
  total = np.trapezoid(np.exp(np.float64(got.log_densities) - known), grid)
  np.testing.assert_allclose(total, 1, atol=1e-3)
  del children


def check_pose_is_a_probability(select, seed=0, logit=0.4):
  """Over poses it integrates to sum_j P(s = j) p(t | s = j).

  By importance sampling from a wider mixture, whose weights are bounded.
  """
  children, parents, relations = _case(seed, num_children=1, num_parents=2)
  del children
  count, wider = 20_000, 1.2
  random = np.random.default_rng(seed)
  means = np.float64(
    selection.expected_poses(parents.poses, relations.offsets)[0]
  )
  t = _sigmoid(logit)
  scales = np.array([_OPTIONS["dummy_scale"], *np.float64(relations.scales[0])])
  scales = (
    wider * (t / scales**2 + (1 - t) / _OPTIONS["off_scale"] ** 2) ** -0.5
  )
  chosen = random.integers(3, size=count)
  poses = means[chosen] + scales[chosen, None] * random.normal(size=(count, 6))
  proposal = np.mean(
    [
      np.prod(_normal(poses, mean, scale), axis=1)
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
    **_OPTIONS,
  )
  weights = np.exp(np.float64(got.log_densities)) / proposal
  there = np.array([1.0, *_sigmoid(np.float64(parents.logits))])
  chances = there * np.exp(np.float64(relations.log_affinities[0]))
  log_odds = np.float64(relations.presence_logits[0])
  concrete = dist.Logistic(
    log_odds / _OPTIONS["temperature"], 1 / _OPTIONS["temperature"]
  )
  want = chances / chances.sum() @ np.exp(np.float64(concrete.log_prob(logit)))
  error = np.std(weights) / count**0.5
  np.testing.assert_array_less(abs(np.mean(weights) - want), 4 * error)
  np.testing.assert_array_less(error, 0.01 * want)


def check_poses_move_together(select, seed=0):
  """A parent that moves takes along where its children are expected.

  Without the dummy, and with a move that keeps lengths, nothing else changes.
  """
  children, parents, relations = _case(seed)
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
    matrices = move @ selection.pose_matrix(poses) - np.eye(3)
    return jnp.float32(matrices[..., :2, :].reshape(poses.shape))

  want = select(children, parents, relations, **_OPTIONS)
  got = select(
    children._replace(poses=moved(children.poses)),
    parents._replace(poses=moved(parents.poses)),
    relations,
    **_OPTIONS,
  )
  chex.assert_trees_all_close(got, want, rtol=1e-3, atol=1e-3)


def check_parents_permute(select, seed=0):
  children, parents, relations = _case(seed)
  order = np.array([2, 0, 1])
  with_dummy = np.array([0, *(order + 1)])
  want = select(children, parents, relations, **_OPTIONS)
  got = select(
    children,
    jax.tree.map(lambda x: x[order], parents),
    selection.Relations(
      relations.log_affinities[:, with_dummy],
      relations.presence_logits[:, with_dummy],
      relations.offsets[:, order],
      relations.scales[:, order],
    ),
    **_OPTIONS,
  )
  want = want._replace(routing=want.routing[:, with_dummy])
  chex.assert_trees_all_close(got, want, rtol=1e-4, atol=1e-4)


def check_absent_parents_are_not_selected(select, seed=0):
  children, parents, relations = _case(seed)
  parents = parents._replace(logits=jnp.array([-60.0, 2.0, -60.0]))
  got = select(children, parents, relations, **_OPTIONS).routing
  np.testing.assert_allclose(got[:, [1, 3]], 0, atol=1e-6)
  np.testing.assert_allclose(np.sum(got, axis=1), 1, atol=1e-6)


def _broken(fault):
  return jax.jit(
    functools.partial(_textbook, fault=fault), static_argnames=tuple(_OPTIONS)
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
  def test_broken_copy_fails(self, check, fault):
    broken = _broken(fault)
    if fault == "no_dummy_column":  # counts parents from the wrong end

      def broken(children, parents, relations, **options):
        rolled = jnp.roll(relations.log_affinities, 1, axis=1)
        relations = relations._replace(log_affinities=rolled)
        return _textbook(children, parents, relations, **options)

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

  def test_scale_of_a_pose_at_either_end(self):
    got = selection.pose_scales(
      jnp.array([-200.0, 0.0, 200.0]), jnp.full(3, 0.1), off_scale=2.0
    )
    middle = (0.5 / 0.1**2 + 0.5 / 2.0**2) ** -0.5
    np.testing.assert_allclose(got, [2.0, middle, 0.1], rtol=1e-5)

  @parameterized.parameters(*_SEEDS)
  def test_gradients(self, seed):
    with jax.enable_x64(True):
      case = _case(seed, num_children=2, num_parents=2, dtype=jnp.float64)

      @jax.jit
      def select(*case):
        return selection.select(*case, **_OPTIONS)

      check_grads(select, case, 1, rtol=1e-4)

  @parameterized.product(
    logit=(-1e4, -50.0, 0.0, 50.0, 1e4),
    parent=(-1e4, 1e4),
    scale=(1e-6, 1.0),
    dtype=(jnp.float32, jnp.bfloat16),
  )
  def test_finite_at_the_limits(self, logit, parent, scale, dtype):
    children, parents, relations = _case(0, dtype=dtype)
    children = children._replace(logits=jnp.full_like(children.logits, logit))
    parents = parents._replace(logits=jnp.full_like(parents.logits, parent))
    relations = relations._replace(
      scales=jnp.full_like(relations.scales, scale)
    )

    (_, got), gradients = _energy((children, parents, relations))
    assert got.routing.dtype == dtype
    chex.assert_tree_all_finite((got, gradients))

  def test_bfloat16(self):
    case = _case(0, dtype=jnp.bfloat16)
    exact = jax.tree.map(jnp.float32, case)
    got, want = (_select(*x, **_OPTIONS) for x in (case, exact))
    np.testing.assert_allclose(
      jnp.float32(got.log_densities), want.log_densities, rtol=1e-2
    )

  @chex.variants(with_jit=True, without_jit=True)
  def test_vmap_is_a_loop(self):
    select = self.variant(functools.partial(selection.select, **_OPTIONS))
    batch = jax.tree.map(lambda *x: jnp.stack(x), _case(0), _case(1))
    want = jax.tree.map(
      lambda *x: jnp.stack(x), select(*_case(0)), select(*_case(1))
    )
    chex.assert_trees_all_close(
      jax.vmap(select)(*batch), want, rtol=1e-5, atol=1e-5
    )

  @parameterized.parameters(*_OPTIONS)
  def test_scales_are_above_zero(self, name):
    with self.assertRaisesRegex(ValueError, "above 0"):
      selection.select(*_case(0), **{**_OPTIONS, name: 0.0})


if __name__ == "__main__":
  absltest.main()
