"""Confusion of classes, on predictions that are known."""

import golden_cases
import jax.numpy as jnp
import numpy as np
import pytest

from capjax import baselines, data
from experiments.evaluation import confusion


class Reader(baselines.CapsNetBaseline):
  """Predicts the class that is written in the first pixel."""

  def __init__(self):
    pass

  def __call__(self, images):
    written = jnp.round(255 * images[:, 0, 0, 0])
    return -jnp.abs(written[:, None] - jnp.arange(4))


def _trained(labels, predictions, names=(), factors=None, **fields):
  images = np.zeros((len(labels), 4, 4, 1), np.uint8)
  images[:, 0, 0, 0] = predictions
  test = data.Dataset(
    images, np.int32(labels), 4, factors or {}, class_names=names
  )
  return golden_cases.classifier(test, Reader(), **fields)


def test_shares_are_by_class(run, capsys):
  names = ("ant", "bee", "cat", "dog")
  # Class 3 has no images, and is predicted once.
  trained = _trained([0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 3, 2], names)
  scores = confusion.confusion(run, trained)
  assert scores["accuracy"] == pytest.approx(4 / 6)
  assert scores["class_accuracy"] == pytest.approx([2 / 3, 1 / 2, 1, 0])
  assert scores["class_precision"] == pytest.approx([1, 1 / 2, 1, 0])
  assert scores["class_images"] == [3, 2, 1, 0]
  assert scores["mean_class_accuracy"] == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
  assert scores["least_class_accuracy"] == 1 / 2
  assert scores["num_images"] == 6
  assert capsys.readouterr().out.splitlines() == [
    "classes by accuracy (%), lowest first: bee 50.0, ant 66.7, cat 100.0",
    "1 of 3 images of ant are taken for bee",
    "1 of 2 images of bee are taken for dog",
  ]
  assert run.figure("confusion").exists()


def test_five_classes_with_images_are_told():
  recall = np.array([0.9, 0.0, 0.2, 0.5, 0.1, 0.4, 0.3])
  support = np.array([3, 0, 5, 2, 10, 5, 10])
  told = confusion.hardest(recall, support, list("abcdefg"))
  assert told.endswith(": e 10.0, c 20.0, g 30.0, f 40.0, d 50.0")


def test_novel_viewpoints_alone_count(run):
  trained = _trained(
    [0, 0, 1, 1], [0, 1, 1, 1],
    factors={"label_azimuth": np.array([0, 2, 4, 6])},
    familiar=lambda factors: factors["label_azimuth"] == 2,
  )  # fmt: skip
  scores = confusion.confusion(run, trained)
  assert scores["num_images"] == 3 and scores["accuracy"] == 1
  assert scores["class_images"] == [1, 2, 0, 0]


def test_the_most_frequent_come_first():
  counts = np.diag(np.full(10, 5)) + np.arange(100).reshape(10, 10) % 7
  lines = confusion.told(counts, [str(x) for x in range(10)])
  assert len(lines) == 5
  found = [int(line.split()[0]) for line in lines]
  assert found == sorted(found, reverse=True) and found[0] == 6
  assert confusion.told(np.eye(3, dtype=int), ["a", "b", "c"]) == []
