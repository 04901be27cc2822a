"""The order that mixes classes, and the part that is held out."""

import numpy as np
import pytest

from capjax.data import splitting


def sizes(labels, rows):
  return np.bincount(labels[rows], minlength=labels.max() + 1)


@pytest.mark.parametrize("seed", range(3))
def test_every_beginning_holds_the_same_share_of_each_class(seed):
  labels = np.repeat([0, 1, 2], [200, 40, 7])  # sorted by class, as folders are
  order = splitting.mixed_order(labels, seed=seed)
  assert sorted(order) == list(range(247))
  for count in (20, 41, 100, 200):
    # At most one example of a class is off, and the total is off by their sum.
    want = count * np.array([200, 40, 7]) / 247
    np.testing.assert_allclose(sizes(labels, order[:count]), want, atol=3)


def test_the_order_within_a_class_is_random():
  order = splitting.mixed_order(np.zeros(50, int))
  assert not np.array_equal(order, np.arange(50))
  assert not np.array_equal(
    order, splitting.mixed_order(np.zeros(50, int), seed=1)
  )


def test_a_fifth_of_each_class_is_held_out():
  counts = [1, 2, 3, 7, 8, 12, 13, 100]
  labels = np.random.default_rng(0).permutation(np.repeat(range(8), counts))
  test = splitting.held_out(labels)
  want = [0, 1, 1, 1, 2, 2, 3, 20]
  np.testing.assert_array_equal(sizes(labels, test), want)
  other = splitting.held_out(labels, seed=1)
  np.testing.assert_array_equal(sizes(labels, other), want)
  assert not np.array_equal(test, other)


def test_images_of_several_classes_are_held_out_regardless_of_class():
  labels = np.eye(40, dtype=np.int32)
  assert splitting.held_out(labels).sum() == 8
  assert sorted(splitting.mixed_order(labels)) == list(range(40))


def test_both_are_the_same_on_every_machine():
  labels = np.repeat([0, 1], 6)
  assert np.flatnonzero(splitting.held_out(labels)).tolist() == HELD_OUT
  assert splitting.mixed_order(labels).tolist() == ORDER


# Results are quoted on this split.
HELD_OUT = [4, 7]
ORDER = [3, 11, 8, 2, 1, 6, 7, 0, 10, 4, 9, 5]
