"""Images that stay in their files."""

import numpy as np
import pytest

from capjax import data, memory
from capjax.data import stored

_random = np.random.default_rng(0)
IMAGES = _random.integers(0, 256, (9, 3, 2, 1), np.uint8)
ROWS = np.array([4, 1, 8, 0])


class Reader:
  """A reader of `IMAGES` that notes what it reads."""

  def __init__(self):
    self.asked = []

  def __call__(self, rows):
    self.asked.append(rows.tolist())
    return IMAGES[rows]


def test_what_is_indexed_is_read():
  images = data.StoredImages(Reader(), ROWS)
  want = IMAGES[ROWS]
  assert images.shape == want.shape and images.nbytes == want.nbytes
  assert len(images) == len(want) and images.dtype == want.dtype
  for part in (slice(1, 3), [2, 0], want[:, 0, 0, 0] > 90, 3, slice(0, 0)):
    np.testing.assert_array_equal(images[part], want[part])
  np.testing.assert_array_equal(images, want)  # as NumPy takes it
  np.testing.assert_array_equal(np.stack(list(images)), want)
  np.testing.assert_array_equal(images.whole(), want)


def test_choosing_reads_nothing():
  reader = Reader()
  images = data.StoredImages(reader, ROWS, IMAGES.shape[1:])
  some = images.select(slice(1, None)).select(np.array([False, True, True]))
  assert reader.asked == []
  np.testing.assert_array_equal(some[:], IMAGES[[8, 0]])


def test_an_image_that_is_needed_twice_is_read_once():
  reader = Reader()
  images = data.StoredImages(reader, ROWS, IMAGES.shape[1:])
  got = images.read(np.array([2, 0, 2, 3, 0]))
  np.testing.assert_array_equal(got, IMAGES[[8, 4, 8, 0, 4]])
  assert reader.asked == [[0, 4, 8]]  # in the order of the file


def test_images_that_were_selected_twice_are_there_twice():
  reader = Reader()
  images = data.StoredImages(reader, ROWS, IMAGES.shape[1:])
  twice = images.select(np.array([0, 0, 0, 1])).whole()
  np.testing.assert_array_equal(twice, IMAGES[[4, 4, 4, 1]])
  assert reader.asked == [[1, 4]]  # each once


def test_more_than_memory_holds_is_refused(monkeypatch):
  monkeypatch.setattr(memory, "available_on_host", lambda: 20)
  images = data.StoredImages(Reader(), ROWS, IMAGES.shape[1:])
  assert images[:3].shape == (3, 3, 2, 1)
  with pytest.raises(
    ValueError, match=r"\[4 3 2 1\] take 24 B .* host has 20 B"
  ):
    images[:]
  with pytest.raises(ValueError, match="--images=1000"):
    np.asarray(images)


def test_the_fingerprint_is_that_of_the_array(monkeypatch):
  monkeypatch.setattr(stored, "_BLOCK", 13)  # two images
  reader = Reader()
  labels = np.arange(4, dtype=np.int32)
  whole = data.Dataset(IMAGES[ROWS], labels, 4, {})
  in_files = whole._replace(images=data.StoredImages(reader, ROWS))
  assert data.fingerprint(in_files) == data.fingerprint(whole)
  assert reader.asked == [[4], [1, 4], [0, 8]]
  other = whole._replace(images=data.StoredImages(reader, ROWS[::-1]))
  assert data.fingerprint(other) != data.fingerprint(whole)


def test_examples_are_selected_in_memory_and_in_files():
  labels = np.arange(4, dtype=np.int32)
  whole = data.Dataset(IMAGES[ROWS], labels, 4, {"angle": labels + 5})
  in_files = whole._replace(images=data.StoredImages(Reader(), ROWS))
  for dataset in (whole, in_files):
    some = data.select(dataset, slice(1, 3))
    assert type(some.images) is type(dataset.images)
    np.testing.assert_array_equal(np.asarray(some.images), IMAGES[[1, 8]])
    assert some.labels.tolist() == [1, 2]
    assert some.factors["angle"].tolist() == [6, 7]


def test_a_set_that_fits_is_loaded():
  assert isinstance(data.load("digits", "test", stream=None).images, np.ndarray)
  assert data.load("digits", "test", stream=None).notes == ()


@pytest.mark.parametrize("stream", [None, True])
def test_a_set_in_files_says_so(monkeypatch, stream):
  # 360 images of 64 bytes: on CPUs once on the host, once on the device.
  monkeypatch.setattr(memory, "available_on_host", lambda: 2 * 23_000)
  got = data.load("digits", "test", stream=stream)
  assert isinstance(got.images, data.StoredImages)
  (note,) = got.notes
  assert note.startswith("test images are read while they are used")
  assert ("23 kB, and cpu has 46 kB available" in note) == (stream is None)
  want = data.load("digits", "test", stream=False).images
  np.testing.assert_array_equal(np.stack(list(got.images)), want)
