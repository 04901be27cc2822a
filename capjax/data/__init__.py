"""Image data sets as NumPy arrays in memory."""

from capjax.data.dataset import Dataset, fingerprint
from capjax.data.loading import NAMES, load

__all__ = ["NAMES", "Dataset", "fingerprint", "load"]
