"""Slot attention as a layer: the papers' rounds as loops, and symmetries."""

import functools

import chex
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import oracles
import pytest
from flax import nnx

from capjax.kernels import routing
from capjax.layers import slots

_BATCH, _MEMBERS, _FEATURES, _SLOTS, _SIZE = 2, 6, 3, 4, 5


@functools.cache
def _layer(**options):
  def make():
    return slots.SlotAttention(
      _FEATURES, num_slots=_SLOTS, size=_SIZE, num_iterations=2, **options,
      rngs=nnx.Rngs(0),
    )  # fmt: skip

  layer = jax.jit(make)()
  random = np.random.default_rng(0)  # also biases and norms, which start plain
  state = jax.tree.map(
    lambda x: x + jnp.asarray(random.normal(size=x.shape) / 4, x.dtype),
    nnx.state(layer, nnx.Param),
  )
  nnx.update(layer, state)
  return layer


@jax.jit
def _refine(layer, contents, members, presence, points, frames):
  return layer.refine(contents, members, presence, points=points, frames=frames)


def _sets(seed=0):
  random = np.random.default_rng(seed)
  members = random.normal(size=(_BATCH, _MEMBERS, _FEATURES))
  points = random.uniform(-1, 1, (_BATCH, _MEMBERS, 2))
  presence = np.ones((_BATCH, _MEMBERS))
  presence[0, 1] = 0
  return (jnp.asarray(x, jnp.float32) for x in (members, presence, points))


def test_all_members_are_present_without_presence():
  members, _, _ = _sets()
  there = jnp.ones(members.shape[:2])
  chex.assert_trees_all_equal(_layer()(members), _layer()(members, there))


@pytest.mark.parametrize("invariant", [False, True])
def test_absent_points_move_no_slot(invariant):
  layer = slots.PointSlots(
    num_slots=2, size=4, width=8, num_blocks=1, num_heads=2, num_iterations=2,
    invariant=invariant, rngs=nnx.Rngs(0),
  )  # fmt: skip
  _, presence, points = _sets()
  assert presence[0, 1] == 0
  call = jax.jit(lambda layer, *x: layer(*x).contents)
  want = call(layer, points, presence)
  got = call(layer, points.at[0, 1].add(0.4), presence)
  np.testing.assert_allclose(got, want, atol=1e-5)
  other = call(layer, points.at[0, 2].add(0.4), presence)
  assert np.abs(other - want).max() > 1e-3


def _linear(layer, x):
  y = x @ np.float64(layer.kernel[...])
  return y if layer.bias is None else y + np.float64(layer.bias[...])


def _norm(layer, x):
  y = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
  return y * np.float64(layer.scale[...]) + np.float64(layer.bias[...])


def _sigmoid(x):
  return 1 / (1 + np.exp(-x))


def _oracle(layer, contents, members, presence, points, frames, fault=None):
  """Algorithm 1 of either paper for one set, slot by slot."""
  invariant = layer.place is not None
  contents = np.float64(contents)
  positions, scales = map(np.array, frames) if invariant else (None, None)
  normed = [_norm(layer.member_norm, x) for x in np.float64(members)]

  def seen(projection, i, j):
    x = _linear(projection, normed[i])
    if invariant:
      place = (np.float64(points[i]) - positions[j]) / (5 * scales[j])
      x = x + _linear(layer.place, place)
      x = _linear(layer.seen, np.maximum(_linear(layer.seen_hidden, x), 0))
    return x

  for step in range(layer.num_iterations + invariant):
    shares = np.zeros((_MEMBERS, _SLOTS))
    queries = [
      _linear(layer.query, _norm(layer.slot_norm, x)) for x in contents
    ]
    for i in range(_MEMBERS):
      scores = [
        queries[j] @ seen(layer.key, i, j) / np.sqrt(_SIZE)
        for j in range(_SLOTS)
      ]
      shares[i] = oracles.softmax(scores)
    weights = np.float64(presence)[:, None] * (shares + 1e-8)
    weights /= weights.sum(axis=0)
    means = [
      sum(weights[i, j] * seen(layer.value, i, j) for i in range(_MEMBERS))
      for j in range(_SLOTS)
    ]
    if invariant:
      for j in range(_SLOTS):
        positions[j] = weights[:, j] @ np.float64(points)
        squares = (np.float64(points) - positions[j]) ** 2
        scales[j] = np.sqrt(weights[:, j] @ squares)
    if step == layer.num_iterations:
      break
    for j in range(_SLOTS):
      r, z, n = np.split(_linear(layer.gru.of_input, means[j]), 3)
      s, y, m = np.split(_linear(layer.gru.of_state, contents[j]), 3)
      update, reset = _sigmoid(z + y), _sigmoid(r + s)
      new = np.tanh(n + reset * m)
      if fault == "no_reset":
        new = np.tanh(n + m)
      contents[j] = (1 - update) * new + update * contents[j]
      hidden = _linear(layer.hidden, _norm(layer.hidden_norm, contents[j]))
      change = _linear(layer.output, np.maximum(hidden, 0))
      contents[j] = change if fault == "no_residual" else contents[j] + change
  return contents, shares, positions, scales


