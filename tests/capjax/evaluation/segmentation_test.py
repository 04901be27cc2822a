"""Scores of segmented points against all matchings, one by one."""

import inspect
import itertools

import numpy as np
from absl.testing import absltest, parameterized

from capjax.evaluation import segmentation


def _most_right(found, truth):
  """The best of all ways to give each found object a true one."""
  names = sorted({*found, *truth})
  return max(
    sum(dict(zip(names, order, strict=True))[f] == t for f, t in pairs)
    for pairs in [list(zip(found, truth, strict=True))]
    for order in itertools.permutations(names)
  )


def _rand_index(found, truth):
  """Hubert and Arabie (1985), Eq. 5, by counting pairs."""
  pairs = list(itertools.combinations(range(len(found)), 2))
  one = [found[i] == found[j] for i, j in pairs]
  other = [truth[i] == truth[j] for i, j in pairs]
  both = sum(x and y for x, y in zip(one, other, strict=True))
  expected = sum(one) * sum(other) / len(pairs)
  return (both - expected) / ((sum(one) + sum(other)) / 2 - expected)


class SegmentationTest(parameterized.TestCase):
  @parameterized.parameters(*range(20))
  def test_match_is_the_best_of_all(self, seed):
    random = np.random.default_rng(seed)
    found, truth = random.integers(0, 4, (2, 9))
    named = segmentation.match(found, truth)
    self.assertEqual(np.sum(named == truth), _most_right(found, truth))
    for name in set(named) - {-1}:
      self.assertLen(set(found[named == name]), 1)
      self.assertLen(set(named[found == found[named == name][0]]), 1)

  def test_names_of_objects_are_nothing(self):
    truth = np.array([0, 0, 1, 1, 1, 2])
    for found, right in (
      ([7, 7, -1, -1, -1, 3], 6),
      # Two found objects cannot stand for the same true one.
      ([0, 1, 2, 2, 2, 3], 5),
      ([0, 0, 0, 0, 0, 0], 3),
    ):
      named = segmentation.match(np.array(found), truth)
      self.assertEqual(np.sum(named == truth), right)

  def test_numbers_of_objects_may_have_gaps(self):
    truth = np.array([0, 200_000, 200_000, 7])
    named = segmentation.match(np.array([3, 1, 1, 2]), truth)
    np.testing.assert_array_equal(named, truth)
    match = inspect.unwrap(segmentation.match)  # annotations say signed
    masks = np.array([0, 255, 255, 255], np.uint8)
    named = match(np.array([0, 1, 2, 2]), masks)
    np.testing.assert_array_equal(named, [0, -1, 255, 255])

  def test_absent_points_are_left_out(self):
    truth = np.array([[0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 0, 1]])
    found = np.array([[0, 0, 1, 9], [0, 1, 1, 1], [0, 0, 0, 0]])
    presence = np.array([[1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0.0]])
    got = segmentation.score(found, truth, presence)
    self.assertEqual(got.num_images, 2)
    self.assertAlmostEqual(got.accuracy, (1 + 2 / 4) / 2)
    self.assertAlmostEqual(got.pooled_accuracy, (3 + 2) / 7)
    self.assertAlmostEqual(got.perfect, 1 / 2)
    rand = _rand_index(found[1], truth[1])
    self.assertAlmostEqual(got.rand_index, (1 + rand) / 2)

  def test_images_of_several_objects(self):
    """There, one object for all points has an index of 0."""
    truth = np.array([[0, 0, 1], [0, 0, 1], [2, 2, 2], [0, 1, 2], [0, 1, 2]])
    presence = np.array(
      [[1, 1, 1], [1, 1, 0], [1, 1, 1], [0, 0, 0], [0, 1, 1.0]]
    )
    several = segmentation.of_several(truth, presence)
    self.assertEqual(several.tolist(), [True, False, False, False, True])
    one = np.zeros_like(truth)
    rand = [
      segmentation.score(one[rows], truth[rows], presence[rows]).rand_index
      for rows in (several, ~several)
    ]
    self.assertEqual(rand, [0, 1])

  def test_nothing_to_score_is_refused(self):
    nothing = np.zeros((2, 3))
    with self.assertRaisesRegex(ValueError, "no image has a point"):
      segmentation.score(nothing.astype(int), nothing.astype(int), nothing)

  @parameterized.parameters(
    ([[0, 0, -1]], [[1, 1, 1]], "truth is below 0 at points that count"),
    ([[0, 0]], [[1, 1, 1]], r"\[1, 3\], \[1, 2\], \[1, 3\]; give one shape"),
  )
  def test_points_of_no_object_are_refused(self, truth, presence, message):
    score = inspect.unwrap(segmentation.score)  # annotations are not checked
    found = np.zeros((1, 3), int)
    with self.assertRaisesRegex(ValueError, message):
      score(found, np.array(truth), np.array(presence, float))
    # Where they do not count, they may have any number.
    segmentation.score(found, np.array([[0, 0, -1]]), np.array([[1.0, 1, 0]]))


if __name__ == "__main__":
  absltest.main()
