"""Poses of a constructed model, which are linear in what is asked of them."""

import inspect

import numpy as np
import pytest

from capjax.evaluation import equivariance


def _examples(seed, count=300):
  """Numbers, and poses that are linear in them and in two others."""
  random = np.random.default_rng(seed)
  values = random.uniform(-30, 30, count)
  hidden = np.column_stack([values, random.normal(size=(count, 2))])
  mixing = np.random.default_rng(9).normal(size=(3, 5))
  return values, hidden @ mixing + 4


def test_a_linear_readout_is_exact():
  values, poses = _examples(0)
  tests, seen = _examples(1)
  found = equivariance.readouts(poses, values, seen, tests)
  assert found["linear"].r2 > 0.999 and found["linear"].error < 0.3
  assert 0.9 < found["mlp"].r2 <= 1
  shuffled = np.random.default_rng(2).permutation(values)
  broken = equivariance.readouts(poses, shuffled, seen, tests)
  assert broken["linear"].r2 < 0.2
  assert broken["linear"].error == pytest.approx(
    np.std(tests) * np.sqrt(1 - broken["linear"].r2)
  )


def test_a_curved_readout_needs_the_network():
  values, _ = _examples(0)
  tests, _ = _examples(1)
  poses, seen = (np.abs(x)[:, None] for x in (values, tests))
  found = equivariance.readouts(
    poses, np.square(values), seen, np.square(tests)
  )
  assert found["mlp"].r2 > found["linear"].r2 + 0.01
  # The sign is lost.
  assert equivariance.readouts(poses, values, seen, tests)["mlp"].r2 < 0.1


def test_noise_that_is_small_stays_small_if_features_keep_their_scales():
  """As that in the last principal components of pixels does."""
  random = np.random.default_rng(0)
  features = random.normal(size=(900, 100)) * np.array([1.0] * 2 + [0.02] * 98)
  values = np.abs(features[:, 0]) + features[:, 1]
  parts = features[:600], values[:600], features[600:], values[600:]
  kept, standardised = (
    equivariance.readouts(*parts, standardise=x)["mlp"].r2
    for x in (False, True)
  )
  assert kept > 0.9 > 0.8 > standardised


def test_a_linear_change_has_no_error():
  _, before = _examples(0)
  _, seen = _examples(1)
  matrix = np.random.default_rng(3).normal(size=(5, 5))
  found = equivariance.change(before, before @ matrix, seen, seen @ matrix)
  assert found.equivariance_error < 1e-3 and found.invariance_error > 0.1
  same = equivariance.change(before, before, seen, seen)
  assert same.invariance_error == 0
  noise = np.random.default_rng(4).normal(size=(2, *before.shape))
  lost = equivariance.change(before, noise[0], seen, noise[1])
  assert lost.equivariance_error > 0.95


def test_each_number_of_a_pose_has_its_own_mean():
  _, before = _examples(0)
  _, seen = _examples(1)
  noise = np.random.default_rng(4).normal(size=(2, *before.shape))
  poses = before, before + noise[0], seen, seen + noise[1]
  want = equivariance.change(*poses)
  offsets = 50.0 * np.arange(5)
  found = equivariance.change(*(x + offsets for x in poses))
  np.testing.assert_allclose(found, want, rtol=1e-3)


def test_poses_that_do_not_change_are_no_better_than_their_mean():
  constant = np.full((9, 3), 0.3, np.float32)
  noise = np.random.default_rng(0).normal(size=(2, 9, 3))
  for size in (0.0, 1e-9, 1e-8):
    before, after = (constant + size * x for x in noise)
    found = equivariance.change(before, after, before, after)
    assert found == equivariance.Change(1.0, 1.0)


def test_values_that_do_not_change_are_refused():
  poses = np.random.default_rng(0).normal(size=(9, 3))
  with pytest.raises(ValueError, match="test_values are all the same; give"):
    equivariance.readouts(poses, poses[:, 0], poses, np.full(9, 0.3))


def test_poses_of_a_diverged_model_are_refused():
  poses = np.ones((4, 2))
  wrong = poses * [1, np.nan]
  with pytest.raises(ValueError, match="features hold NaN or infinities"):
    equivariance.readouts(wrong, np.arange(4.0), poses, np.arange(4.0))
  with pytest.raises(ValueError, match="features hold NaN or infinities"):
    equivariance.change(poses, poses, poses, wrong)


def test_few_examples():
  random = np.random.default_rng(0)
  poses, seen = random.normal(size=(2, 9, 3))
  found = equivariance.readouts(poses, poses[:, 0], seen, seen[:, 0])
  assert found["linear"].r2 > 0.9 and np.isfinite(found["mlp"].r2)
  with pytest.raises(ValueError, match="test_values is of 1 examples; give at"):
    equivariance.readouts(poses, poses[:, 0], seen[:1], seen[:1, 0])
  with pytest.raises(ValueError, match="test_after is of 1 examples; give at"):
    equivariance.change(poses, poses, seen[:1], seen[:1])


def test_values_and_rows_belong_together():
  poses, seen = np.random.default_rng(0).normal(size=(2, 9, 3))
  # Annotations are checked in tests alone.
  readouts, change = map(
    inspect.unwrap, (equivariance.readouts, equivariance.change)
  )
  with pytest.raises(ValueError, match=r"test_values has shape \[9, 1\]; give"):
    readouts(poses, poses[:, 0], seen, seen[:, :1])
  with pytest.raises(
    ValueError, match=r"values has shape \[9, 1\]; give \[9\]"
  ):
    readouts(poses, poses[:, :1], seen, seen[:, 0])
  with pytest.raises(ValueError, match=r"test_after has shape \[9, 3\]; give"):
    change(poses, poses, seen[:1], seen)
