"""Which examples are kept for validation."""

import numpy as np
import pytest

from capjax import data
from experiments.training import splits

NUM_EXAMPLES, BATCH_SIZE = 23, 4
IMAGES = np.arange(NUM_EXAMPLES, dtype=np.uint8).reshape(-1, 1, 1, 1)
LABELS = np.arange(NUM_EXAMPLES, dtype=np.int32)


def test_validation_is_the_first_sixth():
  dataset = data.Dataset(IMAGES, LABELS, NUM_EXAMPLES, {"angle": LABELS})
  train, validation = splits.split_validation(dataset, None, BATCH_SIZE)
  np.testing.assert_array_equal(validation.labels, LABELS[:3])
  np.testing.assert_array_equal(train.factors["angle"], LABELS[3:])
  assert len(train.images) + len(validation.images) == NUM_EXAMPLES


@pytest.mark.parametrize("count", [0, 3])
def test_classes_that_validation_takes_are_told(count):
  """Classes 0 and 2 are among the first three examples only."""
  labels = np.array([0, 1, 2, *[1, 3] * 10], np.int32)
  dataset = data.Dataset(IMAGES, labels, 4, {}, tuple("abcd"), ("a note",))
  train, validation = splits.split_validation(dataset, count, BATCH_SIZE)
  notes = [
    "a note",
    "validation has all training images of class a, c, 2 in all; give a "
    "smaller num_validation (--num_validation), or 0",
  ]
  assert list(train.notes) == notes[: 1 + bool(count)]
  assert validation.notes == ("a note",)


def test_numbers_of_examples_are_no_classes():
  dataset = data.Dataset(IMAGES, LABELS, 2, {})
  train, _ = splits.split_validation(dataset, 3, BATCH_SIZE)
  assert not train.notes


def test_validation_can_be_empty():
  dataset = data.Dataset(IMAGES, LABELS, NUM_EXAMPLES, {"angle": LABELS})
  train, validation = splits.split_validation(dataset, 0, BATCH_SIZE)
  np.testing.assert_array_equal(train.factors["angle"], LABELS)
  assert len(train.images) == NUM_EXAMPLES
  assert len(validation.images) == len(validation.labels) == 0


@pytest.mark.parametrize("count", [NUM_EXAMPLES, 1000])
def test_validation_leaves_something(count):
  dataset = data.Dataset(IMAGES, LABELS, NUM_EXAMPLES, {})
  with pytest.raises(ValueError, match="--num_validation"):
    splits.split_validation(dataset, count, BATCH_SIZE)


def test_validation_leaves_a_batch_to_train_on():
  dataset = data.Dataset(IMAGES, LABELS, NUM_EXAMPLES, {})
  with pytest.raises(ValueError, match="--batch_size"):
    splits.split_validation(dataset, 20, BATCH_SIZE)


@pytest.mark.parametrize(
  ("total", "num_validation", "want"), [(5, None, 1), (60, None, 10), (5, 0, 0)]
)
def test_a_sixth_is_kept_for_validation_and_at_least_one(
  total, num_validation, want
):
  dataset = data.Dataset(
    np.zeros((total, 1, 1, 1), np.uint8), np.zeros(total, np.int32), 2, {}
  )
  train, validation = splits.split_validation(dataset, num_validation, 2)
  assert (len(train.labels), len(validation.labels)) == (total - want, want)
