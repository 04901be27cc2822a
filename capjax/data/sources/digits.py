"""The digits that scikit-learn ships."""

import numpy as np

from capjax.data.dataset import Dataset

_TEST_STRIDE = 5


def load(split: str) -> Dataset:
  """Loads scikit-learn's 8x8 digits; a fifth of each class are test images.

  Raises:
    ModuleNotFoundError: if scikit-learn is not installed.
  """
  # Imported here because scikit-learn takes longer than most loads.
  try:
    from sklearn import datasets
  except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
      "the digits come with scikit-learn, which is missing; install it by `pip "
      "install 'capjax[train]'`",
      name=error.name,
    ) from error

  digits = datasets.load_digits()
  test = np.zeros(len(digits.target), bool)
  test[np.argsort(digits.target, kind="stable")[::_TEST_STRIDE]] = True
  rows = test if split == "test" else ~test
  images = np.round(digits.images[rows] * 255 / 16).astype(np.uint8)
  labels = digits.target[rows].astype(np.int32)
  return Dataset(images[..., np.newaxis], labels, 10, {})
