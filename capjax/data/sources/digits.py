"""The digits that scikit-learn ships."""

import importlib.util
import pathlib

import numpy as np

from capjax.data.dataset import Dataset

_TEST_STRIDE = 5


def load(split: str) -> Dataset:
  """Loads scikit-learn's 8x8 digits; a fifth of each class are test images.

  Args:
    split: "train" or "test".

  Raises:
    ModuleNotFoundError: if scikit-learn is not installed.
  """
  # Found, not imported: the import takes longer than everything else here.
  found = importlib.util.find_spec("sklearn")
  if found is None or found.origin is None:
    raise ModuleNotFoundError(
      "the digits come with scikit-learn, which is missing; install it by `pip "
      "install '.[train]'`, in the folder of this repository",
      name="sklearn",
    )
  # As `sklearn.datasets.load_digits` reads it: 64 intensities and the class.
  path = pathlib.Path(found.origin).parent / "datasets/data/digits.csv.gz"
  table = np.loadtxt(path, delimiter=",")
  pixels, classes = table[:, :-1].reshape(-1, 8, 8), table[:, -1]
  test = np.zeros(len(classes), bool)
  test[np.argsort(classes, kind="stable")[::_TEST_STRIDE]] = True
  rows = test if split == "test" else ~test
  images = np.round(pixels[rows] * 255 / 16).astype(np.uint8)
  labels = classes[rows].astype(np.int32)
  return Dataset(images[..., np.newaxis], labels, 10, {})
