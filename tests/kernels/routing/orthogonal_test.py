"""Sparse attention and its parts against loops, in float64 NumPy.

What it shares with all routings is in `all_routings_test`.
"""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax.test_util import check_grads

from kernels import numerics
from kernels.routing import linear_votes, orthogonal

_route = jax.jit(orthogonal.sparse_attention_routing)


def _arguments(seed=0, shape=cases.VOTES_SHAPE, dtype=jnp.float32):
  random = np.random.default_rng(seed + 100)
  size = shape[2]
  arguments = {
    "kept": np.float64(np.arange(shape[0]) != 1),
    "keys": np.linalg.qr(random.normal(size=(size, size)))[0],
    "values": np.linalg.qr(random.normal(size=(size, size)))[0],
    "bias": random.normal(size=shape[1:]) / 2,
  }
  return {name: jnp.array(x, dtype) for name, x in arguments.items()}


def _entmax(x):
  """Tau by halving an interval."""
  low, high = max(x) / 2 - 1, max(x) / 2
  for _ in range(100):
    tau = (low + high) / 2
    if sum(np.maximum(x / 2 - tau, 0) ** 2) > 1:
      low = tau
    else:
      high = tau
  return np.maximum(x / 2 - tau, 0) ** 2


def _oracle(votes, kept, keys, values, bias):
  num_parts, num_parents, size = votes.shape
  c = np.zeros((num_parts, num_parents))
  for i in range(num_parts):
    scores = np.zeros(num_parents)
    for j in range(num_parents):
      for other in range(num_parts):
        key = keys @ votes[other, j]
        scores[j] += kept[other] * (votes[i, j] @ key) / np.sqrt(size)
    c[i] = _entmax(scores)
  v = np.zeros(votes.shape[1:])
  for j in range(num_parents):
    s = sum(kept[i] * c[i, j] * votes[i, j] for i in range(num_parts))
    v[j] = oracles.squash(s @ values + bias[j])
  return v, np.linalg.norm(v, axis=1), c


def check_matches_oracle(route, seed=0):
  votes, arguments = cases.votes(seed), _arguments(seed)
  want = _oracle(np.float64(votes), **jax.tree.map(np.float64, arguments))
  assert np.any(want[2] == 0) and np.any((want[2] > 0) & (want[2] < 1))
  cases.assert_outputs_close(route(votes, **arguments), want, atol=2e-5)


def _textbook(votes, kept, keys, values, bias, *, fault=None):
  present = jnp.ones_like(kept) if fault == "nothing_pruned" else kept
  sums = jnp.einsum("i,ijd->jd", present, votes)
  sums = sums @ (keys if fault == "keys_turned" else keys.T)
  scores = jnp.einsum("ijd,jd->ij", votes, sums)
  if fault != "unscaled":
    scores /= jnp.sqrt(votes.shape[2])
  if fault == "over_children":
    shares = orthogonal.entmax15(scores.T).T
  else:
    shares = orthogonal.entmax15(scores)
  if fault == "softmax":
    shares = jax.nn.softmax(scores)
  total = jnp.einsum("i,ij,ijd->jd", present, shares, votes)
  if fault != "no_values":
    total = total @ values
  poses = numerics.squash(total if fault == "no_bias" else total + bias)
  return poses, jnp.linalg.norm(poses, axis=1), shares


@pytest.mark.parametrize("seed", [0, 1])
def test_matches_oracle(seed):
  check_matches_oracle(_route, seed)


def test_textbook_form_is_right():
  check_matches_oracle(_textbook)


@pytest.mark.parametrize(
  "fault",
  [
    "nothing_pruned",
    "keys_turned",
    "unscaled",
    "over_children",
    "softmax",
    "no_values",
    "no_bias",
  ],
)
def test_broken_copy_fails(fault):
  with pytest.raises(AssertionError):
    check_matches_oracle(functools.partial(_textbook, fault=fault))


def test_gradients_and_factors():
  factors = linear_votes.LinearVotes(
    cases.votes(0, (7, 3)), cases.votes(1, (7, 4, 3, 5))
  )
  votes = jnp.einsum("ic,ijcd->ijd", *factors, precision="highest")
  cases.assert_outputs_close(
    _route(factors, **_arguments()), _route(votes, **_arguments()), atol=1e-4
  )
  with jax.enable_x64(True):
    shape = (4, 3, 3)
    given = _arguments(0, shape, jnp.float64)
    kept = given.pop("kept")

    def route(votes, given):
      return _route(votes, kept=kept, **given)

    votes = cases.votes(0, shape, jnp.float64)
    check_grads(route, (votes, given), order=1, modes=("fwd", "rev"))


