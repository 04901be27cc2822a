"""Evaluation of models: attacks, views, diagnostics, log-likelihoods."""

from capjax.evaluation import (
  alignment,
  attacks,
  calibration,
  clustering,
  detection,
  diagnostics,
  embedding,
  equivariance,
  factor_analysers,
  inspection,
  likelihood,
  operations,
  segmentation,
  views,
)

__all__ = [
  "alignment",
  "attacks",
  "calibration",
  "clustering",
  "detection",
  "diagnostics",
  "embedding",
  "equivariance",
  "factor_analysers",
  "inspection",
  "likelihood",
  "operations",
  "segmentation",
  "views",
]
