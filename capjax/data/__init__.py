"""Image data sets as NumPy arrays in memory."""

from capjax.data.dataset import Dataset, as_intensities, fingerprint
from capjax.data.loading import NAMES, load, split_path

__all__ = [
  "NAMES",
  "Dataset",
  "as_intensities",
  "fingerprint",
  "load",
  "split_path",
]
