"""Losses as plain functions of the outputs of models."""

from capjax.losses.bounds import Bound, likelihood_bound
from capjax.losses.classification import (
  classifier_loss,
  cross_entropy,
  margin_loss,
  multilabel_loss,
  share_loss,
  spread_loss,
  spread_margin,
)
from capjax.losses.labels import check_labels, exact_set, multi_hot, one_hot
from capjax.losses.reconstruction import (
  RECONSTRUCTION_WEIGHTS,
  capsnet_loss,
  overlap_loss,
  overlap_reconstruction_loss,
  reconstruction_loss,
)

__all__ = [
  "RECONSTRUCTION_WEIGHTS",
  "Bound",
  "capsnet_loss",
  "check_labels",
  "classifier_loss",
  "cross_entropy",
  "exact_set",
  "likelihood_bound",
  "margin_loss",
  "multi_hot",
  "multilabel_loss",
  "one_hot",
  "overlap_loss",
  "overlap_reconstruction_loss",
  "reconstruction_loss",
  "share_loss",
  "spread_loss",
  "spread_margin",
]
