"""The digits that scikit-learn ships."""

import numpy as np

from capjax.data.dataset import Dataset

_TEST_STRIDE = 5


def load(split: str) -> Dataset:
  """Loads scikit-learn's 8x8 digits; a fifth of each class are test images."""
  # Imported here because scikit-learn takes longer than most loads.
  from sklearn import datasets

  digits = datasets.load_digits()
  test = np.zeros(len(digits.target), bool)
  test[np.argsort(digits.target, kind="stable")[::_TEST_STRIDE]] = True
  rows = test if split == "test" else ~test
  images = np.round(digits.images[rows] * 255 / 16).astype(np.uint8)
  labels = digits.target[rows].astype(np.int32)
  return Dataset(images[..., np.newaxis], labels, 10, {})
