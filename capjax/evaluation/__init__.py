"""Evaluation of models: attacks, views, diagnostics, log-likelihoods."""

from capjax.evaluation import (
  attacks,
  calibration,
  diagnostics,
  likelihood,
  views,
)

__all__ = ["attacks", "calibration", "diagnostics", "likelihood", "views"]
