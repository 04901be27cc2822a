"""Image data sets as NumPy arrays in memory."""

from capjax.data.loading import NAMES, Dataset, load

__all__ = ["NAMES", "Dataset", "load"]
