"""The type of data sets: labelled images in memory."""

import hashlib
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, UInt8


class Dataset(NamedTuple):
  """Labelled images; arrays may be read-only.

  Attributes:
    images: uint8 [N H W C], intensities in 0..255.
    labels: int32 [N], in 0..num_classes-1.
    num_classes: The number of classes of the data set.
    factors: Further int32 [N] labels by name: for smallNORB (but not from IDX
      files) and the viewpoint solids `label_instance`, `label_azimuth`,
      `label_elevation` and `label_lighting`; empty elsewhere.
  """

  images: UInt8[np.ndarray, "N H W C"]
  labels: Int32[np.ndarray, " N"]
  num_classes: int
  factors: dict[str, np.ndarray]


def fingerprint(dataset: Dataset) -> str:
  """The SHA-256 of a data set's images and labels, in hexadecimal.

  The hash is over the images and then the labels, for each a line of dtype and
  shape, such as `uint8 (60000, 28, 28, 1)`, and the bytes in C order. Factors
  are not included.
  """
  digest = hashlib.sha256()
  for array in (dataset.images, dataset.labels):
    digest.update(f"{array.dtype} {array.shape}\n".encode())
    digest.update(np.ascontiguousarray(array))
  return digest.hexdigest()
