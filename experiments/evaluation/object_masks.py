"""A suite for all models of objects: which object each pixel belongs to."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from capjax.data.transforms import overlap
from capjax.evaluation import segmentation

from ..figures import object_masks as mask_figures
from ..run import directory
from ..training import pairs, train_step
from ..training import task as tasks
from . import models, multimnist
from .models import Options, Scores, Trained
from .suite import Main, suite

_NUM_IMAGES = 1000
_NUM_SHOWN = 10
# `multimnist_accuracy` is that of the suite `multimnist`, a share of images.
_NAMES = {"accuracy": "pixel_accuracy"}


@suite(
  "images",
  require=models.enough(_NUM_IMAGES, two_classes=True),
  main=Main(
    "affnist_like_rand_index", "ARI of two affNIST-like digits, {canvas}"
  ),
  counts={
    "multimnist_reconstruction": "num_images",
    "affnist_like_reconstruction": "num_images",
    "multimnist": "multimnist_num_images",
    "affnist_like": "affnist_like_num_images",
  },
  labelled=True,  # the two digits of an image have different classes
)
def object_masks(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Measures how well pixels are assigned to two digits; plots a few images.

  Each image combines two test images of different classes. In the first kind
  they are overlaid as in MultiMNIST: shifted as far as in training on such
  images, otherwise by up to 4 pixels if the canvas has room. In the second kind
  each is moved as in affNIST. A pixel belongs to the digit that has ink there.
  The background and pixels where both digits have ink are left out, as are
  images where a digit has no pixel of its own. A pixel is assigned to the
  object with the largest share in it.

  Returns:
    For both kinds of images the scores of `segmentation.score`, among them the
    adjusted Rand index, on average 0 for random objects, and 0 for one object;
    the mean absolute error of reconstructions, and the number of images.
  """
  canvas = models.canvas(trained)[:2]
  overlaid, pad, _ = multimnist.overlaid(trained, whole=True)
  scenes = {
    "multimnist": overlaid,
    "affnist_like": functools.partial(pairs.sample_moved, canvas=canvas),
  }
  if pad < 0:  # the canvas is smaller than an image
    del scenes["multimnist"]
  count = options.images or _NUM_IMAGES
  scores = {}
  for name, sample in scenes.items():
    found = _measure(trained, sample, count)
    truth = found["owners"]
    both = np.all([(truth == n).any(axis=1) for n in range(2)], axis=0)
    there = (truth >= 0) & both[:, None]
    scored = segmentation.score(found["objects"], truth, np.float32(there))
    scores |= {
      f"{name}_{_NAMES.get(key, key)}": x for key, x in scored._asdict().items()
    }
    scores[f"{name}_reconstruction_error"] = float(np.mean(found["error"]))
    _picture(run, trained, sample, name, count)
  return {**scores, "num_images": min(count, len(trained.test.labels))}


SUITES = (object_masks,)


def _measure(
  trained: Trained, sample: train_step.Sample, count: int
) -> dict[str, np.ndarray]:
  """Owners and objects of pixels [N H*W], and errors [N]."""

  def measure(model, images, objects):
    means, masks = trained.task.explain(model, images)
    owners = jax.vmap(overlap.owners)(objects.parts)
    # A stacked capsule autoencoder may explain the edges of images.
    targets = getattr(model, "targets", lambda x: x)(images)
    return {
      "objects": jnp.argmax(masks, axis=1).reshape(len(images), -1),
      "owners": owners.reshape(len(images), -1),
      "error": jnp.mean(jnp.abs(means - targets), axis=(1, 2, 3)),
    }

  evaluate = tasks.make_evaluate(measure, sample, trained.config.batch_size)
  images, labels = models.first(trained, count, two_classes=True)
  return evaluate(trained.model, images, labels)


def _picture(
  run: directory.Run,
  trained: Trained,
  sample: train_step.Sample,
  name: str,
  count: int,
) -> None:
  shown = np.arange(_NUM_SHOWN)
  images, objects = models.make_examples(trained, sample, shown, count=count)
  explained = jax.jit(trained.task.explain)(trained.model, images)
  owners = jax.vmap(overlap.owners)(objects.parts)
  mask_figures.object_masks(
    images,
    *explained,
    owners=owners,
    path=run.figure(f"object_masks_{name}"),
  )
