"""A suite for classifiers: whether their scores are calibrated."""

import numpy as np

from capjax.evaluation import calibration as calibrating

from ..figures import curves
from ..run import directory
from . import classifiers, ensembles, models
from .models import Options, Scores, Trained
from .suite import suite


@suite("images", compares=True)
def calibration(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Measures whether the score of the predicted class matches the accuracy.

  Models that are tested on novel viewpoints are measured on images from these
  alone. With --canvas, images are in the middle of the canvas, as for
  `ensemble`.

  The scores are the activations of class capsules, or the softmax of logits.

  Returns:
    The expected and the largest calibration error (`calibration.Reliability`),
    the Brier score, the mean score of the predicted class, the accuracy, and
    for each bin of these scores the mean score, the accuracy and the share of
    images.
  """
  trained = models.unseen(trained)
  images, labels = models.first(trained, options.images)
  found = np.clip(ensembles.class_scores(trained, images), 0, 1)
  held = calibrating.reliability(found, labels)
  scores = {
    "expected_calibration_error": held.expected_error,
    "largest_calibration_error": held.largest_error,
    "brier_score": calibrating.brier_score(found, labels),
    "mean_confidence": float(np.average(held.confidences, weights=held.counts)),
    "accuracy": float(np.average(held.accuracies, weights=held.counts)),
    "confidence": held.confidences.tolist(),
    "confidence_accuracy": held.accuracies.tolist(),
    "confidence_share": (held.counts / len(labels)).tolist(),
    "num_images": len(labels),
  }
  lines = classifiers.compared(run, options, "calibration", scores)
  axis = "score of the predicted class"
  right, share = (
    classifiers.lines_of(lines, "confidence", f"confidence_{y}")
    for y in ("accuracy", "share")
  )
  right["calibrated"] = {0.0: 0.0, 1.0: 1.0}
  curves.accuracy_curves(
    [
      curves.Panel("", axis, "accuracy (%)", right),
      curves.Panel("", axis, "images (%)", share),
    ],
    run.figure("calibration"),
  )
  return scores


SUITES = (calibration,)
