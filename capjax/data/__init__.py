"""Image data sets as NumPy arrays in memory."""

from capjax.data.loading import NAMES, Dataset, fingerprint, load

__all__ = ["NAMES", "Dataset", "fingerprint", "load"]
