"""Readers of each data set's own files."""

from capjax.data.sources import (
  constellations,
  digits,
  idx,
  smallnorb,
  tfds,
)

__all__ = [
  "constellations",
  "digits",
  "idx",
  "smallnorb",
  "tfds",
]
