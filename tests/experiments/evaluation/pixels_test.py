"""Principal components of pixels as a control."""

import numpy as np

from experiments.evaluation import pixels


def _images(count, seed):
  """Pixels of two large directions and ten of noise, about a mean."""
  random = np.random.default_rng(seed)
  scales = np.array([4.0, 2.0, *[0.01] * 10])
  turned = np.linalg.qr(np.random.default_rng(0).normal(size=(12, 12)))[0]
  return 7 + (random.normal(size=(count, 12)) * scales) @ turned


def test_components_keep_their_relative_scales():
  own, others = pixels.components(_images(500, 1), _images(300, 2), 12)
  np.testing.assert_allclose(np.std(own), 1, rtol=1e-6)
  for found in (own, others):
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=0.2)
    first, second, *rest = found.std(axis=0)
    np.testing.assert_allclose(first / second, 2, rtol=0.15)
    np.testing.assert_allclose(np.divide(rest, second), 0.01 / 2, rtol=0.3)


def test_there_are_no_more_components_than_images_or_pixels():
  some = _images(500, 1)
  for count, fitted, want in ((5, some, 5), (30, some, 12), (30, some[:4], 4)):
    own, others = pixels.components(fitted, some, count)
    assert own.shape == (len(fitted), want) and others.shape == (500, want)


def test_equal_images_have_components_of_zero():
  own, others = pixels.components(np.ones((3, 4)), np.ones((2, 4)), 2)
  np.testing.assert_array_equal(own, 0)
  np.testing.assert_array_equal(others, 0)
