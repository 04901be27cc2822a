"""Images in ArrayRecord files."""

import inspect
import json
import re
import sys

import numpy as np
import pytest

from capjax import data

NAMES = ("ant", "bee", "cat")


def arrays(count=40, seed=0, shape=(5, 4, 3)):
  rng = np.random.default_rng(seed)
  images = rng.integers(0, 256, (count, *shape), np.uint8)
  return images, np.arange(count) % len(NAMES)


def in_blocks(images, labels, size=7):
  for start in range(0, len(labels), size):
    yield images[start : start + size], labels[start : start + size]


@pytest.fixture
def folder(tmp_path):
  path = tmp_path / "animals"
  data.write_records(
    path,
    in_blocks(*arrays()),
    in_blocks(*arrays(12, seed=1)),
    class_names=NAMES,
  )
  return path


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_written_is_read(folder, stream):
  want = {"train": arrays(), "test": arrays(12, seed=1)}
  for split, (images, labels) in want.items():
    got = data.load("animals", split, folder.parent, stream=stream)
    assert isinstance(got.images, data.StoredImages) == stream
    assert got.class_names == NAMES and got.num_classes == 3
    assert got.labels.dtype == np.int32
    found = {
      x.tobytes(): y for x, y in zip(got.images, got.labels, strict=True)
    }
    assert found == {
      x.tobytes(): y for x, y in zip(images, labels, strict=True)
    }


@pytest.mark.parametrize("stream", [False, True])
def test_images_can_be_without_labels(tmp_path, stream):
  images, _ = arrays()
  data.write_records(
    tmp_path / "data", [(images[:9], None), (images[9:], None)]
  )
  found = []
  for split, size in (("train", 32), ("test", 8)):
    got = data.load("data", split, tmp_path, stream=stream)
    assert not got.is_labelled and got.labels.shape == (size, 0)
    found += [x.tobytes() for x in got.images]
  assert sorted(found) == sorted(x.tobytes() for x in images)


def test_names_need_labels(tmp_path):
  train, test = [arrays()], [(arrays()[0], None)]
  with pytest.raises(ValueError, match="test has no labels .None., and class_"):
    data.write_records(tmp_path / "data", train, test, class_names=NAMES)


def test_labels_need_names(tmp_path):
  with pytest.raises(ValueError, match="train has labels, and class_names is"):
    data.write_records(tmp_path / "data", [arrays()])


def test_both_ways_give_the_same_order(folder):
  one, other = (
    data.load(str(folder), "train", stream=x, grayscale=True, image_size=(3, 3))
    for x in (False, True)
  )
  assert one.images.shape == other.images.shape == (40, 3, 3, 1)
  np.testing.assert_array_equal(one.images, np.asarray(other.images))
  np.testing.assert_array_equal(one.labels, other.labels)
  assert data.fingerprint(one) == data.fingerprint(other)


def test_a_fifth_is_held_out_and_labels_may_be_multi_hot(tmp_path):
  images, labels = arrays(shape=(5, 4))
  marks = np.eye(3, dtype=np.uint8)[labels] | np.eye(3, dtype=np.uint8)[0]
  data.write_records(tmp_path / "a", [(images, marks)], class_names=NAMES)
  train, test = (data.load(str(tmp_path / "a"), x) for x in ("train", "test"))
  assert train.is_multi_hot and (len(train.labels), len(test.labels)) == (32, 8)
  assert train.images.shape == (32, 5, 4, 1)
  found = {x.tobytes(): y.tolist() for x, y in zip(*train[:2], strict=True)}
  found |= {x.tobytes(): y.tolist() for x, y in zip(*test[:2], strict=True)}
  assert found == {
    x.tobytes(): y.tolist() for x, y in zip(images, marks, strict=True)
  }


def test_a_block_is_written_before_the_next_is_made(tmp_path):
  """So that a generator may give more than memory holds."""
  sizes = []

  def blocks():
    for n in range(2):
      yield arrays(600, seed=n, shape=(100, 100, 3))
      sizes.append((tmp_path / "train.array_record").stat().st_size)

  data.write_records(tmp_path, blocks(), class_names=NAMES)
  assert 10**7 < sizes[0] < sizes[1]  # of 18 MB each


@pytest.mark.parametrize(
  ("change", "words"),
  [
    (lambda x, y: (x / 255, y), "float64; give uint8"),
    (lambda x, y: (x[0], y[:1]), r"\[5, 4, 3\] .* but|labels of train"),
    (lambda x, y: (x, y + 1), r"0\.\.2"),
    (lambda x, y: (x, y[1:]), r"\[39\] of int64; for 40 images"),
    (lambda x, y: (x, y / 2), "of float64"),
    (lambda x, y: (x, 2 * np.eye(3, dtype=int)[y]), "of 0 and 1"),
    (lambda x, y: (x[:0], y[:0]), "no images"),
    (lambda x, y: (x[:, 1:], y), "is 4x4x3, but the first one is 5x4x3"),
    (lambda x, y: (x[:, :0], y), r"are \[40, 0, 4, 3\] of uint8; give"),
    (lambda x, y: (x[..., [0, 1, 2, 0]], y), "have 4 channels; give 1 to 3"),
  ],
)
def test_blocks_are_checked(tmp_path, change, words):
  blocks = [arrays(), change(*arrays())]
  if "no images" in words:
    blocks = blocks[1:]
  with pytest.raises(ValueError, match=words):
    data.write_records(tmp_path, blocks, class_names=NAMES)
  assert not (tmp_path / "records.json").exists()
  if (tmp_path / "train.array_record").exists():
    with pytest.raises(ValueError, match="not written completely; write it ag"):
      data.load(str(tmp_path), "train")


