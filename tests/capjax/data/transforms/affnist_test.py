"""Digits like affNIST's; its own files are in `affnist_files_test`."""

import functools
from unittest import mock

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from capjax import data
from capjax.data.transforms import affnist
from kernels import rendering

_CANVASES = ((34, 46), (40, 40))
_COUNT = 3000


def _digits(data_dir, count):
  images = data.load("mnist", "test", data_dir).images[:count]
  return jnp.asarray(images, jnp.float32) / 255


def _block(top=9, left=4, height=7, width=12, frame=(28, 24)):
  """An image with a dense rectangle of ink."""
  ink = jax.random.uniform(jax.random.key(0), (height, width, 1), minval=0.2)
  return (
    jnp.zeros((*frame, 1))
    .at[top:, left:]
    .set(
      jnp.pad(
        ink,
        ((0, frame[0] - top - height), (0, frame[1] - left - width), (0, 0)),
      )
    )
  )


def _blocks(count):
  return jnp.tile(_block(), (count, 1, 1, 1))


@functools.cache
def _many(pose_of, canvas=_CANVASES[0], **options):
  """A compiled function of keys and images that draws poses."""
  one = functools.partial(pose_of, canvas=canvas, **options)
  return jax.jit(jax.vmap(one))


@functools.partial(jax.jit, static_argnames="canvas")
def _drawn(images, poses, canvas):
  see = functools.partial(rendering.transform, canvas=canvas)
  return jax.vmap(see)(images, poses)


def _draw(images, poses, canvas):
  return np.asarray(_drawn(images, poses, canvas))


def _parts(poses):
  """Takes poses apart; the inverse of `geometry.affine_matrix`."""
  a, b, c, d = np.float64(poses)[:, :2, :2].reshape(-1, 4).T
  scale_y, theta = np.hypot(c, d), np.arctan2(c, d)
  scale_x = a * np.cos(theta) - b * np.sin(theta)
  shear = (a * np.sin(theta) + b * np.cos(theta)) / scale_y
  return scale_x, scale_y, np.degrees(theta), shear


def _assert_uniform(values, low, high):
  """All within the range, and as many in each tenth of it."""
  slack = 1e-4 * (high - low)
  assert low - slack <= values.min() and values.max() <= high + slack
  counts, _ = np.histogram(values, 10, (low - slack, high + slack))
  cases.assert_equally_often(counts)


def check_ranges(pose_of):
  parts = _parts(_many(pose_of)(cases.keys(_COUNT), _blocks(_COUNT)))
  ranges = ((0.8, 1.2), (0.8, 1.2), (-20, 20), (-0.2, 0.2))
  for values, (low, high) in zip(parts, ranges, strict=True):
    _assert_uniform(values, low, high)
  correlations = np.corrcoef(parts) - np.eye(4)
  np.testing.assert_array_less(np.abs(correlations), 0.1)


def check_no_ink_leaves(pose_of):
  """Of its mass, nothing is missing that a canvas without end would show."""
  images = _blocks(200)
  for canvas in _CANVASES:
    poses = _many(pose_of, canvas)(cases.keys(len(images)), images)
    # Larger by whole pixels on every side, so that samples fall alike.
    wide = canvas[0] + 40, canvas[1] + 40
    got = _draw(images, poses, canvas).sum((1, 2, 3))
    want = _draw(images, poses, wide).sum((1, 2, 3))
    np.testing.assert_allclose(got, want, rtol=1e-4)


def check_every_place_is_equally_likely(pose_of):
  """Where the ink's box is, from touching one border to touching the other."""
  canvas = _CANVASES[0]
  poses = np.float64(
    _many(pose_of, canvas)(cases.keys(_COUNT), _blocks(_COUNT))
  )
  rows, columns = np.nonzero(_block()[..., 0])
  points = np.stack([columns - 11.5, rows - 13.5, np.ones_like(rows)], axis=-1)
  places = []
  for axis in (0, 1):
    moved = poses[:, axis] @ points.T
    reach = np.abs(poses[:, axis, :2]).sum(1)
    border = (canvas[1 - axis] + 1) / 2
    before = moved.min(1) - reach + border
    after = border - moved.max(1) - reach
    _assert_uniform(before / (before + after), 0, 1)
    places.append(before / (before + after))
  assert abs(np.corrcoef(places)[0, 1]) < 0.1, "both axes share one draw"


def check_key_decides(pose_of):
  draw, images = _many(pose_of), _blocks(_COUNT)
  first, again, other = (draw(cases.keys(_COUNT, s), images) for s in (0, 0, 1))
  np.testing.assert_array_equal(first, again)
  assert np.all(np.any(first != other, (1, 2)))
  assert len(np.unique(first, axis=0)) == _COUNT


def check_small_canvas_cuts_both_ends(pose_of):
  """Ink too large for the canvas is put in its middle."""
  images = jnp.ones((50, 60, 20, 1))
  poses = np.asarray(_many(pose_of, (28, 80))(cases.keys(50), images))
  np.testing.assert_allclose(poses[:, 1, 2], 0, atol=1e-4)
  assert np.ptp(poses[:, 0, 2]) > 5


_CHECKS = (
  check_ranges,
  check_no_ink_leaves,
  check_every_place_is_equally_likely,
  check_key_decides,
  check_small_canvas_cuts_both_ends,
)


