"""Slot attention and its frames against the papers' equations, as loops."""

import functools

import cases
import chex
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import oracles
import pytest
from jax.test_util import check_grads

from kernels import numerics
from kernels.routing import attention, slots

_NUM_INPUTS, _NUM_SLOTS, _SIZE, _VALUES = 7, 3, 4, 2
_EPSILON = 1e-3  # large enough to be seen


def _attend(queries, keys, values, presence, *, epsilon=1e-8):
  return slots.slot_attention(
    queries, keys, values, presence=presence, epsilon=epsilon
  )


def _arguments(seed=0, *, of_frames=False, dtype=np.float64):
  """Queries, keys, values, and presences of which one is 0."""
  random = np.random.default_rng(seed)
  shape = (_NUM_INPUTS, _NUM_SLOTS) if of_frames else (_NUM_INPUTS,)
  presence = random.uniform(0.1, 1, _NUM_INPUTS)
  presence[2] = 0
  arguments = (
    3 * random.normal(size=(_NUM_SLOTS, _SIZE)),
    random.normal(size=(*shape, _SIZE)),
    random.normal(size=(*shape, _VALUES)),
    presence,
  )
  return tuple(x.astype(dtype) for x in arguments)


def _oracle(queries, keys, values, presence, epsilon):
  """The equations of `slot_attention`, one number after the other."""
  a = np.zeros((_NUM_INPUTS, _NUM_SLOTS))
  w, means = np.zeros_like(a), np.zeros((_NUM_SLOTS, _VALUES))
  for i in range(_NUM_INPUTS):
    own = [keys[i, j] if keys.ndim == 3 else keys[i] for j in range(len(means))]
    scores = [own[j] @ queries[j] / np.sqrt(_SIZE) for j in range(_NUM_SLOTS)]
    a[i] = oracles.softmax(scores)
  for j in range(_NUM_SLOTS):
    total = sum(presence[i] * (a[i, j] + epsilon) for i in range(_NUM_INPUTS))
    for i in range(_NUM_INPUTS):
      w[i, j] = presence[i] * (a[i, j] + epsilon) / total
      means[j] += w[i, j] * (values[i, j] if values.ndim == 3 else values[i])
  return means, a, w


def _attend_over_inputs(queries, keys, values, presence, *, epsilon):
  """A broken copy: ordinary attention, where inputs compete for a slot."""
  scores = jnp.einsum("id,jd->ij", keys, queries) / np.sqrt(_SIZE)
  a = jax.nn.softmax(scores, axis=0)
  shares = presence[:, None] * (a + epsilon)
  weights = shares / jnp.sum(shares, axis=0)
  return slots.SlotOutput(weights.T @ values, a, weights)


def _sum_instead_of_mean(queries, keys, values, presence, *, epsilon):
  """A broken copy: a slot is the sum of what it wins."""
  found = _attend(queries, keys, values, presence, epsilon=epsilon)
  weights = presence[:, None] * (found.coefficients + epsilon)
  return found._replace(means=weights.T @ values, weights=weights)


def _without_epsilon(*arguments, epsilon):
  del epsilon
  return _attend(*arguments)


