"""Changes of one dimension of a capsule at a time, and of which images."""

import golden_cases
import jax.numpy as jnp
import numpy as np
import pytest

from capjax import data
from experiments.evaluation import reconstructions


def test_dimensions_of_the_capsule_change_one_at_a_time():
  poses = jnp.arange(6.0).reshape(2, 3)
  offsets = np.array([-0.25, 0.0, 0.25])

  def decode(poses, classes):
    """An image of 1x1 pixels, with the capsule's numbers as channels."""
    return poses[jnp.arange(len(poses)), classes][:, None, None]

  for label in (0, 1):
    found = reconstructions.perturb(decode, poses, label, offsets)
    assert found.shape == (3, 3, 1, 1, 3)
    want = poses[label] + np.einsum("s,de->dse", offsets, np.eye(3))
    np.testing.assert_allclose(found[:, :, 0, 0], want)


def test_the_first_right_image_of_each_of_three_classes_is_perturbed(
  run, monkeypatch
):
  """A pixel is the square of a dimension, of which the largest is 3."""
  drawn = []
  labels = np.array([1, 0, 0, 2, 1, 3, 0])
  classes = np.array([0, 1, 0, 2, 1, 3, 0])
  poses = np.zeros((7, 4, 2), np.float32)
  own = [9, 9], [9, 9], [1, 3], [2, 0], [-2, 1], [9, 9], [9, 9]
  poses[np.arange(7), labels] = own

  def decode(poses, classes):
    return poses[jnp.arange(len(poses)), classes][:, None, None] ** 2

  monkeypatch.setattr(
    reconstructions, "_examples", lambda _: (None, labels, classes, poses)
  )
  monkeypatch.setattr(reconstructions, "_decode", lambda _: decode)
  monkeypatch.setattr(
    reconstructions.grids, "perturbations", lambda *x: drawn.append(x)
  )
  test = data.Dataset(
    np.zeros((7, 1, 1, 1), np.uint8), np.int32(labels), 4, {},
    class_names=("ant", "bee", "cat", "dog"),
  )  # fmt: skip
  trained = golden_cases.classifier(test, None)
  scores = reconstructions.perturbations(run, trained)
  assert scores["largest_change"] == pytest.approx(3.25**2 - 3**2)
  ((grid, offsets, names, path),) = drawn
  np.testing.assert_allclose(offsets, np.linspace(-0.25, 0.25, 11), atol=1e-9)
  assert list(names) == ["ant", "bee", "cat"]
  assert path == run.figure("perturbations")
  # The middle of each row is the image itself.
  want = np.square([[1, 3], [-2, 1], [2, 0]])[:, None]
  np.testing.assert_allclose(
    grid[:, :, 5, 0, 0], np.broadcast_to(want, (3, 2, 2)), atol=1e-6
  )


def test_nothing_changes_where_no_image_is_right(run, monkeypatch):
  labels = np.arange(2)
  monkeypatch.setattr(
    reconstructions, "_examples", lambda _: (None, labels, 1 - labels, None)
  )
  scores = reconstructions.perturbations(run, None)
  assert scores == {"largest_change": 0.0}
