"""The files of affNIST: whole, cut, of another kind, or absent."""

import pathlib
from unittest import mock

import numpy as np
import pytest
from scipy import io

from capjax.data.transforms import affnist


def _written(path, images, labels, **changes):
  """Writes a file with the fields that the official ones have."""
  count = len(labels)
  fields = dict(
    affine_matrix=np.zeros((9, count)),
    human_readable_transform=np.zeros((6, count)),
    image=images,
    label_one_of_n=np.eye(10)[:, labels],
    label_int=np.asarray(labels, np.uint8)[None],
  )
  fields.update(changes)
  fields = {k: v for k, v in fields.items() if v is not None}
  path.parent.mkdir(parents=True, exist_ok=True)
  io.savemat(path, {"affNISTdata": fields}, do_compression=True)
  return path


@pytest.fixture
def columns():
  """Images as the files hold them, and their labels."""
  rng = np.random.default_rng(0)
  labels = np.array([7, 2, 1, 0, 9])
  return rng.integers(0, 256, (1600, 5), np.uint8), labels


def test_reads_a_file(tmp_path, columns):
  images, labels = columns
  got = affnist.read(str(_written(tmp_path / "test.mat", images, labels)))
  assert got.images.shape == (5, 40, 40, 1) and got.images.dtype == np.uint8
  assert got.labels.dtype == np.int32 and got.labels.tolist() == [7, 2, 1, 0, 9]
  assert (got.num_classes, got.factors) == (10, {})
  for n in range(5):
    for row in range(40):
      for column in range(40):
        pixel = images[40 * row + column, n]
        assert got.images[n, row, column, 0] == pixel


def test_reads_one_image(tmp_path, columns):
  images, labels = columns
  path = _written(tmp_path / "one.mat", images[:, :1], labels[:1])
  assert affnist.read(path).images.shape == (1, 40, 40, 1)


def test_reads_a_folder_in_the_order_of_its_numbers(tmp_path, columns):
  images, labels = columns
  for number in (10, 2, 1):
    batch = _written(
      tmp_path / "test_batches" / f"{number}.mat",
      np.full_like(images, number),
      (labels + number) % 10,
    )
  (batch.parent / "readme.txt").write_text("none")
  got = affnist.read(tmp_path)
  assert got.images[::5, 0, 0, 0].tolist() == [1, 2, 10]
  assert got.labels[::5].tolist() == [8, 9, 7]
  assert len(got.images) == len(got.labels) == 15


def test_only_the_test_set_is_read(tmp_path, columns, monkeypatch):
  images, labels = columns
  for name, count in (
    ("test", 2),
    ("training_and_validation", 3),
    ("test_batches/1", 4),
    ("training_and_validation_batches/1", 5),
  ):
    _written(tmp_path / f"{name}.mat", images[:, :count], labels[:count])
  monkeypatch.setenv("HOME", str(tmp_path))
  assert len(affnist.read("~").images) == 2
  assert len(affnist.read("~/training_and_validation.mat").images) == 3
  (tmp_path / "test.mat").unlink()
  assert len(affnist.read(tmp_path).images) == 4


def test_a_file_that_may_not_be_read_is_not_called_damaged(tmp_path, columns):
  path = _written(tmp_path / "test.mat", *columns)
  refusal = mock.patch.object(pathlib.Path, "open", side_effect=PermissionError)
  with refusal, pytest.raises(PermissionError):
    affnist.read(path)


@pytest.mark.parametrize("path", ["absent", "absent.mat", "."])
def test_nothing_there(tmp_path, path):
  (tmp_path / "training_and_validation.mat").touch()
  message = r"test.mat or test_batches/\*.mat.*\n.*test.mat.zip"
  with pytest.raises(FileNotFoundError, match=message):
    affnist.read(tmp_path / path)


# (fields to change given images and labels, words of the message)
_WRONG = {
  "no images": (lambda x, y: dict(image=None), "no struct affNISTdata"),
  "no labels": (lambda x, y: dict(label_int=None), "no struct affNISTdata"),
  "originals of 28x28": (lambda x, y: dict(image=x[:784]), r"\[784, 5\]"),
  "transposed": (lambda x, y: dict(image=x.T), r"\[5, 1600\]"),
  "floats": (lambda x, y: dict(image=x / 255), "float64"),
  "fewer labels": (lambda x, y: dict(label_int=y[:4]), "4 labels"),
  "label 10": (lambda x, y: dict(label_int=y + 1), "label 4 is 10"),
  "label 0.5": (lambda x, y: dict(label_int=y / 2), "label 0 is 3.5"),
  "empty": (
    lambda x, y: dict(image=x[:, :0], label_int=y[None, :0]),
    "empty",
  ),
}


@pytest.mark.parametrize("fault", _WRONG)
def test_wrong_fields_are_refused(tmp_path, columns, fault):
  change, message = _WRONG[fault]
  path = tmp_path / "test.mat"
  _written(path, *columns, **change(*columns))
  with pytest.raises(ValueError, match=message) as caught:
    affnist.read(path)
  assert str(path) in str(caught.value)


def test_other_matlab_files_are_refused(tmp_path):
  path = tmp_path / "other.mat"
  for content in ({"x": np.zeros(3)}, {"affNISTdata": np.zeros(3)}):
    io.savemat(path, content)
    with pytest.raises(ValueError, match="no struct affNISTdata"):
      affnist.read(path)


@pytest.mark.parametrize("size", [0, 100, 130, 140, 200, 1000, -1])
def test_cut_files_are_refused(tmp_path, columns, size):
  path = _written(tmp_path / "test.mat", *columns)
  path.write_bytes(path.read_bytes()[:size])
  with pytest.raises(ValueError, match="not a whole MATLAB file.*again"):
    affnist.read(path)


@pytest.mark.parametrize("content", [b"<html>404</html>" * 99, b"PK\3\4" * 99])
def test_other_files_are_refused(tmp_path, content):
  """A page that says no, or the file still zipped."""
  path = tmp_path / "test.mat"
  path.write_bytes(content)
  with pytest.raises(ValueError, match="not a whole MATLAB file.*unzip"):
    affnist.read(path)
