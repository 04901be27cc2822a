"""A suite for classifiers: which classes are confused with which."""

import numpy as np
from etils import epy

from ..figures import confusion as confusion_figures
from ..run import directory
from . import ensembles, models
from .models import Options, Scores, Trained
from .suite import suite

with epy.lazy_imports():  # these take seconds, and --help needs none
  from sklearn import metrics

_MOST_TOLD = 5  # classes, and pairs of them, that are printed


@suite("images")
def confusion(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Measures which classes are recognised, and plots which are confused.

  Models that are tested on novel viewpoints are measured on images from these
  alone. With --canvas, images are in the middle of the canvas, as for
  `ensemble`. Prints the classes with the lowest accuracy, and the pairs that
  are confused most often.

  Returns:
    The accuracy; the mean and the lowest accuracy of the classes that have test
    images; and for each class, in the order of the labels, the share of its
    images that are recognised (recall), the share of its predictions that are
    right (precision), and the number of its images. Recall without images and
    precision without predictions are 0.
  """
  trained = models.unseen(trained)
  images, labels = models.first(trained, options.images)
  classes = np.arange(trained.test.num_classes)
  predictions = np.argmax(ensembles.class_scores(trained, images), axis=1)
  counts = metrics.confusion_matrix(labels, predictions, labels=classes)
  precision, recall, _, support = metrics.precision_recall_fscore_support(
    labels, predictions, labels=classes, zero_division=0.0
  )
  names = [str(name) for name in trained.test.named(classes)]
  print(hardest(recall, support, names))
  for line in told(counts, names):
    print(line)
  confusion_figures.confusion(counts, names, run.figure("confusion"))
  return {
    "accuracy": float(np.mean(predictions == labels)),
    "mean_class_accuracy": float(np.mean(recall[support > 0])),
    "least_class_accuracy": float(np.min(recall[support > 0])),
    "class_accuracy": recall.tolist(),
    "class_precision": precision.tolist(),
    "class_images": support.tolist(),
    "num_images": len(labels),
  }


def hardest(recall: np.ndarray, support: np.ndarray, names: list[str]) -> str:
  """Says which classes are recognised least, in one line.

  Args:
    recall: [J] share of the images of each class that is recognised.
    support: [J] images of each class; classes without any are left out.
    names: of the classes.
  """
  order = np.argsort(recall, kind="stable")
  least = [j for j in order if support[j]][:_MOST_TOLD]
  classes = ", ".join(f"{names[j]} {100 * recall[j]:.1f}" for j in least)
  return f"classes by accuracy (%), lowest first: {classes}"


def told(counts: np.ndarray, names: list[str]) -> list[str]:
  """Says which pairs of classes are confused most often, in a line each.

  Args:
    counts: [J J] images by their class and by the predicted one.
    names: of the classes.
  """
  wrong = counts - np.diag(np.diag(counts))
  order = np.argsort(-wrong, axis=None, kind="stable")[:_MOST_TOLD]
  pairs = zip(*np.unravel_index(order, wrong.shape), strict=True)
  return [
    f"{wrong[i, j]} of {np.sum(counts[i])} images of {names[i]} are taken for "
    f"{names[j]}"
    for i, j in pairs
    if wrong[i, j]
  ]


SUITES = (confusion,)
