"""The figure of overlaps: what is drawn where, in which colour."""

import matplotlib.image
import numpy as np
import pytest

from experiments.figures import multimnist

RED = np.array([0xC8, 0x10, 0x2E]) / 255
_DIM = 0.3  # brightest of the images below, so that only paper is white


def _arguments(num_examples, height=8, width=8, seed=0):
  """Everything right, in random images; predictions in the other order."""
  rng = np.random.default_rng(seed)
  shape = (num_examples, 4, height, width, 1)
  images = rng.uniform(0.1, _DIM, shape).astype(np.float32)
  labels = np.arange(2 * num_examples).reshape(-1, 2) % 9
  return {
    "images": images[:, 0],
    "reconstructions": images[:, 1:3],
    "absent": images[:, 3],
    "labels": labels,
    "predictions": labels[:, ::-1],
    "absent_labels": np.full(num_examples, 9),
  }


def _draw(arguments, path):
  for array in arguments.values():
    array.flags.writeable = False  # as arrays of JAX are
  assert multimnist.overlaps(**arguments, path=path) == path
  assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
  return matplotlib.image.imread(path)[..., :3]


def _near(pixels, colour):
  return np.all(np.abs(pixels - colour) < 0.02, axis=-1)


def _changed(before, after):
  """Rows and columns that differ, as shares of the sheet."""
  rows, columns = np.nonzero(np.any(before != after, axis=-1))
  height, width = before.shape[:2]
  return rows / height, columns / width


@pytest.fixture
def path(tmp_path):
  return tmp_path / "new" / "overlaps.png"


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 6, 9), (9, 12, 8)])
@pytest.mark.long_after_first
def test_only_mistakes_are_red(shape, path):
  arguments = _arguments(*shape)
  assert not _near(_draw(arguments, path), RED).any()
  predictions = arguments["labels"].copy()
  predictions[0, 1] = 9
  one = _near(_draw({**arguments, "predictions": predictions}, path), RED)
  assert one.sum() > 300
  predictions = np.full_like(predictions, 9)
  all_wrong = _draw({**arguments, "predictions": predictions}, path)
  if len(predictions) > 1:
    assert _near(all_wrong, RED).sum() > (len(predictions) - 0.5) * one.sum()


def test_mistakes_come_last(path):
  arguments = _arguments(4)
  predictions = arguments["predictions"].copy()
  predictions[1, 0] = 9
  pixels = _draw({**arguments, "predictions": predictions}, path)
  columns = np.nonzero(_near(pixels, RED))[1] / pixels.shape[1]
  assert columns.min() > 0.7

  order = [0, 2, 3, 1]
  sorted_arguments = {
    name: array[order]
    for name, array in {**arguments, "predictions": predictions}.items()
  }
  np.testing.assert_array_equal(_draw(sorted_arguments, path), pixels)


def test_colours_add_up_to_white(path):
  """The first object fills the left two thirds, the second the right two."""
  parts = np.zeros((1, 2, 9, 9, 1))
  parts[0, 0, :, :6] = parts[0, 1, :, 3:] = 1
  arguments = _arguments(1) | {
    "images": np.zeros((1, 9, 9, 1)),
    "reconstructions": parts,
    "absent": np.full((1, 9, 9, 1), 0.5),
  }
  pixels = _draw(arguments, path)
  first, second = (_near(pixels, colour) for colour in multimnist._COLOURS)
  tile = _near(pixels, (0.5, 0.5, 0.5)).sum()
  # Two thirds alone, one third in the sum.
  assert first.sum() == pytest.approx(tile, rel=0.05)
  assert second.sum() == pytest.approx(tile, rel=0.05)
  both = np.flatnonzero(first.any(axis=1) & second.any(axis=1))
  assert len(both) == pytest.approx(tile**0.5, rel=0.05)
  for row in both[2:-2]:
    left, right = np.flatnonzero(first[row]), np.flatnonzero(second[row])
    assert left[-1] < right[0]
    between = pixels[row, left[-1] + 3 : right[0] - 2]
    assert len(between) == pytest.approx(tile**0.5 / 3, rel=0.2)
    np.testing.assert_array_equal(between, 1)


@pytest.mark.parametrize(
  "name, index, tiles",
  [
    ("images", (2,), [0]),
    ("reconstructions", (2, 0), [1, 2]),
    ("reconstructions", (2, 1), [1, 3]),
    ("absent", (2,), [4]),
  ],
)
def test_each_image_is_in_its_tile(name, index, tiles, path):
  arguments = _arguments(4)
  before = _draw(arguments, path)
  brighter = arguments[name].copy()
  brighter[index] += 0.2
  after = _draw({**arguments, name: brighter}, path)
  rows, columns = _changed(before, after)
  assert 0.5 < columns.min() < columns.max() < 0.8
  got = np.unique(np.floor((rows - 0.07) / 0.187).astype(int))
  assert got.tolist() == tiles


@pytest.mark.parametrize(
  "name, tiles", [("predictions", [2, 3]), ("absent_labels", [4])]
)
def test_drawn_classes_are_named(name, tiles, path):
  arguments = _arguments(1)
  arguments["predictions"] = arguments["labels"].copy()
  before = _draw(arguments, path)
  other = arguments[name].copy()
  other = other[:, ::-1] if name == "predictions" else other - 1
  rows, _ = _changed(before, _draw({**arguments, name: other}, path))
  got = np.unique(np.floor((rows - 0.07) / 0.187).astype(int))
  assert got.tolist() == tiles


def test_values_outside_the_range_are_clipped(path):
  arguments = _arguments(1)
  arguments["reconstructions"] = np.round(arguments["reconstructions"] / _DIM)
  want = _draw(arguments, path)
  outside = 3 * arguments["reconstructions"] - 1
  got = _draw({**arguments, "reconstructions": outside}, path)
  np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
  "images, fault",
  [
    (np.zeros((1, 8, 8, 3)), "one channel"),
    (np.zeros((0, 8, 8, 1)), "one or more"),
    (np.zeros((1, 8, 8, 1), np.uint8), "divide them by 255"),
  ],
)
def test_wrong_images(images, fault, path):
  arguments = {**_arguments(len(images)), "images": images}
  with pytest.raises(ValueError, match=fault):
    multimnist.overlaps(**arguments, path=path)
