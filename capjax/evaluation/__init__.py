"""Evaluation of models: attacks, views, diagnostics, log-likelihoods."""

from capjax.evaluation import attacks, diagnostics, likelihood, views

__all__ = ["attacks", "diagnostics", "likelihood", "views"]
