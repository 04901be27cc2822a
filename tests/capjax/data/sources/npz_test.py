"""NumPy archives of images and labels."""

import numpy as np
import pytest

from capjax import data


def images(count=20, shape=(6, 5), seed=0):
  return np.random.default_rng(seed).integers(0, 256, (count, *shape), np.uint8)


def labels(count=20, num_classes=4):
  return np.arange(count) % num_classes


def save(folder, **arrays):
  path = folder / "a.npz"
  np.savez_compressed(path, **arrays)
  return str(path)


def by_image(got):
  """The name of the class of each image, or its row of marks."""
  return {
    image.tobytes(): tuple(label) if label.ndim else got.class_names[label]
    for image, label in zip(got.images, got.labels, strict=True)
  }


def test_given_test_images_are_kept(tmp_path):
  sets = {"train": (images(), labels()), "test": (images(8, seed=1), labels(8))}
  path = save(
    tmp_path,
    images=sets["train"][0],
    labels=sets["train"][1],
    test_images=sets["test"][0],
    test_labels=sets["test"][1],
  )
  for split, (x, y) in sets.items():
    got = data.load(path, split)
    assert got.images.dtype == np.uint8 and got.labels.dtype == np.int32
    assert got.images.shape == (len(x), 6, 5, 1)
    assert got.class_names == ("0", "1", "2", "3")
    want = {a.tobytes(): str(b) for a, b in zip(x, y, strict=True)}
    assert by_image(got) == want


def test_a_fifth_is_held_out(tmp_path):
  path = save(tmp_path, images=images(), labels=np.sort(labels()))
  train, test = data.load(path, "train"), data.load(path, "test")
  assert np.bincount(train.labels).tolist() == [4] * 4
  assert np.bincount(test.labels).tolist() == [1] * 4
  assert not by_image(train).keys() & by_image(test).keys()


@pytest.mark.parametrize(
  "kind,same",
  [
    (lambda x: x / 255, True),
    (lambda x: (x / 255).astype(np.float16), False),
    (lambda x: x.astype(np.int64), True),
    (lambda x: x > 127, False),
  ],
)
def test_kinds_of_pixels(tmp_path, kind, same):
  raw = images(shape=(6, 5, 3))
  got = data.load(save(tmp_path, images=kind(raw), labels=labels()), "train")
  assert got.images.shape[1:] == (6, 5, 3)
  if same:
    assert by_image(got).keys() <= {x.tobytes() for x in raw}
  else:
    assert {0, 255} <= set(np.unique(got.images))


@pytest.mark.parametrize(("largest", "told"), [(16, True), (64, False)])
def test_dark_integers_are_told(tmp_path, largest, told):
  raw = images() % (largest + 1)
  raw[0, 0] = largest
  path = save(tmp_path, images=raw.astype(int), labels=labels())
  notes = data.load(path, "train").notes
  assert any("training images is 16 of 255" in x for x in notes) == told
  assert any("dark" in x for x in notes) == told


@pytest.mark.parametrize(
  "given,names",
  [
    (labels() + 1, ("1", "2", "3", "4")),
    (np.array([7, -2, 30, 9])[labels()], ("-2", "7", "9", "30")),
    (
      np.array(["wren", "owl", "tit", "jay"])[labels()],
      ("jay", "owl", "tit", "wren"),
    ),
    (labels()[:, np.newaxis].astype(float), ("0", "1", "2", "3")),
    (np.eye(4)[labels()].astype(np.int8), ("0", "1", "2", "3")),
  ],
)
def test_kinds_of_labels(tmp_path, given, names):
  raw = images()
  path = save(tmp_path, images=raw, labels=given)
  got = data.load(path, "train")
  assert got.class_names == names
  assert got.num_classes == 4 and not got.is_multi_hot
  numbers = (
    np.argmax(given, axis=1)
    if names[0] == "0" and given.shape[1] > 1
    else (np.ravel(given))
  )
  want = {
    x.tobytes(): str(y if y.dtype.kind == "U" else int(y))
    for x, y in zip(raw, numbers, strict=True)
  }
  assert by_image(got).items() <= want.items()


def test_classes_can_be_named(tmp_path):
  given = np.array(["a", "b", "c", "never"])
  path = save(tmp_path, images=images(), labels=labels() % 3, class_names=given)
  got = data.load(path, "train")
  assert got.class_names == ("a", "b", "c", "never")
  assert got.num_classes == 4


def test_images_can_belong_to_several_classes(tmp_path):
  marks = np.random.default_rng(1).integers(0, 2, (20, 5))
  raw = images()
  path = save(tmp_path, images=raw, labels=marks.astype(bool))
  train, test = data.load(path, "train"), data.load(path, "test")
  want = {x.tobytes(): tuple(y) for x, y in zip(raw, marks, strict=True)}
  assert by_image(train) | by_image(test) == want
  assert train.is_multi_hot and train.num_classes == 5
  assert train.labels.dtype == np.int32
  assert len(test.labels) == 4


