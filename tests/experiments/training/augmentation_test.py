"""Where images are placed at random."""

import functools

import jax
import numpy as np
import pytest

from experiments.training import augmentation
from experiments.training.augmentation import Placement


def corners(place, **placement):
  """Of many placed white images, row and column of the first pixel."""
  keys = jax.random.split(jax.random.key(0), 400)
  image = np.ones((6, 6, 1), np.float32)
  where = Placement(**{"max_shift": 0, **placement})
  place = functools.partial(place, placement=where)
  images = jax.jit(jax.vmap(place, (0, None)))(keys, image)
  there = np.asarray(images)[..., 0] > 0.5
  return np.argmax(there.any(2), axis=1), np.argmax(there.any(1), axis=1)


@pytest.mark.parametrize(
  "place", [augmentation.augment_image, augmentation.test_image]
)
def test_digits_are_placed_at_random_in_training_and_in_test(place):
  """Kosiorek et al. (2019) test on a canvas as they train on it."""
  for places in corners(place, canvas=9):
    shares = np.bincount(places, minlength=4) / len(places)
    np.testing.assert_allclose(shares, 0.25, atol=0.1)


def test_without_a_canvas_test_images_stay():
  for places in corners(augmentation.test_image):
    assert not places.any()


def test_test_images_are_deformed_but_not_shifted():
  image = jax.random.uniform(jax.random.key(1), (8, 8, 1))
  for placement, moves in (
    (Placement(max_shift=3), False),
    (Placement(max_rotation=90.0), True),
  ):
    got = augmentation.test_image(jax.random.key(0), image, placement)
    assert (np.max(np.abs(got - image)) > 0.1) == moves
