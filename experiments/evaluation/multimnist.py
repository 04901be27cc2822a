"""Images of two overlapping objects: sampling, measures and figures."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from capjax import losses
from capjax.data.transforms import augment

from ..figures import multimnist as overlap_figures
from ..run import directory
from ..training import pairs, train_step
from ..training import task as tasks
from . import models
from .models import Options, Scores, Trained
from .suite import suite

_NUM_SHOWN = (8, 8)  # correct and wrong examples in the figure


def overlaid(
  trained: Trained, *, whole: bool = False
) -> tuple[train_step.Sample, int, int]:
  """Makes the sample that overlays two test images on the canvas of a model.

  If the model was trained on overlaid images, they are placed as in training;
  otherwise in the middle of the canvas, shifted by up to 4 pixels.

  Args:
    trained: the model.
    whole: whether shifts are small enough that no image is cut.

  Returns:
    The sample; the width of the frame around each image, in pixels; and the
    largest shift, in pixels.
  """
  canvas = models.canvas(trained)[:2]
  height, width = trained.test.images.shape[1:3]
  options = trained.task.options
  scene = options.get("scene")
  if getattr(scene, "is_overlaid", False):
    options = scene._asdict()
  pad = options.get("pad", min(canvas[0] - height, canvas[1] - width) // 2)
  max_shift = options.get("max_shift", pairs.MAX_SHIFT)
  if whole:
    max_shift = min(max_shift, pad)

  def on_canvas(key, index, images, labels):
    image, objects = pairs.sample(
      key, index, images, labels, pad=pad, max_shift=max_shift
    )
    # The frame does not fill a margin that is odd, or wider along one axis.
    place = functools.partial(augment.centre_pad, canvas=canvas)
    return place(image), objects._replace(parts=jax.vmap(place)(objects.parts))

  return on_canvas, pad, max_shift


def _require(run: directory.Run, trained: Trained, options: Options) -> None:
  """Raises a ValueError if there are too few classes among the images."""
  models.enough(two_classes=True)(run, trained, options)
  pairs.require_three_classes(trained.test.num_classes)


@suite("images", require=_require)
def multimnist(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Measures whether both of two overlapping test images are recognised.

  Sabour et al. (2017, section 6). Each test image, centred on the model's
  canvas, is overlaid with one of another class; both are shifted by up to 4
  pixels, or as far as in training on such images. The paper's frame of 4 pixels
  keeps the shifted digits whole. A model trained without a frame (`pad` is 0 in
  the scores) sees digits that are cut.

  Returns:
    The share of images whose two classes have the two highest scores, and the
    share of all classes that are among the two highest, which is larger.
  """
  sample_on_canvas, pad, max_shift = overlaid(trained)
  evaluate = tasks.make_evaluate(
    pairs.measure, sample_on_canvas, trained.config.batch_size
  )
  images, labels = models.first(trained, options.images, two_classes=True)
  measures = evaluate(trained.model, images, labels)
  decodes = getattr(trained.model, "decoder", None) is not None
  if decodes and models.canvas(trained)[2] == 1:  # two colours show two digits
    _picture(run, trained, sample_on_canvas, measures["accuracy"], len(images))
  exact = float(np.mean(measures["accuracy"]))
  return {
    "multimnist_accuracy": exact,
    "multimnist_error_percent": 100 * (1 - exact),
    "multimnist_digits_found": float(np.mean(measures["found"])),
    "num_images": len(measures["accuracy"]),
    "pad": pad,
    "max_shift": max_shift,
  }


SUITES = (multimnist,)


def absent_classes(
  labels: jax.Array, predictions: jax.Array, num_classes: int
) -> jax.Array:
  """The first class that is neither in the image nor predicted.

  With 3 or 4 classes, all classes that are not in the image may be predicted;
  then the first of these is taken.

  Args:
    labels: the classes [N 2] in the images.
    predictions: the classes [N 2] that the model finds.
    num_classes: J >= 3.

  Returns:
    A class [N] for each image.
  """
  present, predicted = (
    losses.multi_hot(classes, num_classes) for classes in (labels, predictions)
  )
  return jnp.argmin(2 * present + predicted, axis=1)


def _picture(
  run: directory.Run,
  trained: Trained,
  sample: train_step.Sample,
  accuracy: np.ndarray,
  count: int,
) -> None:
  """Plots a few images, reconstructed from the two most active capsules."""
  right, wrong = (
    np.flatnonzero(accuracy == kind)[:count]
    for kind, count in zip((1, 0), _NUM_SHOWN, strict=True)
  )
  shown = np.concatenate([right, wrong])
  images, objects = models.make_examples(trained, sample, shown, count=count)

  @jax.jit
  def reconstruct(model, images, labels):
    output = model(images)
    predictions = jax.lax.top_k(output.activations, 2)[1]
    absent = absent_classes(labels, predictions, output.activations.shape[1])
    classes = jnp.concatenate([predictions, absent[:, None]], axis=1)
    decode = functools.partial(model.decode, output.poses)
    return classes, jax.vmap(decode, 1, 1)(classes)

  classes, reconstructions = reconstruct(trained.model, images, objects.labels)
  overlap_figures.overlaps(
    images,
    reconstructions[:, :2],
    reconstructions[:, 2],
    trained.test.named(objects.labels),
    trained.test.named(classes[:, :2]),
    trained.test.named(classes[:, 2]),
    run.figure("multimnist"),
  )
