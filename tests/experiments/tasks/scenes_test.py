"""What images of two objects need of the data."""

import numpy as np
import pytest

from capjax import data
from capjax.kernels import checks
from experiments.tasks import multimnist


def _dataset(labels):
  images = np.zeros((len(labels), 8, 8, 1), np.uint8)
  return data.Dataset(images, np.array(labels, np.int32), 3, {})


def test_each_set_needs_two_classes():
  train = _dataset([0, 1, 2])
  for labels in ([], [1, 2]):
    multimnist.begin(None, train, _dataset(labels))
  with pytest.raises(
    ValueError, match="the 2 images kept for validation are o"
  ):
    multimnist.begin(None, train, _dataset([1, 1]))
  with pytest.raises(ValueError, match="the only class is"):
    multimnist.begin(None, _dataset([1, 1]), _dataset([]))


def test_objects_stay_partly_inside_their_frame():
  multimnist.check_shift((8, 9, 1), 4, 11)
  with pytest.raises(
    checks.ImageShapeError, match="8x9 .* frame of 4 .* by 12"
  ):
    multimnist.check_shift((8, 9, 1), 4, 12)
