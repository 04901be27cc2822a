"""Where images are placed, by flags."""

import jax
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from experiments.flags import augmentation


def corners(place, *words):
  """Of many draws of a white image, the row and column of its first pixel."""
  keys = jax.random.split(jax.random.key(0), 400)
  with flagsaver.flagsaver():
    flags.FLAGS(["binary", "--max_shift=0", *words])
    image = np.ones((6, 6, 1), np.float32)
    images = jax.jit(jax.vmap(place, (0, None)))(keys, image)
  there = np.asarray(images)[..., 0] > 0.5
  return np.argmax(there.any(2), axis=1), np.argmax(there.any(1), axis=1)


@pytest.mark.parametrize(
  "place", [augmentation.augment_image, augmentation.test_image]
)
def test_digits_are_placed_at_random_in_training_and_in_test(place):
  """Kosiorek et al. (2019) test on a canvas as they train on it."""
  for places in corners(place, "--canvas=9"):
    shares = np.bincount(places, minlength=4) / len(places)
    np.testing.assert_allclose(shares, 0.25, atol=0.1)


def test_without_a_canvas_test_images_stay():
  for places in corners(augmentation.test_image):
    assert not places.any()


def test_test_images_are_deformed_but_not_shifted():
  image = jax.random.uniform(jax.random.key(1), (8, 8, 1))
  for word, moves in (("--max_shift=3", False), ("--max_rotation=90", True)):
    with flagsaver.flagsaver():
      flags.FLAGS(["binary", word])
      got = augmentation.test_image(jax.random.key(0), image)
    assert (np.max(np.abs(got - image)) > 0.1) == moves
