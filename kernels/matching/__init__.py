"""Matching: which object each part belongs to, and in what pose."""

from . import (
  constellations,
  ransac,
  selection,
  similarities,
  sparsity,
  vote_mixture,
)

__all__ = [
  "constellations",
  "ransac",
  "selection",
  "similarities",
  "sparsity",
  "vote_mixture",
]
