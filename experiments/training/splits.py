"""The examples of a training set that are kept for validation."""

import numpy as np

from capjax import data


def split_validation(
  dataset: data.Dataset, num_validation: int | None, batch_size: int
) -> tuple[data.Dataset, data.Dataset]:
  """Splits off the first training examples for validation.

  Sabour et al. (2017).

  Args:
    dataset: the training set.
    num_validation: number of validation examples; None for a sixth, 10,000 of
      MNIST's 60,000, and at least one; 0 to train on all.
    batch_size: number of examples in an update.

  Returns:
    The remaining training set, with a note about classes that it lost, and the
    validation set, which may be empty.

  Raises:
    ValueError: if the remaining training set is smaller than a batch.
  """
  total = len(dataset.images)
  count = max(1, total // 6) if num_validation is None else num_validation
  if not 0 <= count < total:
    raise ValueError(
      f"cannot keep {count} of {total} training examples for validation; give "
      f"num_validation (--num_validation) between 0 and {total - 1}"
    )

  require_a_batch(total - count, batch_size)
  rest = data.select(dataset, slice(count, None))
  lost = []
  # Points of constellations are numbered, not labelled by classes.
  if dataset.labels.ndim == 1 and np.max(dataset.labels) < dataset.num_classes:
    lost = np.setdiff1d(dataset.labels, rest.labels)
  if len(lost):
    note = (
      "validation has all training images of class "
      f"{', '.join(dataset.named(lost[:10]))}, {len(lost)} in all; give a "
      "smaller num_validation (--num_validation), or 0"
    )
    rest = rest._replace(notes=(*rest.notes, note))
  return rest, data.select(dataset, slice(None, count))


def require_a_batch(count: int, batch_size: int) -> None:
  """Raises a ValueError where there are too few examples for an update."""
  if count < batch_size:
    raise ValueError(
      f"{count} training examples are left after those for validation and "
      f"test, fewer than a batch of {batch_size}; give more, or a smaller "
      "batch_size (--batch_size)"
    )
