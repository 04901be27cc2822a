"""A suite for classifiers: an object between two others that come close."""

import jax
import jax.numpy as jnp
import numpy as np

from capjax.data.transforms import overlap
from capjax.evaluation import views

from ..figures import curves
from ..run import directory
from ..training import task as tasks
from ..training import train_step
from . import classifiers, models
from .models import Options, Scores, Trained
from .suite import suite

_NUM_IMAGES = 1000  # test images, by default
_NUM_DISTANCES = 9  # at most, since distances are whole pixels


@suite(
  "images",
  compares=True,
  require=models.enough(_NUM_IMAGES, two_classes=True),
)
def crowding(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Measures accuracy against the distance of two other objects in the image.

  Observers do not recognise an object between others that are close (Bouma,
  1970). Each test image stays where it is. Two copies of one image of another
  class are moved by a distance to its left and to its right. Each pixel keeps
  the brightest of the three, as for bright objects on black. Distances go from
  0, where all three overlap, to the width of the image, where the others have
  left it.

  Returns:
    Distances in pixels (`distance`), for each the accuracy
    (`distance_accuracy`) and the share of images that are taken for the class
    of the others (`distance_flanker`); the accuracy at the smallest distance
    (`crowded_accuracy`) and at the largest (`alone_accuracy`).

  Raises:
    ValueError: if all these test images are of one class.
  """
  images, labels = models.first(
    trained, options.images or _NUM_IMAGES, two_classes=True
  )
  width = models.canvas(trained)[1]
  distances = np.unique(np.linspace(0, width, _NUM_DISTANCES).round())
  steps = trained.task.steps(trained.test.images.shape[1:])

  def sample(key, index, images, labels, distance):
    other = overlap.choose_partner(
      key, labels[index], overlap.group_by_class(labels)
    )
    own, beside = (
      steps.prepare(train_step.as_intensities(images[n]))
      for n in (index, other)
    )
    for x in (distance, -distance):
      own = jnp.maximum(own, views.translate(beside, x, 0))
    return own, (labels[index], labels[other])

  def measure(model, images, targets):
    classes = jnp.argmax(trained.task.scores(model, images), axis=-1)
    return {
      name: (classes == wanted).astype(jnp.float32)
      for name, wanted in zip(("accuracy", "flanker"), targets, strict=True)
    }

  evaluate = tasks.make_evaluate(measure, sample, trained.config.batch_size)
  found = [
    jax.tree.map(np.mean, evaluate(trained.model, images, labels, distance))
    for distance in np.float32(distances)
  ]
  scores: Scores = {
    "num_images": len(images),
    "distance": distances.tolist(),
    **{f"distance_{n}": [float(x[n]) for x in found] for n in found[0]},
  }
  scores["crowded_accuracy"] = float(found[0]["accuracy"])
  scores["alone_accuracy"] = float(found[-1]["accuracy"])
  lines = classifiers.compared(run, options, "crowding", scores)
  curves.accuracy_curves(
    [
      curves.Panel(
        "",
        "distance of the others (pixels)",
        f"{text} (%)",
        classifiers.lines_of(lines, "distance", f"distance_{name}"),
        classifiers.counts_of(lines),
      )
      for name, text in (
        ("accuracy", "accuracy"),
        ("flanker", "taken for the others"),
      )
    ],
    run.figure("crowding"),
    chance=1 / trained.test.num_classes,
  )
  return scores


SUITES = (crowding,)