def test_one_name_is_told_as_keys_too(tmp_path):
  write = inspect.unwrap(data.write_records)  # annotations are not checked
  for names in (["a"], {"a": 0}.keys()):
    with pytest.raises(ValueError, match="class_names holds 'a' alone"):
      write(tmp_path / "new", [arrays()], class_names=names)


@pytest.mark.parametrize("names", [["a", "a", "b"], "abc", np.arange(3)])
def test_names_are_checked_before_anything_is_written(tmp_path, names):
  write = inspect.unwrap(data.write_records)  # annotations are not checked
  with pytest.raises(ValueError, match="give a sequence of"):
    write(tmp_path / "new", [arrays()], class_names=names)
  assert not (tmp_path / "new").exists()


def test_one_class_is_refused_before_anything_is_written(tmp_path):
  with pytest.raises(ValueError, match="class_names holds 'a' alone; give at"):
    data.write_records(tmp_path / "new", [arrays()], class_names=["a"])
  assert not (tmp_path / "new").exists()


def test_a_pair_is_no_list_of_blocks(tmp_path):
  write = inspect.unwrap(data.write_records)
  with pytest.raises(ValueError, match="a block of train has 40 parts; give"):
    write(tmp_path, arrays(), class_names=NAMES)


def test_both_parts_have_labels_of_one_kind(tmp_path):
  images, labels = arrays()
  with pytest.raises(ValueError, match="train and test are .* give one kind"):
    data.write_records(
      tmp_path,
      [(images, labels)],
      [(images, np.eye(3, dtype=int)[labels])],
      class_names=NAMES,
    )


def test_other_records_are_not_overwritten(folder):
  with pytest.raises(FileExistsError, match="another folder"):
    data.write_records(folder, [arrays()], class_names=NAMES)
  assert len(data.load(str(folder), "train").labels) == 40


def cut(path):
  path.write_bytes(path.read_bytes()[:-20])


def recount(path):
  about = json.loads(path.read_text())
  about["sizes"]["train"] += 1
  path.write_text(json.dumps(about))


def reshape(path):
  about = json.loads(path.read_text())
  about["image_shape"] = [5, 4, 1]
  path.write_text(json.dumps(about))


@pytest.mark.parametrize(
  ("name", "damage", "error", "words"),
  [
    ("train.array_record", cut, ValueError, "cannot be read"),
    ("train.array_record", lambda p: p.unlink(), FileNotFoundError, "missing"),
    ("train_labels.npy", cut, ValueError, "cannot be read"),
    ("train_labels.npy", lambda p: p.unlink(), FileNotFoundError, "missing"),
    ("test.array_record", lambda p: p.write_bytes(b"x"), ValueError, "cannot"),
    ("records.json", cut, ValueError, "cannot be read"),
    ("records.json", lambda p: p.write_text("{}"), ValueError, "lacks"),
    ("records.json", recount, ValueError, "counts 41 images .* holds 40"),
    ("records.json", reshape, ValueError, "60 bytes, not an image of 5x4x1"),
  ],
)
def test_damage_is_told(folder, name, damage, error, words):
  damage(folder / name)
  with pytest.raises(error, match=words) as caught:
    data.load(str(folder), "train", stream=True)
  assert name in str(caught.value) or "array_record" in str(caught.value)
  assert "write_records" in str(caught.value)


def test_a_missing_package_is_named(folder, monkeypatch):
  monkeypatch.setitem(sys.modules, "grain.sources", None)
  with pytest.raises(ValueError, match=re.escape("pip install '.[data]'")):
    data.load(str(folder), "train")


def test_rows_that_mark_one_class_are_read_as_from_an_archive(tmp_path):
  """So that a fifth of each class is held out, and any classifier trains."""
  images, labels = arrays(shape=(5, 4))
  marks = np.eye(3, dtype=np.uint8)[labels]
  data.write_records(tmp_path / "a", [(images, marks)], class_names=NAMES)
  np.savez(tmp_path / "a.npz", images=images, labels=marks, class_names=NAMES)
  for split in ("train", "test"):
    one, other = (
      data.load(str(tmp_path / x), split, stream=False) for x in ("a", "a.npz")
    )
    assert not one.is_multi_hot
    assert data.fingerprint(one) == data.fingerprint(other)
