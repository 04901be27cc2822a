"""Resizing, and conversion to grey."""

import sys

import numpy as np
import pytest
from PIL import Image

from capjax import data
from capjax.data import conversion
from capjax.data.conversion import Conversion


def image(seed=0, shape=(9, 7, 3)):
  return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def test_grey_is_that_of_pillow():
  want = np.asarray(Image.fromarray(image(shape=(64, 64, 3))).convert("L"))
  got = conversion.convert(image(shape=(64, 64, 3)), Conversion(None, True))
  np.testing.assert_array_equal(got[..., 0], want)


def test_channels_are_resized_alike():
  size = (12, 4)
  for channels in (1, 2, 3):
    planes = image(shape=(9, 7, channels))
    got = conversion.convert(planes, Conversion(size))
    assert got.shape == (*size, channels)
    assert got.dtype == np.uint8
    for c in range(channels):
      alone = conversion.convert(planes[..., c : c + 1], Conversion(size))
      np.testing.assert_array_equal(got[..., c], alone[..., 0])


def test_a_smaller_image_is_antialiased():
  stripes = np.zeros((64, 64, 1), np.uint8)
  stripes[:, ::2] = 255
  got = conversion.convert(stripes, Conversion((8, 8)))
  np.testing.assert_allclose(got[:, 1:-1], 127.5, atol=4)


def test_nothing_changes_without_reason():
  images = image(shape=(2, 9, 7, 1))
  for same in (Conversion(), Conversion((9, 7)), Conversion(None, True)):
    assert conversion.convert_all(images, same) is images
  both = conversion.convert_all(
    image(shape=(2, 9, 7, 3)), Conversion((4, 5), True)
  )
  assert both.shape == (2, 4, 5, 1)


def test_known_sets_are_converted_too():
  plain = data.load("digits", "test")
  got = data.load("digits", "test", image_size=(12, 10), grayscale=True)
  assert got.images.shape == (360, 12, 10, 1)
  np.testing.assert_array_equal(got.labels, plain.labels)
  assert data.fingerprint(got) != data.fingerprint(plain)
  assert got.class_names == tuple("0123456789")


def test_what_cannot_be_converted_is_refused(monkeypatch):
  with pytest.raises(ValueError, match="2 channels.*--grayscale"):
    conversion.convert(image(shape=(9, 7, 2)), Conversion(None, True))
  with pytest.raises(ValueError, match="constellations are points"):
    data.load("constellations", "test", grayscale=True)
  monkeypatch.setitem(sys.modules, "PIL", None)
  with pytest.raises(ValueError, match=r"need Pillow: run `pip install '\.\["):
    conversion.convert(image(), Conversion((3, 3)))
