"""Image data sets as NumPy arrays in memory."""

from capjax.data.dataset import Dataset, as_intensities, fingerprint
from capjax.data.loading import NAMES, load, split_path
from capjax.data.own import from_arrays

__all__ = [
  "NAMES",
  "Dataset",
  "as_intensities",
  "fingerprint",
  "from_arrays",
  "load",
  "split_path",
]