def _with_uniform(change):
  """`affnist_like_pose` with its six random numbers changed."""
  uniform = jax.random.uniform

  def pose_of(key, image, **options):
    def changed(key, shape, *, minval, maxval):
      return change(key, uniform(key, shape, minval=minval, maxval=maxval))

    with mock.patch.object(jax.random, "uniform", changed):
      return affnist.affnist_like_pose(key, image, **options)

  return pose_of


def _anywhere(key, image, *, canvas):
  """Moves until the middle of the ink would leave the canvas."""
  pose = affnist.affnist_like_pose(key, image, canvas=canvas)
  return pose.at[:2, 2].multiply(2)


def _without_footprint(key, image, *, canvas):
  """Lets the ink's outermost pixel centres touch the border."""
  larger = canvas[0] + 4, canvas[1] + 4
  return affnist.affnist_like_pose(key, image, canvas=larger)


def _axes_exchanged(key, image, *, canvas):
  return affnist.affnist_like_pose(key, image, canvas=canvas[::-1])


def _same_for_all(key, image, *, canvas):
  return affnist.affnist_like_pose(jax.random.key(0), image, canvas=canvas)


def _off_the_middle(key, image, *, canvas):
  pose = affnist.affnist_like_pose(key, image, canvas=canvas)
  return pose.at[:2, 2].add(1)


@pytest.mark.parametrize("check", _CHECKS)
def test_pose(check):
  check(affnist.affnist_like_pose)


@pytest.mark.parametrize(
  "check, broken",
  [
    (check_ranges, _with_uniform(lambda key, x: x.at[2].multiply(2))),
    (check_ranges, _with_uniform(lambda key, x: x.at[1].set(x[0]))),
    (
      check_ranges,
      _with_uniform(lambda key, x: x.at[2].set(x[2] ** 3 * 8)),
    ),
    (check_no_ink_leaves, _anywhere),
    (check_no_ink_leaves, _without_footprint),
    (check_no_ink_leaves, _axes_exchanged),
    (check_every_place_is_equally_likely, _axes_exchanged),
    (
      check_every_place_is_equally_likely,
      _with_uniform(lambda key, x: x.at[4:].set(x[4:] ** 2)),
    ),
    (
      check_every_place_is_equally_likely,
      _with_uniform(lambda key, x: x.at[5].set(x[4])),
    ),
    (
      check_every_place_is_equally_likely,
      _with_uniform(lambda key, x: x.at[4:].multiply(0.8)),
    ),
    (check_key_decides, _same_for_all),
    (check_small_canvas_cuts_both_ends, _off_the_middle),
  ],
)
@pytest.mark.long_after_first
def test_broken_copy_fails(check, broken):
  with pytest.raises(AssertionError):
    check(broken)


@pytest.mark.parametrize("canvas", [None, (28, 28)])
def test_real_digits(data_dir, canvas):
  """Each is whole on 40x40, and nearly so on 28x28."""
  images, keys = _digits(data_dir, 300), cases.keys(300)
  options = {} if canvas is None else dict(canvas=canvas)
  one = functools.partial(affnist.affnist_like, **options)
  got = np.asarray(jax.jit(jax.vmap(one))(keys, images))
  canvas = canvas or (40, 40)
  assert got.shape == (300, *canvas, 1)
  assert got.min() >= 0 and got.max() <= 1
  poses = _many(affnist.affnist_like_pose, canvas)(keys, images)
  np.testing.assert_allclose(got, _draw(images, poses, canvas), atol=1e-5)
  whole = _draw(images, poses, (canvas[0] + 40, canvas[1] + 40)).sum((1, 2, 3))
  kept = got.sum((1, 2, 3)) / whole
  np.testing.assert_array_less(1 - 1e-4 if canvas == (40, 40) else 0.98, kept)
  # Bilinear sampling keeps mass, times the determinant.
  areas = np.linalg.det(np.asarray(poses)[:, :2, :2])
  means = whole / np.asarray(images).sum((1, 2, 3)) / areas
  np.testing.assert_allclose(means.mean(), 1, atol=0.01)


def test_vmap_is_a_loop():
  images = jnp.stack([_block(), _block(3, 9, 10, 10), jnp.zeros((28, 24, 1))])
  one, keys = jax.jit(affnist.affnist_like), cases.keys(3)
  want = [one(key, image) for key, image in zip(keys, images, strict=True)]
  got = jax.vmap(one)(keys, images)
  chex.assert_trees_all_close(got, jnp.stack(want), atol=1e-5)


def test_no_jit():
  pose_of, key = affnist.affnist_like_pose, jax.random.key(0)
  want = jax.jit(pose_of)(key, _block())
  np.testing.assert_allclose(pose_of(key, _block()), want, atol=1e-5)


def test_no_ink():
  """Stays finite, in place, and black."""
  black = jnp.zeros((28, 28, 1))
  pose = jax.jit(affnist.affnist_like_pose)(jax.random.key(0), black)
  chex.assert_tree_all_finite(pose)
  np.testing.assert_array_equal(pose[:2, 2], 0)
  assert not jax.jit(affnist.affnist_like)(jax.random.key(0), black).any()


def test_ink_of_any_channel_counts():
  ink = jnp.concatenate([jnp.zeros((28, 24, 1)), _block()], axis=-1)
  draw, keys = _many(affnist.affnist_like_pose), cases.keys(20)
  want = draw(keys, _blocks(20))
  got = draw(keys, jnp.tile(ink, (20, 1, 1, 1)))
  np.testing.assert_array_equal(got, want)