def _check(invariant, fault=None):
  layer = _layer(invariant=invariant)
  members, presence, points = _sets()
  contents, frames = layer.start(_BATCH, key=jax.random.key(1))
  got = _refine(layer, contents, members, presence, points, frames)
  for n in range(_BATCH):
    own = None if frames is None else [x[n] for x in frames]
    want = _oracle(
      layer, contents[n], members[n], presence[n], points[n], own, fault
    )
    np.testing.assert_allclose(got.contents[n], want[0], atol=2e-5)
    np.testing.assert_allclose(got.coefficients[n], want[1], atol=2e-5)
    if invariant:
      np.testing.assert_allclose(got.frames.positions[n], want[2], atol=2e-5)
      np.testing.assert_allclose(got.frames.scales[n], want[3], atol=2e-5)


@pytest.mark.parametrize("invariant", [False, True])
def test_rounds_are_those_of_the_papers(invariant):
  _check(invariant)


@pytest.mark.parametrize("fault", ["no_reset", "no_residual"])
def test_broken_rounds_are_found(fault):
  with pytest.raises(AssertionError):
    _check(False, fault)


@pytest.mark.parametrize("invariant", [False, True])
def test_slots_permute_and_members_have_no_order(invariant):
  layer = _layer(invariant=invariant)
  members, presence, points = _sets()
  contents, frames = layer.start(_BATCH, key=jax.random.key(1))
  want = _refine(layer, contents, members, presence, points, frames)
  order = np.array([2, 0, 3, 1])
  mixed = np.random.default_rng(0).permutation(_MEMBERS)
  got = _refine(
    layer,
    contents[:, order],
    members[:, mixed],
    presence[:, mixed],
    points[:, mixed],
    jax.tree.map(lambda x: x[:, order], frames),
  )
  chex.assert_trees_all_close(
    got,
    slots.Slots(
      want.contents[:, order],
      want.coefficients[:, mixed][:, :, order],
      jax.tree.map(lambda x: x[:, order], want.frames),
    ),
    atol=1e-5,
  )


def _moved(frames, factor, shift):
  return routing.Frames(factor * frames.positions + shift,
                        factor * frames.scales)  # fmt: skip


@pytest.mark.parametrize("invariant", [False, True])
def test_contents_do_not_depend_on_where_and_how_large(invariant):
  """Of invariant slots; the others see no points at all, but for features."""
  layer = _layer(invariant=True)
  members, presence, points = _sets()
  if not invariant:  # a broken use: members that know their places
    members = members.at[..., :2].set(points)
  contents, frames = layer.start(_BATCH)
  factor, shift = jnp.array([0.7, 1.4]), jnp.array([0.2, -0.3])
  seen = factor * points + shift
  before = _refine(layer, contents, members, presence, points, frames)
  if not invariant:
    members = members.at[..., :2].set(seen)
  moved = _moved(frames, factor, shift)
  after = _refine(layer, contents, members, presence, seen, moved)
  same = np.allclose(after.contents, before.contents, atol=1e-4)
  assert same == invariant
  if invariant:
    chex.assert_trees_all_close(
      after.frames, _moved(before.frames, factor, shift), atol=1e-4
    )


def test_absent_members_change_nothing():
  layer = _layer(invariant=True)
  members, presence, points = _sets()
  want = layer(members, presence, points=points)
  got = layer(
    members.at[0, 1].set(9.0), presence, points=points.at[0, 1].set(9.0)
  )
  np.testing.assert_allclose(got.contents, want.contents, atol=1e-5)
  chex.assert_trees_all_close(got.frames, want.frames, atol=1e-5)


@pytest.mark.parametrize("start", ["sampled", "learned"])
def test_starts(start):
  layer = _layer(start=start, invariant=True)
  contents, frames = layer.start(3)
  assert np.all(contents == contents[:1])
  assert np.all(frames.positions == frames.positions[:1])
  assert np.all(np.abs(frames.positions) <= 1.5) and np.all(frames.scales > 0)
  assert np.std(contents[0], axis=0).min() > 0  # slots differ
  other, _ = layer.start(3, key=jax.random.key(0))
  assert np.all(other == contents) == (start == "learned")
  assert np.all(other[0] == other[1]) == (start == "learned")


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.long_after_first
def test_gradients_are_finite_without_members(invariant, dtype):
  layer = _layer(invariant=invariant)
  graph, parameters = nnx.split(layer)
  members, presence, points = (x.astype(dtype) for x in _sets())

  @jax.jit
  @jax.grad
  def gradient(parameters, presence):
    found = nnx.merge(graph, parameters)(members, presence, points=points)
    return sum(
      jnp.sum(jnp.square(x.astype(jnp.float32))) for x in jax.tree.leaves(found)
    )

  for there in (presence, 0 * presence):
    found = gradient(parameters, there)
    chex.assert_tree_all_finite(found)
  points = jnp.zeros_like(points)  # all at one place
  chex.assert_tree_all_finite(gradient(parameters, presence))


def test_bad_options_are_refused():
  make = functools.partial(
    slots.SlotAttention, 3, size=4, num_slots=2, rngs=nnx.Rngs(0)
  )
  jaxtyping.config.update("jaxtyping_disable", True)
  try:
    with pytest.raises(ValueError, match="start='random'; pass 'sampled' or"):
      make(start="random")
  finally:
    jaxtyping.config.update("jaxtyping_disable", False)
  with pytest.raises(ValueError, match="num_iterations is 0; give at least 1"):
    make(num_iterations=0)
  members, presence, _ = _sets()
  with pytest.raises(ValueError, match="have frames of reference; give points"):
    _layer(invariant=True)(members, presence)
