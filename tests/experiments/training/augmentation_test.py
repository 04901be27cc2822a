"""Where images are placed at random."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.training import augmentation
from experiments.training.augmentation import Placement
from kernels import checks


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


def _augmented(image, count=200, **placement):
  """Many training images made of one."""
  place = functools.partial(
    augmentation.augment_image,
    placement=Placement(**{"max_shift": 0, **placement}),
  )
  keys = jax.random.split(jax.random.key(2), count)
  return np.asarray(jax.jit(jax.vmap(place, (0, None)))(keys, image))


def test_images_are_reduced_before_they_are_deformed():
  """In training and in test: else the two would differ in sharpness."""
  placement = augmentation.Placement(
    downsample=6, max_rotation=90.0, max_scale=1.3
  )
  image = jax.random.uniform(jax.random.key(1), (24, 24, 1))
  small = augmentation.test_image(
    jax.random.key(0), image, placement._replace(max_rotation=0.0, max_scale=1)
  )
  want = augmentation.test_image(
    jax.random.key(0), small, placement._replace(downsample=0)
  )
  got = augmentation.test_image(jax.random.key(0), image, placement)
  assert got.shape == (6, 6, 1)
  np.testing.assert_allclose(got, want, atol=1e-6)


def test_crops_are_anywhere_in_training_and_in_the_middle_at_test():
  image = jnp.arange(64, dtype=jnp.float32).reshape(8, 8, 1) / 64
  crops = _augmented(image, crop=6)
  assert crops.shape == (200, 6, 6, 1)
  corners = np.round(64 * crops[:, 0, 0, 0]).astype(int)
  assert set(corners) == {8 * row + column for row, column in np.ndindex(3, 3)}
  got = augmentation.place_image(None, image, Placement(crop=6))
  np.testing.assert_array_equal(got, image[1:7, 1:7])
  got = augmentation.place_image(None, image, Placement(downsample=4, crop=2))
  blocks = image.reshape(4, 2, 4, 2).mean(axis=(1, 3))
  np.testing.assert_allclose(got[..., 0], blocks[1:3, 1:3], rtol=1e-6)


def test_scales_are_between_a_largest_and_its_inverse():
  image = np.zeros((25, 25, 1), np.float32)
  image[8:17, 8:17] = 1  # a side of 9
  images = _augmented(image, max_scale=2.0)[..., 0]
  for sides in (images.sum(axis=1).max(axis=1), images.sum(axis=2).max(axis=1)):
    assert 4 < sides.min() < 6 and 16 < sides.max() < 18.5


def test_half_of_the_images_are_mirrored():
  image = jax.random.uniform(jax.random.key(1), (8, 8, 1))
  images = _augmented(image, flip=True)
  mirrored = np.all(images == np.asarray(image)[:, ::-1], axis=(1, 2, 3))
  assert np.all(mirrored | np.all(images == image, axis=(1, 2, 3)))
  assert np.mean(mirrored) == pytest.approx(0.5, abs=0.15)


def test_light_changes_within_its_limits():
  image = np.asarray(
    0.4 + 0.2 * jax.random.uniform(jax.random.key(1), (8, 8, 1))
  )
  means = _augmented(image, max_brightness=0.3).mean(axis=(1, 2, 3))
  change = means - image.mean()
  assert np.max(np.abs(change)) <= 0.3 and np.ptp(change) > 0.5
  images = _augmented(image, max_contrast=0.5)
  factors = images.std(axis=(1, 2, 3)) / image.std()
  assert 0.499 < factors.min() < 0.55 and 1.45 < factors.max() < 1.501
  np.testing.assert_allclose(images.mean(axis=(1, 2, 3)), image.mean(), 1e-4)
  bright = _augmented(image, max_brightness=1.0)
  assert bright.min() == 0 and bright.max() == 1


def test_standardised_images_have_no_light():
  image = jax.random.uniform(jax.random.key(1), (8, 8, 1))
  some = Placement(standardise=True, max_shift=0)
  images = _augmented(image, max_brightness=0.5, standardise=True)
  want = augmentation.place_image(None, image, some)
  assert np.mean(want) == pytest.approx(0, abs=1e-5)
  assert np.std(want) == pytest.approx(1, abs=1e-4)
  np.testing.assert_allclose(images, np.broadcast_to(want, images.shape), 1e-3)


def test_shapes_follow_reduction_and_crop():
  shape = augmentation.canvas_of((96, 96, 2), Placement(downsample=48, crop=32))
  assert shape == (32, 32, 2)
  for placement, words in (
    (Placement(crop=9), "size=9 of an image of 8x8"),
    (Placement(downsample=3), "size=3 of an image of 8x8"),
  ):
    with pytest.raises(checks.ImageShapeError, match=words):
      augmentation.canvas_of((8, 8, 1), placement)


def test_images_are_cropped_or_placed_on_a_canvas():
  with pytest.raises(ValueError, match="canvas=40 .* and crop=20 .* exclude"):
    augmentation.canvas_of((28, 28, 1), Placement(canvas=40, crop=20))


def test_a_test_image_is_rotated_and_placed_by_keys_of_their_own():
  image = jax.random.uniform(jax.random.key(1), (6, 6, 1))
  placement = Placement(canvas=12, max_rotation=40.0)
  for key in jax.random.split(jax.random.key(0), 3):
    first, second = jax.random.split(key)
    turned = augmentation.deform_image(first, image, placement)
    want = augmentation.place_image(second, turned, placement)
    got = augmentation.test_image(key, image, placement)
    np.testing.assert_allclose(got, want, atol=1e-6)