@pytest.mark.parametrize("given", [{}, {"test_images": images(4, seed=1)}])
def test_images_can_be_without_labels(tmp_path, given):
  path = save(tmp_path, images=images(), **given)
  splits = [data.load(path, split) for split in ("train", "test")]
  assert [len(x.images) for x in splits] == ([20, 4] if given else [16, 4])
  for got in splits:
    assert not got.is_labelled and got.class_names == ()
    assert got.labels.shape == (len(got.images), 0)
  seen = {x.tobytes() for got in splits for x in got.images}
  want = np.concatenate([images(), *given.values()])
  assert seen == {x.tobytes() for x in want}


def test_a_column_of_words_is_taken_and_other_objects_are_not():
  words = np.array(["wren", "owl"] * 10, object)
  train, _ = data.from_arrays((images(), words))
  assert train.class_names == ("owl", "wren")
  with pytest.raises(ValueError, match="labels is an array .* of object"):
    data.from_arrays((images(), np.array(["wren", 3] * 10, object)))


def object_labels():
  return np.array([[1], [2, 3]] * 10, object)


@pytest.mark.parametrize(
  "arrays,words",
  [
    ({"images": images(), "y": labels()}, ["no labels", "only images, y"]),
    (
      {"images": images(), "test_images": images(), "test_labels": labels()},
      ["has no labels, only images", "images without labels alone"],
    ),
    (
      {"images": images(), "class_names": list("ab")},
      ["has no labels, only class_names, images"],
    ),
    ({"x": images(), "y": labels()}, ["no images and no labels", "only x, y"]),
    ({"x": images()}, ["no images and no labels"]),
    (
      {"images": images(), "labels": labels(), "test_images": images()},
      ["no test_labels"],
    ),
    ({"images": images(19), "labels": labels()}, ["19 images", "20 labels"]),
    ({"images": images(0), "labels": labels(0)}, ["0 images"]),
    ({"images": images(20, (6,)), "labels": labels()}, ["[20 6]", "[N H W]"]),
    (
      {"images": images(20, (3, 8, 9)), "labels": labels()},
      ["9 channels", "the channels last"],
    ),
    ({"images": images(20, (8, 8, 4)), "labels": labels()}, ["4 channels"]),
    ({"images": images() / 1.0, "labels": labels()}, ["floats from 0 to 255"]),
    (
      {"images": np.full((20, 2, 2), np.nan), "labels": labels()},
      ["images holds nan at [0, 0, 0, 0] (80 of 80 numbers", "leave out"],
    ),
    (
      {"images": images() - np.int32(300), "labels": labels()},
      ["integers from -300"],
    ),
    ({"images": images() % 2, "labels": labels()}, ["no integer above 1"]),
    ({"images": images() * 1j, "labels": labels()}, ["complex128"]),
    ({"images": images(), "labels": labels() / 3}, ["float64", "one integer"]),
    (
      {"images": images(), "labels": labels()[:, None] * [1, 1]},
      ["[20, 2]", "of 0 and 1"],
    ),
    *(
      ({"images": images(), "labels": np.where(labels() > 0, big, zero)},
       ["labels holds", "no 64-bit integer can hold"])
      for big, zero in ((np.inf, 0.0), (1e30, 0.0), np.uint64([2**63, 0]))
    ),
    ({"images": images(), "labels": object_labels()}, ["without objects"]),
    ({"images": images(), "labels": labels() * 0}, ["1 class (0)"]),
    (
      {"images": images(), "labels": labels(), "class_names": np.array(["a"])},
      ["1 names", "0..0"],
    ),
    (
      {"images": images(), "labels": labels(), "class_names": np.arange(4)},
      ["give 4 words"],
    ),
    (
      {"images": images(), "labels": labels(), "class_names": list("abca")},
      ["class_names holds 'a' 2 times"],
    ),
    (
      {"images": images(), "labels": labels() % 1, "class_names": "ab"},
      ["class_names is an array [] of <U2; give 1 words"],
    ),
    (
      {"images": images(), "labels": labels(),
       "test_images": images(4, (5, 6)), "test_labels": labels(4)},
      ["images are 6x5x1, but test_images are 5x6x1"],
    ),
    (
      {"images": images(), "labels": labels(),
       "test_images": images(4), "test_labels": labels(4) + 3},
      ["test label 4 does not occur"],
    ),
    (
      {"images": images(), "labels": labels(),
       "test_images": images(4), "test_labels": np.eye(4, dtype=int)},
      ["labels of one kind"],
    ),
  ],
)  # fmt: skip
def test_other_contents_are_refused(tmp_path, arrays, words):
  path = save(tmp_path, **arrays)
  with pytest.raises(ValueError) as caught:
    data.load(path, "test")
  for word in (path, *words):
    assert word in str(caught.value)


def test_damaged_archives_are_refused(tmp_path):
  path = tmp_path / "a.npz"
  save(tmp_path, images=images(), labels=labels())
  whole = path.read_bytes()
  for content in (b"", b"no archive", whole[:300], whole[:-30]):
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not a whole .npz archive"):
      data.load(str(path), "train")
