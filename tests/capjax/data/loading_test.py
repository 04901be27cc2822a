"""Data sets by name; broken files are in `idx_test`, TFDS in `tfds_test`."""

import inspect
import subprocess
import sys

import numpy as np
import pytest
from sklearn import datasets

from capjax import data


@pytest.mark.parametrize(
  "name,split,size,first_labels",
  [
    ("mnist", "train", 60_000, [5, 0, 4, 1, 9]),
    ("mnist", "test", 10_000, [7, 2, 1, 0, 4]),
    ("fashion_mnist", "train", 60_000, [9, 0, 0, 3, 0]),
    ("fashion_mnist", "test", 10_000, [9, 2, 1, 1, 6]),
  ],
)
def test_real_files(data_dir, name, split, size, first_labels):
  if not (data_dir / name).is_dir():
    pytest.skip(f"no {name} in {data_dir}")
  got = data.load(name, split, data_dir)
  assert got.images.shape == (size, 28, 28, 1)
  assert got.images.dtype == np.uint8
  assert got.labels.shape == (size,)
  assert got.labels.dtype == np.int32
  assert got.labels[:5].tolist() == first_labels
  assert got.num_classes == 10
  assert (got.images.min(), got.images.max()) == (0, 255)


def test_a_notebook_shows_sizes_and_classes():
  got = data.load("digits", "test")
  want = (
    "<Dataset: 360 images of 8x8x1, 10 classes: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9>"
  )
  assert repr(got) == want
  many = got._replace(num_classes=11, class_names=tuple("abcdefghijk"))
  assert repr(many).endswith("11 classes: a, b, c, d, e, f, g, h, i, j, ...>")
  none = got._replace(
    num_classes=0, class_names=(), labels=got.labels[:, None][:, :0]
  )
  assert repr(none) == "<Dataset: 360 images of 8x8x1, no classes>"


def test_digits_are_split_by_class():
  train, test = data.load("digits", "train"), data.load("digits", "test")
  raw = datasets.load_digits()
  for got, size in ((train, 1437), (test, 360)):
    assert got.images.shape == (size, 8, 8, 1)
    assert got.images.dtype == np.uint8
    assert got.labels.dtype == np.int32
    assert got.num_classes == 10
    np.testing.assert_allclose(
      np.bincount(got.labels), np.bincount(raw.target) * size / 1797, atol=1
    )
  # No two of the raw images are equal, so that a row identifies its image.
  rows = np.round(raw.images.reshape(1797, 64) * 255 / 16).astype(int)
  number = {tuple(row): i for i, row in enumerate(rows)}
  assert len(number) == 1797
  origins = [
    [number[tuple(row)] for row in got.images.reshape(-1, 64)]
    for got in (train, test)
  ]
  assert sorted(origins[0] + origins[1]) == list(range(1797))
  for got, origin in zip((train, test), origins, strict=True):
    assert origin == sorted(origin)
    np.testing.assert_array_equal(got.labels, raw.target[origin])
  again = data.load("digits", "test")
  np.testing.assert_array_equal(again.images, test.images)
  # Pinned, since results are quoted on this split.
  assert origins[1][:8] == [0, 2, 4, 17, 21, 26, 28, 31]


@pytest.mark.parametrize(
  "name,split,error,words",
  [
    ("imagenet", "train", ValueError, ["'imagenet'", *data.NAMES]),
    ("mnist", "validation", ValueError, ["'validation'", "train", "test"]),
    ("digits", "all", ValueError, ["'all'", "train", "test"]),
    ("mnist", "train", FileNotFoundError, ["data_dir", "absent", "make it"]),
  ],
)
def test_arguments_are_checked(tmp_path, name, split, error, words):
  with pytest.raises(error) as caught:
    data.load(name, split, tmp_path / "absent")
  for word in words:
    assert word in str(caught.value)


def test_optional_packages_are_imported_only_where_used():
  code = (
    "import sys, capjax.data\n"
    "found = {'sklearn', 'tensorflow_datasets'} & set(sys.modules)\n"
    "sys.exit(str(found) if found else 0)"
  )
  subprocess.run([sys.executable, "-c", code], check=True)


def test_one_number_is_height_and_width(tmp_path):
  for size in (6, (6, 6)):
    got = data.load("digits", "test", image_size=size)
    assert got.images.shape == (360, 6, 6, 1)
  path = tmp_path / "a.npz"
  np.savez(path, images=got.images, labels=got.labels)
  assert data.load(path, "train", image_size=3).images.shape[1:] == (3, 3, 1)


@pytest.mark.parametrize(
  "size", ["8", 0, (0, 4), (8.0, 8.0), (1, 2, 3), 10_001]
)
def test_sizes_that_are_none_are_refused(size):
  # Without the checks of annotations, which only tests have.
  load = inspect.unwrap(data.load)
  with pytest.raises(ValueError, match="image_size is .*; give one number"):
    load("digits", "test", image_size=size)