def check_matches_oracle(attend, *, of_frames=False, seed=0):
  arguments = _arguments(seed, of_frames=of_frames)
  want = _oracle(*arguments, _EPSILON)
  with jax.enable_x64(True):
    got = attend(*map(jnp.asarray, arguments), epsilon=_EPSILON)
  for one, other in zip(got, want, strict=True):
    np.testing.assert_allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("of_frames", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_matches_the_paper(of_frames, seed):
  check_matches_oracle(_attend, of_frames=of_frames, seed=seed)


@pytest.mark.parametrize(
  "broken", [_attend_over_inputs, _sum_instead_of_mean, _without_epsilon]
)
def test_broken_copies_fail(broken):
  with pytest.raises(AssertionError):
    check_matches_oracle(broken)


def test_one_round_is_an_iteration_of_inverted_attention():
  """Whose poses are layer norms of sums, of which ours are the means."""
  votes = cases.votes()
  size = votes.shape[2]
  routed = attention.inverted_attention_routing(
    votes, jnp.zeros(size), num_iterations=2
  )
  queries = numerics.layer_norm(jnp.mean(votes, 0) * len(votes) / 4)
  got = slots.slot_attention(queries, votes, votes, epsilon=1e-12)
  np.testing.assert_allclose(got.coefficients, routed.coefficients, atol=1e-6)
  won = jnp.sum(got.coefficients, axis=0)[:, None]
  np.testing.assert_allclose(
    numerics.layer_norm(won * got.means), routed.poses, atol=1e-5
  )


def test_slots_permute_and_the_order_of_inputs_does_not_matter():
  arguments = _arguments(dtype=np.float32)
  queries, keys, values, presence = map(jnp.asarray, arguments)
  want = _attend(queries, keys, values, presence)
  order = np.array([2, 0, 1])
  got = _attend(queries[order], keys, values, presence)
  chex.assert_trees_all_close(
    got,
    slots.SlotOutput(
      want.means[order], want.coefficients[:, order], want.weights[:, order]
    ),
    atol=1e-6,
  )
  order = np.random.default_rng(0).permutation(_NUM_INPUTS)
  got = _attend(queries, keys[order], values[order], presence[order])
  chex.assert_trees_all_close(
    got,
    slots.SlotOutput(want.means, want.coefficients[order], want.weights[order]),
    atol=1e-6,
  )


def test_shares_and_weights_sum_to_one():
  found = _attend(*map(jnp.asarray, _arguments(dtype=np.float32)))
  np.testing.assert_allclose(jnp.sum(found.coefficients, 1), 1, atol=1e-6)
  np.testing.assert_allclose(jnp.sum(found.weights, 0), 1, atol=1e-6)
  np.testing.assert_array_equal(found.weights[2], 0)  # absent


@pytest.mark.parametrize("presence", [1e-9, 1e-19])
@pytest.mark.parametrize("epsilon", [1e-8, 0.1, 2.0])
def test_small_presences_have_the_weights_of_large_ones(presence, epsilon):
  queries, keys, values, present = _arguments(dtype=np.float32)

  def weights(scale):
    attend = jax.jit(functools.partial(_attend, epsilon=epsilon))
    return attend(queries, keys, values, scale * present).weights

  np.testing.assert_allclose(weights(presence), weights(1.0), rtol=1e-5)
  np.testing.assert_allclose(np.sum(weights(presence), axis=0), 1, rtol=1e-5)


@pytest.mark.parametrize("presence", [1e-19, 1e-21, 1e-30, 1e-36, 0.0])
def test_gradients_of_tiny_presences_are_finite(presence):
  queries, keys, values, present = map(
    jnp.asarray, _arguments(dtype=np.float32)
  )

  def total(present):
    return jnp.sum(_attend(queries, keys, 1e4 * values, present).means)

  for function in (total, jax.jit(total)):
    value, slope = jax.value_and_grad(function)(presence * present)
    assert np.isfinite(value) and np.all(np.isfinite(slope))


def test_keys_of_frames_that_agree_are_keys():
  queries, keys, values, presence = map(
    jnp.asarray, _arguments(dtype=np.float32)
  )

  def each(x):
    return jnp.broadcast_to(x[:, None], (len(x), _NUM_SLOTS, x.shape[1]))

  chex.assert_trees_all_close(
    _attend(queries, each(keys), each(values), presence),
    _attend(queries, keys, values, presence),
    atol=1e-6,
  )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_nothing_present_and_saturated_shares_are_finite(dtype):
  """Slots that win nothing are means of all; without inputs they are 0."""
  queries, keys, values, _ = _arguments()
  queries = jnp.asarray(queries, dtype) * jnp.asarray([1e4, -1e4, 0.0])[:, None]
  queries = queries.astype(dtype)
  keys, values = jnp.asarray(keys, dtype), jnp.asarray(values, dtype)

  def total(queries, keys, values, presence):
    found = _attend(queries, keys, values, presence)
    return sum(jnp.sum(x * x, dtype=jnp.float32) for x in found), found

  for there in (0.0, 1.0):
    presence = jnp.full(_NUM_INPUTS, there, dtype)
    for scale in (0.0, 1.0):
      gradients, found = jax.grad(total, (0, 1, 2, 3), has_aux=True)(
        scale * queries, keys, values, presence
      )
      chex.assert_tree_all_finite((gradients, found))
      assert found.means.dtype == dtype
      if not there:
        np.testing.assert_array_equal(found.means, 0)


def test_gradients():
  with jax.enable_x64(True):
    for of_frames in (False, True):
      arguments = tuple(map(jnp.asarray, _arguments(of_frames=of_frames)))

      def attend(*arguments):
        return _attend(*arguments, epsilon=_EPSILON)

      check_grads(jax.jit(attend), arguments, order=1, modes=("fwd", "rev"))
    points = jnp.asarray(np.random.default_rng(0).normal(size=(7, 2)))
    weights = _attend(*map(jnp.asarray, _arguments())).weights

    def frames(weights, points):
      found = slots.slot_frames(weights, points)
      return found, slots.relative_points(points, found)

    arguments = weights, points
    check_grads(jax.jit(frames), arguments, order=1, modes=("fwd", "rev"))


def _frames_oracle(weights, points):
  positions = np.zeros((weights.shape[1], 2))
  scales = np.zeros_like(positions)
  for j in range(len(positions)):
    for c in range(2):
      p = sum(weights[i, j] * points[i, c] for i in range(len(points)))
      s = sum(
        weights[i, j] * (points[i, c] - p) ** 2 for i in range(len(points))
      )
      positions[j, c], scales[j, c] = p, np.sqrt(s)
  return positions, scales


def _moments(weights, points):
  """A broken copy: scales about the origin instead of the mean."""
  positions = weights.T @ points
  return slots.Frames(positions, jnp.sqrt(weights.T @ points**2))


def check_frames(find):
  random = np.random.default_rng(1)
  weights = random.dirichlet(np.ones(9), 3).T
  points = random.uniform(-1, 1, (9, 2))
  with jax.enable_x64(True):
    got = find(jnp.asarray(weights), jnp.asarray(points))
    relative = slots.relative_points(jnp.asarray(points), got, unit=2.0)
  positions, scales = _frames_oracle(weights, points)
  np.testing.assert_allclose(got.positions, positions, atol=1e-12)
  np.testing.assert_allclose(got.scales, scales, atol=1e-12)
  for i in range(9):
    for j in range(3):
      want = (points[i] - positions[j]) / (2 * scales[j])
      np.testing.assert_allclose(relative[i, j], want, atol=1e-12)


def test_frames_match_the_paper():
  check_frames(slots.slot_frames)
  with pytest.raises(AssertionError):
    check_frames(_moments)


@pytest.mark.parametrize("limits", [(0.5, 0.4), (0.5, np.nan), (0.0, 1.0)])
def test_limits_of_scales_are_in_order(limits):
  smallest, largest = limits
  with pytest.raises(ValueError, match=r"(smallest is 0|largest is (0|nan))"):
    slots.slot_frames(
      jnp.ones((2, 1)), jnp.ones((2, 2)), smallest=smallest, largest=largest
    )


def test_a_unit_of_0_is_refused():
  frames = slots.Frames(jnp.zeros((1, 2)), jnp.ones((1, 2)))
  with pytest.raises(ValueError, match="unit is 0.0; give a finite number abo"):
    slots.relative_points(jnp.ones((2, 2)), frames, unit=0.0)


def test_frames_move_with_the_points():
  """And the points that slots see stay where they are."""
  random = np.random.default_rng(2)
  weights = jnp.asarray(random.dirichlet(np.ones(9), 3).T, jnp.float32)
  points = jnp.asarray(random.uniform(-1, 1, (9, 2)), jnp.float32)
  factor, shift = jnp.array([0.5, 1.5]), jnp.array([0.3, -0.2])
  before = slots.slot_frames(weights, points)
  after = slots.slot_frames(weights, factor * points + shift)
  np.testing.assert_allclose(
    after.positions, factor * before.positions + shift, atol=1e-5
  )
  np.testing.assert_allclose(after.scales, factor * before.scales, atol=1e-5)
  np.testing.assert_allclose(
    slots.relative_points(factor * points + shift, after),
    slots.relative_points(points, before),
    atol=1e-5,
  )


def test_scales_have_limits_and_finite_gradients_there():
  """Inputs at one point, and far apart."""
  weights = jnp.full((4, 1), 0.25)

  def scales(points):
    return slots.slot_frames(weights, points).scales

  for points, want in (
    (jnp.zeros((4, 2)), 1e-3),
    (100 * jnp.array([[1.0, 1], [-1, -1], [1, -1], [-1, 1]]), 2.0),
  ):
    np.testing.assert_allclose(scales(points), want, rtol=1e-6)
    chex.assert_tree_all_finite(jax.jacobian(scales)(points))


def test_batches_are_loops():
  batch = [_arguments(seed, dtype=np.float32) for seed in range(3)]
  stacked = map(jnp.stack, zip(*batch, strict=True))
  got = jax.jit(jax.vmap(_attend))(*stacked)
  for n, arguments in enumerate(batch):
    want = _attend(*map(jnp.asarray, arguments))
    chex.assert_trees_all_close(
      jax.tree.map(lambda x, n=n: x[n], got), want, atol=1e-6
    )


@pytest.fixture
def without_types():
  """As outside of tests, where annotations are not enforced."""
  jaxtyping.config.update("jaxtyping_disable", True)
  yield
  jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("without_types")
@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"epsilon": 0.0}, "epsilon is 0.0; give a finite number above 0"),
    ({"keys": jnp.zeros((7, 5))}, r"keys is \[7 5\]; give \[I D\]"),
    ({"values": jnp.zeros((6, 2))}, r"values is \[6 2\]"),
    ({"presence": jnp.zeros(3)}, r"presence is \[3\]"),
  ],
)
def test_arguments_that_do_not_fit_are_refused(change, message):
  names = "queries", "keys", "values", "presence"
  arguments = map(jnp.asarray, _arguments(dtype=np.float32))
  given = dict(zip(names, arguments, strict=True)) | change
  with pytest.raises(ValueError, match=message):
    _attend(**given)
