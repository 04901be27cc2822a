"""Letters rendered from fonts, in the form of MNIST's digits."""

import importlib.util

import numpy as np
import pytest
from PIL import Image
from sklearn import neighbors

from capjax import data
from capjax.data.sources import font_letters


@pytest.fixture(scope="module")
def letters():
  return data.load("font_letters", "test")


def ink_box(image):
  rows, columns = (np.flatnonzero(image.any(axis)) for axis in (1, 0))
  return rows[0], rows[-1] + 1, columns[0], columns[-1] + 1


def test_every_letter_occurs_as_often(letters):
  assert letters.images.shape == (10_400, 28, 28, 1)
  assert letters.images.dtype == np.uint8
  assert letters.labels.dtype == np.int32
  assert np.bincount(letters.labels).tolist() == [400] * 26
  assert "".join(letters.class_names) == "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
  # The order does not depend on the class.
  assert len(set(letters.labels[:50].tolist())) > 15


def test_letters_fill_a_box_around_their_centre_of_mass(letters):
  middles = np.arange(28) + 0.5
  for image in letters.images[:300, ..., 0].astype(float):
    top, bottom, left, right = ink_box(image)
    # The faintest pixels of an edge can be rounded to zero.
    assert 18 <= max(bottom - top, right - left) <= 20
    for axis, (low, high) in enumerate(((top, bottom), (left, right))):
      mass = image.sum(axis=1 - axis)
      off = np.sum(mass * middles) / np.sum(mass) - 14
      at_border = low < 1 or high > 27
      assert abs(off) <= 0.501 or at_border


def test_a_split_is_the_same_again_and_unlike_the_other(monkeypatch):
  few = {"train": 100, "test": 20}
  monkeypatch.setattr(font_letters, "_NUM_EACH", few)
  train, test = (data.load("font_letters", split) for split in few)
  again = data.load("font_letters", "test")
  np.testing.assert_array_equal(again.images, test.images)
  np.testing.assert_array_equal(again.labels, test.labels)
  assert np.bincount(train.labels).tolist() == [100] * 26
  known = {image.tobytes() for image in train.images}
  assert not any(image.tobytes() in known for image in test.images)
  # They are readable: most have the class of the most similar one.
  model = neighbors.KNeighborsClassifier(1)
  model.fit(train.images.reshape(2600, -1), train.labels)
  assert model.score(test.images.reshape(520, -1), test.labels) > 0.85


def test_every_font_has_its_own_letters():
  for letter in "Aag":
    drawn = {
      font_letters._large(font, letter).tobytes() for font in font_letters.FONTS
    }
    assert len(drawn) == len(font_letters.FONTS)
  small, large = (font_letters._large("cmr10", x).tobytes() for x in "qQ")
  assert small != large


@pytest.mark.parametrize("degrees,shear", [(-15, 0.0), (10, 0.0), (0, 0.1)])
def test_a_letter_is_turned_and_sheared_about_its_middle(degrees, shear):
  bar = np.zeros((96, 96), np.uint8)
  bar[18:78, 46:50] = 255
  got = font_letters._deform(Image.fromarray(bar), np.deg2rad(degrees), shear)
  ink = np.asarray(got, float)
  y, x = np.indices(ink.shape) + 0.5 - 48
  np.testing.assert_allclose(
    [np.average(axis, weights=ink) for axis in (y, x)], 0, atol=0.05
  )
  # The top, where y is negative, moves to the right.
  slope = np.sum(ink * x * y) / np.sum(ink * y**2)
  want = -np.tan(np.deg2rad(degrees)) - shear
  assert slope == pytest.approx(want, abs=0.02)


@pytest.mark.parametrize("missing", ["PIL", "matplotlib"])
def test_what_draws_letters_is_named_where_it_is_missing(monkeypatch, missing):
  find_spec = importlib.util.find_spec
  monkeypatch.setattr(
    importlib.util,
    "find_spec",
    lambda name: None if name == missing else find_spec(name),
  )
  with pytest.raises(ModuleNotFoundError, match=rf"{missing}.*\[train\]"):
    data.load("font_letters", "test")