def check_entmax(entmax):
  random = np.random.default_rng(0)
  for size in (0.01, 1.0, 100.0):
    x = size * random.normal(size=(6, 5))
    want = [_entmax(row) for row in x]
    np.testing.assert_allclose(entmax(jnp.float32(x)), want, atol=2e-5)


def test_entmax():
  entmax = jax.jit(orthogonal.entmax15)
  check_entmax(entmax)
  for broken in (jax.nn.softmax, lambda x: entmax(2 * x)):
    with pytest.raises(AssertionError):
      check_entmax(broken)
  np.testing.assert_allclose(entmax(jnp.ones((1, 4))), 0.25 * np.ones((1, 4)))
  np.testing.assert_array_equal(entmax(jnp.array([[3.0]])), [[1.0]])


@pytest.mark.parametrize("scale", [5.0, 100.0])
def test_shares_below_the_threshold_are_exactly_zero(scale):
  x = scale * np.random.default_rng(0).normal(size=(200, 6))
  got = np.asarray(orthogonal.entmax15(jnp.float32(x)))
  want = np.array([_entmax(row) for row in x])
  np.testing.assert_array_equal(got[want == 0], 0)
  assert np.mean(want == 0) > 0.3


def test_no_pose_is_pruned_at_the_largest_cosine():
  poses = np.array(cases.votes(0, (50, 3)))
  poses = jnp.asarray(np.concatenate([poses, 2 * poses]))
  assert np.all(orthogonal.prune(poses, threshold=1.0) == 1)


def check_pruned(prune, centre=0.0):
  poses = np.array(cases.votes(0, (9, 3)))
  poses[4] = 0.5 * poses[1]  # the same, shorter
  poses[5] = poses[2]  # the same, and as long
  poses[6] = 0
  kept = np.ones(9)
  for i in range(9):
    for other in range(9):
      norms = np.linalg.norm(poses[i]), np.linalg.norm(poses[other])
      one, two = poses[i] - centre, poses[other] - centre
      longer = norms[1] > norms[0] or (norms[1] == norms[0] and other < i)
      size = np.linalg.norm(one) * np.linalg.norm(two)
      if longer and one @ two > 0.7 * size:
        kept[i] = 0
  assert not kept[5] and (np.any(centre) or (not kept[4] and kept[6]))
  np.testing.assert_array_equal(prune(jnp.array(poses)), kept)


def test_pruning():
  check_pruned(orthogonal.prune)

  def opposite(poses):
    return orthogonal.prune(poses, threshold=-0.9)

  centre = jnp.array([0.3, -0.4, 0.2])

  def about(poses):
    return orthogonal.prune(poses, centre=centre)

  check_pruned(about, np.float64(centre))
  with pytest.raises(AssertionError):
    check_pruned(opposite)
  with pytest.raises(AssertionError):
    check_pruned(lambda poses: orthogonal.prune(poses[::-1])[::-1])
  with pytest.raises(ValueError, match="threshold is 2.0; give a number from"):
    orthogonal.prune(cases.votes(0, (3, 2)), threshold=2.0)


def test_a_pose_that_all_share_hides_their_directions():
  poses = 0.01 * cases.votes(0, (20, 8)) + 1.0
  assert np.sum(orthogonal.prune(poses)) == 1
  centre = jnp.mean(poses, axis=0)
  assert np.sum(orthogonal.prune(poses, centre=centre)) > 10


def check_reflections(householder):
  vectors = cases.votes(0, (3, 4)).at[1].set(0)
  want = np.eye(4)
  for w in np.float64(vectors):
    if np.any(w):
      want = want @ (np.eye(4) - 2 * np.outer(w, w) / (w @ w))
  np.testing.assert_allclose(householder(vectors), want, atol=1e-5)
  matrix = householder(1e10 * cases.votes(1, (4, 4)))
  np.testing.assert_allclose(matrix @ matrix.T, np.eye(4), atol=1e-5)


def test_reflections():
  check_reflections(orthogonal.householder)
  for broken in (lambda w: orthogonal.householder(w[::-1]), lambda w: w[:4]):
    with pytest.raises(AssertionError):
      check_reflections(broken)
