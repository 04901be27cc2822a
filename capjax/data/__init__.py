"""Image data sets as NumPy arrays in memory, or read from files as needed."""

from capjax.data.dataset import Dataset, as_intensities, fingerprint, select
from capjax.data.loading import NAMES, load, split_path
from capjax.data.own import from_arrays
from capjax.data.sources.records import write as write_records
from capjax.data.stored import StoredImages

__all__ = [
  "NAMES",
  "Dataset",
  "StoredImages",
  "as_intensities",
  "fingerprint",
  "from_arrays",
  "load",
  "select",
  "split_path",
  "write_records",
]
