"""Crowding of a constructed classifier, whose answers are known."""

import golden_cases
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from capjax import data
from experiments.evaluation import crowding

SIDE = 9


class MiddlePixel(nnx.Module):
  """Class 1 where a pixel is bright, class 0 where it is dim.

  The pixel is in the middle of the image, or `offset` columns to the right.
  """

  offset = 0

  def __call__(self, images):
    excess = images[:, SIDE // 2, SIDE // 2 + self.offset, 0] - 0.75
    return 10 * jnp.stack([-excess, excess], axis=1)


def dots(labels):
  """Images of one pixel in the middle, bright for class 1."""
  labels = np.array(labels, np.int32)
  images = np.zeros((len(labels), SIDE, SIDE, 1), np.uint8)
  images[:, SIDE // 2, SIDE // 2, 0] = np.where(labels, 255, 127)
  return data.Dataset(images, labels, 2, {})


def test_the_brighter_object_hides_the_other_where_they_overlap(run):
  some = golden_cases.classifier(dots([0, 1, 0, 0]), MiddlePixel())
  scores = crowding.crowding(run, some)
  assert scores["distance"][0] == 0 and scores["distance"][-1] == SIDE
  # A quarter of the images are bright, and hide the dim ones.
  assert scores["distance_accuracy"] == [0.25, *[1.0] * 8]
  assert scores["distance_flanker"] == [0.75, *[0.0] * 8]
  assert (scores["crowded_accuracy"], scores["alone_accuracy"]) == (0.25, 1)
  assert scores["num_images"] == 4
  assert (run.workdir / "figures" / "crowding.png").exists()


def test_the_other_object_is_on_both_sides(run):
  shares = []
  for offset in (-2, 2):
    model = MiddlePixel()
    model.offset = offset
    some = golden_cases.classifier(dots([0, 1, 0, 0]), model)
    scores = crowding.crowding(run, some)
    shares.append(scores["distance_flanker"])
    # The pixel shows the other object where it is two columns away.
    assert shares[-1][scores["distance"].index(2)] == 1
  assert shares[0] == shares[1]


def test_images_of_one_class_are_refused(run):
  some = golden_cases.classifier(dots([1, 1]), MiddlePixel())
  with pytest.raises(
    ValueError, match="the first 2 test images are of one class"
  ):
    crowding.crowding(run, some)
