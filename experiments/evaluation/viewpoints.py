"""Suites for stereo pairs: novel viewpoints, and many crops of an image."""

import jax
import jax.numpy as jnp
import numpy as np

from capjax.data.transforms import stereo

from ..figures import curves
from ..run import directory
from ..training import task as tasks
from ..training import train_step
from . import classifiers, models
from .models import Options, Scores, Trained
from .suite import suite

# For each factor: degrees between two steps, and degrees of the first.
_ANGLES = {"azimuth": (20, 0), "elevation": (5, 30)}


@suite(
  compares=True,
  counts={
    "test_familiar": "num_familiar",
    "familiar": "num_familiar",
    "test_novel": "num_novel",
    "novel_error": "num_novel",
  },
)
def viewpoints(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Measures accuracy on test images from familiar and from novel viewpoints.

  Hinton et al. (2018, section 5.1). Accuracy is also plotted against the angle,
  with the curves of the runs compared with.

  Returns:
    Both accuracies, both errors in percent, their difference
    (`novel_gap_percent`, which compares networks of the same familiar
    accuracy), the numbers of images, and the accuracy by azimuth and by
    elevation in degrees.
  """
  right = trained.measures["accuracy"]
  factors = trained.test.factors
  known = trained.task.familiar(factors)
  scores = {
    "num_familiar": int(np.sum(known)),
    "num_novel": int(np.sum(~known)),
    "test_familiar_accuracy": float(np.mean(right[known])),
    "test_novel_accuracy": float(np.mean(right[~known])),
    "familiar_error_percent": 100 * float(1 - np.mean(right[known])),
    "novel_error_percent": 100 * float(1 - np.mean(right[~known])),
    "novel_gap_percent": 100
    * float(np.mean(right[known]) - np.mean(right[~known])),
  }
  for name, (step, first) in _ANGLES.items():
    values = factors[f"label_{name}"]
    kinds = np.unique(values)
    scores[name] = [float(first + step * kind) for kind in kinds]
    scores[f"{name}_accuracy"] = [
      float(np.mean(right[values == kind])) for kind in kinds
    ]
  lines = classifiers.compared(run, options, "viewpoints", scores)
  panels = [
    curves.Panel(
      "",
      f"{name} (degrees)",
      "accuracy (%)",
      classifiers.lines_of(lines, name, f"{name}_accuracy"),
    )
    for name in _ANGLES
  ]
  curves.accuracy_curves(panels, run.figure("viewpoints"))
  return scores


@suite("images")
def multi_crop(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Measures accuracy with scores averaged over 13 crops of each test image.

  Only images that did not choose the checkpoint are used. For a network that
  was trained with `--viewpoints` these are the images from novel viewpoints.

  Returns:
    This accuracy, and the accuracy of the central crop on the same images.
  """
  del run

  steps = trained.task.steps(trained.test.images.shape[1:])

  def sample(key, index, images, labels):
    del key
    image = stereo.downsample(train_step.as_intensities(images[index]))

    def cropped(offset):
      """The image, shifted so that its middle is the crop at this offset."""
      return steps.prepare(jnp.roll(image, -offset, axis=(0, 1)))

    offsets = jnp.asarray(stereo.crop_offsets())
    return jax.vmap(cropped)(offsets), labels[index]

  def measure(model, crops, labels):
    scores = jax.vmap(lambda x: trained.task.scores(model, x), 1)(crops)
    return {
      name: (jnp.argmax(x, axis=-1) == labels).astype(jnp.float32)
      for name, x in (
        ("multi_crop_accuracy", jnp.mean(scores, axis=0)),
        ("centre_crop_accuracy", scores[0]),
      )
    }

  trained = models.unseen(trained)
  evaluate = tasks.make_evaluate(measure, sample, trained.config.batch_size)
  images, labels = models.first(trained, options.images)
  scores = train_step.means(evaluate(trained.model, images, labels))
  return {**scores, "num_images": len(images)}


SUITES = (
  viewpoints,
  multi_crop,
)
