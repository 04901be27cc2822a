"""What is done to a stereo pair: loops as oracles, draws, broken copies."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from capjax.data.transforms import stereo


def _image(seed=0, shape=(7, 6, 2), scale=50.0):
  rng = np.random.default_rng(seed)
  return jnp.asarray(scale * rng.normal(size=shape) + 100, jnp.float32)


def _numbered(height, width, channels=2, dtype=jnp.uint8):
  size = height * width * channels
  return jnp.arange(size).astype(dtype).reshape(height, width, channels)


def _draw(function, image, count, **options):
  many = jax.vmap(lambda key: function(key, image, **options))
  return np.asarray(jax.jit(many)(cases.keys(count)))


def _square(image, row, column, size):
  return np.asarray(image)[row : row + size, column : column + size]


def check_every_crop_is_equally_likely(random_crop):
  image = _numbered(6, 5)
  counts = {
    _square(image, row, column, 3).tobytes(): 0
    for row in range(4)
    for column in range(3)
  }
  for got in _draw(random_crop, image, 1200, size=3):
    assert got.tobytes() in counts, "no square of the image"
    counts[got.tobytes()] += 1
  cases.assert_equally_often(counts.values())


def check_one_number_is_added(random_brightness):
  image = _image()
  drawn = _draw(random_brightness, image, 400, max_change=2.0)
  changes = (drawn - np.asarray(image)).reshape(400, -1)
  np.testing.assert_allclose(np.ptp(changes, axis=1), 0, atol=1e-4)
  change = changes[:, 0]
  assert abs(change).max() <= 2.0001 and change.max() > 1.8
  assert change.min() < -1.8 and abs(change.mean()) < 0.25


def check_contrast_is_about_the_mean_of_a_channel(random_contrast):
  image = _image() * jnp.array([1.0, 0.3])
  drawn = _draw(random_contrast, image, 400, contrast_range=(0.2, 1.8))
  means = np.asarray(image).mean((0, 1))
  np.testing.assert_allclose(
    drawn.mean((1, 2)), np.tile(means, (400, 1)), rtol=1e-4
  )
  factors = (drawn - means) / (np.asarray(image) - means)
  factor = np.median(factors.reshape(400, -1), axis=1)
  np.testing.assert_allclose(
    drawn, means + factor[:, None, None, None] * (image - means), atol=2e-2
  )
  assert 0.19 < factor.min() < 0.3 and 1.7 < factor.max() < 1.81


# A crop that never reaches the last row; a change for each pixel; contrast
# about the mean of the whole image.
def _short_crop(key, image, *, size):
  return stereo.random_crop(key, image[:-1], size=size)


def _noise(key, image, *, max_change):
  return image + max_change * jax.random.uniform(
    key, image.shape, minval=-1, maxval=1
  )


def _contrast_about_one_mean(key, image, *, contrast_range):
  factor = jax.random.uniform(
    key, (), minval=contrast_range[0], maxval=contrast_range[1]
  )
  return image.mean() + factor * (image - image.mean())


_CHECKS = (
  (check_every_crop_is_equally_likely, stereo.random_crop, _short_crop),
  (check_one_number_is_added, stereo.random_brightness, _noise),
  (
    check_contrast_is_about_the_mean_of_a_channel,
    stereo.random_contrast,
    _contrast_about_one_mean,
  ),
)


def check_official_order(augment):
  """Each draw is one factor of contrast, and one crop, standardised last.

  The eyes differ in their means, by more where rows are bright that some crops
  leave out: so the result tells in which order it was made.
  """
  image = np.array(_image(shape=(34, 33, 2)) * jnp.array([1.0, 0.4]))
  image[:2, :, 0] += 400
  drawn = _draw(augment, jnp.asarray(image), 300)
  means = np.float64(image).mean((0, 1))
  factors = np.linspace(0.2, 1.8, 1601)
  found = {}
  for got in drawn:
    np.testing.assert_allclose(got.mean(), 0, atol=1e-5)
    np.testing.assert_allclose(got.std(), 1, atol=1e-5)
    fits = []
    for row in range(3):
      for column in range(2):
        crop = _square(np.float64(image), row, column, 32) - means
        # mean + f crop, standardised: its eyes' means differ by
        # (means + f crop means) / deviation.
        gap = (
          means[0]
          - means[1]
          + factors * (crop[..., 0].mean() - crop[..., 1].mean())
        )
        inside = (crop - crop.mean((0, 1))).var(axis=(0, 1)).mean()
        deviation = np.sqrt(factors**2 * inside + gap**2 / 4)
        seen = got[..., 0].mean() - got[..., 1].mean()
        best = np.argmin(abs(gap / deviation - seen))
        f = factors[best]
        want = means + f * crop
        want = (want - want.mean()) / want.std()
        fits.append((abs(want - got).max(), f, (row, column)))
    error, factor, place = min(fits)
    assert error < 0.02, error
    found.setdefault(place, []).append(factor)
  assert len(found) == 6
  # Contrast about the mean of a crop would count as others in some places.
  for each in found.values():
    assert min(each) < 0.4 and max(each) > 1.65


def _augment_crop_first(key, image):
  crop_key, contrast_key = jax.random.split(key)
  crop = stereo.random_crop(crop_key, image)
  return stereo.standardise(
    stereo.random_contrast(contrast_key, crop, contrast_range=(0.2, 1.8))
  )


class StereoTest(parameterized.TestCase):
  @parameterized.parameters((12, 4), (12, 3), (6, 6))
  def test_downsample_is_the_mean_of_blocks(self, height, size):
    image = _image(shape=(height, 12, 2))
    rows, columns = height // size, 12 // size
    expected = np.zeros((size, size, 2))
    for row in range(height):
      for column in range(12):
        for eye in range(2):
          expected[row // rows, column // columns, eye] += image[
            row, column, eye
          ] / (rows * columns)
    got = stereo.downsample(image, size=size)
    np.testing.assert_allclose(got, expected, rtol=1e-5)

  def test_downsample_of_bytes_is_not_rounded(self):
    image = jnp.array([[0, 255], [255, 255]], jnp.uint8)[..., None]
    got = stereo.downsample(image, size=1)
    self.assertEqual(got.dtype, jnp.float32)
    self.assertEqual(got.item(), 191.25)
    self.assertEqual(stereo.downsample(_numbered(96, 96)).shape, (48, 48, 2))

  def test_standardise(self):
    image = _image()
    flat = [float(x) for x in np.ravel(image)]
    mean = sum(flat) / len(flat)
    deviation = (sum((x - mean) ** 2 for x in flat) / len(flat)) ** 0.5
    expected = (np.float64(image) - mean) / deviation
    np.testing.assert_allclose(stereo.standardise(image), expected, atol=1e-5)

  def test_standardise_keeps_the_difference_of_the_eyes(self):
    left, right = np.split(stereo.standardise(_image()), 2, axis=-1)
    self.assertGreater(abs(left.mean() - right.mean()), 1e-3)

  def test_standardise_of_one_colour(self):
    for value in (0.0, 100.0):
      image = jnp.full((4, 4, 2), value)
      np.testing.assert_array_equal(stereo.standardise(image), 0)
      gradient = jax.grad(lambda x: stereo.standardise(x)[0, 0, 0])(image)
      self.assertTrue(np.isfinite(gradient).all())

  @parameterized.parameters((7, 6, 3), (6, 7, 6), (5, 5, 5), (48, 48, 32))
  def test_centre_crop(self, height, width, size):
    image = _numbered(height, width, dtype=jnp.int32)
    expected = _square(image, (height - size) // 2, (width - size) // 2, size)
    np.testing.assert_array_equal(
      stereo.centre_crop(image, size=size), expected
    )

  @parameterized.parameters((1, -2), (-1, 0), (9, 9), (-9, 3))
  def test_crop_is_moved_back_into_the_image(self, row, column):
    image = _numbered(8, 9)
    got = stereo.crop(image, jnp.array([row, column]), size=4)
    top, left = min(max(2 + row, 0), 4), min(max(2 + column, 0), 5)
    np.testing.assert_array_equal(got, _square(image, top, left, 4))

  def test_thirteen_crops(self):
    offsets = stereo.crop_offsets()
    self.assertLen({tuple(offset) for offset in offsets}, 13)
    np.testing.assert_array_equal(offsets[0], [0, 0])
    np.testing.assert_array_equal(
      np.sort(abs(offsets), 0)[::4], [[n, n] for n in range(4)]
    )
    np.testing.assert_array_equal(offsets.sum(0), 0)
    np.testing.assert_array_equal(abs(offsets[:, 0]), abs(offsets[:, 1]))
    image = _numbered(48, 48, dtype=jnp.int32)
    got = stereo.multi_crop(image)
    self.assertEqual(got.shape, (13, 32, 32, 2))
    for crop, (row, column) in zip(got, offsets, strict=True):
      np.testing.assert_array_equal(
        crop, _square(image, 8 + row, 8 + column, 32)
      )

  @parameterized.parameters(*_CHECKS)
  def test_draws(self, check, function, _):
    check(function)

  @parameterized.parameters(*_CHECKS)
  def test_broken_draws_are_found(self, check, _, broken):
    with self.assertRaises(AssertionError):
      check(broken)

  def test_official_training_pair(self):
    """Brightness, contrast, a crop, and only then standardising, in float64."""
    check_official_order(stereo.augment)

  def test_other_orders_are_found(self):
    """Crop before contrast; standardise before contrast, as IBM's code."""
    for broken in (
      _augment_crop_first,
      lambda key, image: stereo.augment(key, image, pipeline="ibm"),
    ):
      with self.assertRaises(AssertionError):
        check_official_order(broken)

  def test_ibm_training_pair(self):
    """Standardise, crop, then change: other means and deviations remain."""
    image = np.array(_image(shape=(34, 33, 2)) * jnp.array([1.0, 0.4]))
    image[:2, :, 0] += 400  # so that crops have other means than the whole
    drawn = _draw(stereo.augment, jnp.asarray(image), 300, pipeline="ibm")
    whole = np.asarray(stereo.standardise(jnp.asarray(image)))
    crops = [_square(whole, r, c, 32) for r in range(3) for c in range(2)]
    slopes, changes = [], []
    for got in drawn:
      fits = []
      for crop in crops:
        means = crop.mean((0, 1))
        slope = np.sum((got - got.mean((0, 1))) * (crop - means))
        slope /= np.sum((crop - means) ** 2)
        change = (got - means).mean()
        error = abs(means + change + slope * (crop - means) - got).max()
        fits.append((error, slope, change))
      error, slope, change = min(fits)
      self.assertLess(error, 1e-4)
      slopes.append(slope)
      changes.append(change)
    self.assertBetween(min(slopes), 0.499, 0.53)
    self.assertBetween(max(slopes), 1.47, 1.501)
    self.assertBetween(max(np.abs(changes)), 1.9, 2.001)
    # Brightness and contrast have random keys of their own.
    self.assertLess(abs(np.corrcoef(slopes, changes)[0, 1]), 0.2)

  def test_no_brightness_is_left_where_standardising_follows(self):
    image = _image()
    key = jax.random.key(0)
    changed = stereo.random_brightness(key, image, max_change=63.0)
    np.testing.assert_allclose(
      stereo.standardise(changed), stereo.standardise(image), atol=1e-4
    )

  def test_no_dtype_is_changed(self):
    key, image = jax.random.key(0), _image().astype(jnp.bfloat16)
    for changed in (
      stereo.random_brightness(key, image, max_change=63.0),
      stereo.random_contrast(key, image, contrast_range=(0.2, 1.8)),
    ):
      self.assertEqual(changed.dtype, jnp.bfloat16)
    self.assertEqual(stereo.standardise(image).dtype, jnp.bfloat16)

  @parameterized.parameters(
    (lambda x: stereo.downsample(x, size=4), "size=4 of an image of 7x6"),
    (lambda x: stereo.downsample(x, size=0), "size=0"),
    (lambda x: stereo.centre_crop(x, size=7), "size=7.*1 to 6"),
    (lambda x: stereo.multi_crop(x, size=0), "size=0"),
    (lambda x: stereo.random_crop(jax.random.key(0), x), "size=32"),
    (lambda x: stereo.augment(jax.random.key(0), x), "size=32"),
    (
      lambda x: stereo.augment(jax.random.key(0), x, pipeline="paper"),
      "'paper'; pass 'official' or 'ibm'",
    ),
    (
      lambda x: stereo.random_brightness(jax.random.key(0), x, max_change=-1.0),
      "max_change=-1.0",
    ),
    (
      lambda x: stereo.random_contrast(
        jax.random.key(0), x, contrast_range=(1.8, 0.2)
      ),
      "contrast_range",
    ),
  )
  def test_wrong_arguments_are_refused(self, function, message):
    with self.assertRaisesRegex(ValueError, message):
      function(_image())


if __name__ == "__main__":
  absltest.main()
