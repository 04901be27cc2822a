"""Data sets given by a path; the readers of files have their own tests."""

import inspect

import image_files
import jax.numpy as jnp
import numpy as np
import pytest
from dataset_files import write_idx

from capjax import data


def write_set(
  folder, prefix="", *, parts=("train", "test"), suffix="", first=1
):
  """Images whose first pixel is the label."""
  folder.mkdir(exist_ok=True)
  for n, part in enumerate(parts):
    labels = first + np.arange(20) % 4
    images = np.random.default_rng(n).integers(0, 256, (20, 5, 7), np.uint8)
    images[:, 0, 0] = labels
    for kind, array in (("images", images), ("labels", labels)):
      name = f"{prefix}{part}-{kind}-idx{array.ndim}-ubyte{suffix}"
      write_idx(folder / name, array)


def test_idx_files_of_any_shape_and_classes(tmp_path):
  """Letters of EMNIST, for example, are numbered from 1."""
  write_set(tmp_path / "letters", parts=("train", "t10k"), suffix=".gz")
  for split in ("train", "test"):
    got = data.load(str(tmp_path / "letters"), split)
    assert got.images.shape == (20, 5, 7, 1)
    assert got.class_names == ("1", "2", "3", "4")
    np.testing.assert_array_equal(got.images[:, 0, 0, 0] - 1, got.labels)


def test_a_fifth_of_idx_files_is_held_out(tmp_path):
  write_set(tmp_path / "a", parts=("train",))
  for split, size in (("train", 16), ("test", 4)):
    got = data.load(str(tmp_path / "a"), split, image_size=(3, 4))
    assert got.images.shape == (size, 3, 4, 1)


def test_one_of_several_idx_sets_is_named(tmp_path):
  write_set(tmp_path, "emnist-letters-")
  write_set(tmp_path, "emnist-digits-", first=0)
  with pytest.raises(ValueError) as caught:
    data.load(str(tmp_path), "train")
  for name in ("letters", "digits"):
    assert str(tmp_path / f"emnist-{name}") in str(caught.value)
  for name, classes in (
    ("emnist-letters", "1234"),
    ("emnist-digits", "0123"),
    ("emnist-letters-test-labels-idx1-ubyte", "1234"),
  ):
    got = data.load(str(tmp_path / name), "test")
    assert got.class_names == tuple(classes)
    assert data.split_path(name, tmp_path) == (name, tmp_path)


def test_images_of_emnist_are_turned_upright(tmp_path):
  write_set(tmp_path / "a", "emnist-letters-")
  write_set(tmp_path / "b", "letters-")
  upright = data.load(str(tmp_path / "a"), "test")
  stored = data.load(str(tmp_path / "b"), "test")
  np.testing.assert_array_equal(
    upright.images, np.swapaxes(stored.images, 1, 2)
  )
  assert upright.images.shape == (20, 7, 5, 1)
  assert "upright" in " ".join(upright.notes) and not stored.notes


def test_incomplete_idx_files_are_refused(tmp_path):
  for missing, words in (
    ("train-labels-idx1-ubyte", "no train labels"),
    ("test-images-idx3-ubyte", "no test images"),
  ):
    folder = tmp_path / missing
    write_set(folder)
    (folder / missing).unlink()
    with pytest.raises(FileNotFoundError, match=words):
      data.load(str(folder), "train")


def test_idx_files_that_do_not_fit_are_refused(tmp_path):
  write_set(tmp_path / "a")
  write_idx(tmp_path / "a" / "test-images-idx3-ubyte", np.zeros((20, 7, 5)))
  with pytest.raises(ValueError, match="differ in shape"):
    data.load(str(tmp_path / "a"), "train")
  write_idx(tmp_path / "a" / "test-labels-idx1-ubyte", np.zeros(3))
  with pytest.raises(ValueError, match="20 images, and its labels are 3"):
    data.load(str(tmp_path / "a"), "train")


@pytest.fixture
def places(tmp_path, monkeypatch):
  """Sets called `birds` in a folder of data and in the working folder."""
  for name, count in (("data", 10), ("here", 20)):
    image_files.write(tmp_path / name / "birds", {"a": count, "b": count})
  image_files.write(tmp_path / "here" / "mnist", {"a": 5, "b": 5})
  monkeypatch.chdir(tmp_path / "here")
  return tmp_path


@pytest.mark.parametrize(
  "name,data_dir,want",
  [
    ("birds", "{}/data", "data/birds"),
    ("birds", None, "here/birds"),
    ("birds/", None, "here/birds"),
    ("../data/birds", None, "data/birds"),
    ("{}/data/birds", "{}/here", "data/birds"),
    ("./mnist", None, "here/mnist"),
    ("mnist", "{}/elsewhere", None),
    ("{}/gone/birds", None, None),
    ("tfds:birds/small", "{}/data", None),
  ],
)
def test_a_name_and_a_folder_lead_to_the_data(
  places, monkeypatch, name, data_dir, want
):
  name = name.format(places)
  data_dir = data_dir and data_dir.format(places)
  short, folder = data.split_path(name, data_dir)
  if want is None:
    assert short in ("mnist", "birds", "tfds:birds/small")
    assert folder is None or str(folder) == data_dir
    return
  assert "/" not in short.removeprefix("./")
  assert folder == (places / want).parent
  loaded = data.load(name, "train", data_dir)
  monkeypatch.chdir("/")
  again = data.load(short, "train", folder)
  assert data.fingerprint(again) == data.fingerprint(loaded)


def test_data_called_like_a_known_set_keep_apart(places):
  assert data.split_path("./mnist") == ("./mnist", places / "here")
  assert data.split_path(str(places / "here" / "mnist"))[0] == "./mnist"
  assert data.split_path("mnist", places)[0] == "mnist"


@pytest.mark.parametrize(
  "name,error,words",
  [
    ("sparrows", ValueError, ["'sparrows'", "fashion_mnist", "tfds:NAME"]),
    ("", ValueError, ["no name", "digits"]),
    ("gone/sparrows", FileNotFoundError, ["gone/sparrows", "--data_dir"]),
    ("sparrows.npz", FileNotFoundError, ["sparrows.npz", "--data_dir"]),
    ("birds/a/0.png", ValueError, ["0.png: a file of another kind", ".npz"]),
    ("tfds:../birds", ValueError, ["tfds:../birds", "tfds:NAME/CONFIG"]),
  ],
)
def test_what_is_no_data_set_is_refused(places, name, error, words):
  with pytest.raises(error) as caught:
    data.load(name, "train", places / "data")
  for word in words:
    assert word in str(caught.value)


def test_a_folder_that_is_not_there_is_not_left_out(places):
  """Else data of the same name in the working folder would be used."""
  with pytest.raises(FileNotFoundError, match="data_dir .*misspelt is not an"):
    data.load("birds", "train", places / "misspelt")


def test_more_channels_than_figures_show_are_refused(tmp_path):
  write_idx(tmp_path / "train-images-idx4-ubyte", np.zeros((20, 5, 5, 4)))
  write_idx(tmp_path / "train-labels-idx1-ubyte", np.arange(20) % 2)
  with pytest.raises(ValueError, match="4 channels"):
    data.load(str(tmp_path), "train")


@pytest.mark.parametrize(
  ("pairs", "name"),
  [
    ((np.zeros((4, 5, 5)),), "train"),
    (((np.zeros((4, 5, 5)), [0, 1, 0, 1]), np.zeros((4, 5, 5))), "test"),
    (((np.zeros((4, 5, 5)),),), "train"),
    ((None,), "train"),
  ],
)
def test_images_come_with_their_labels(pairs, name):
  from_arrays = inspect.unwrap(data.from_arrays)
  with pytest.raises(
    ValueError, match=rf"{name} is a .* no pair; give \(images, la"
  ):
    from_arrays(*pairs)


IMAGES, LABELS = np.arange(500).reshape(20, 5, 5) / 500, np.arange(20) % 2


def test_arrays_can_be_without_labels():
  train, test = data.from_arrays((IMAGES, None), (IMAGES[:3], None))
  assert train.labels.shape == (20, 0) and test.labels.shape == (3, 0)
  again, _ = data.from_arrays(train, test)  # data sets in the place of pairs
  assert not again.is_labelled


def test_images_in_bfloat16_are_converted_by_the_user():
  from_arrays = inspect.unwrap(data.from_arrays)
  with pytest.raises(ValueError, match=r"images.astype\(numpy.float32\)"):
    from_arrays((IMAGES.astype(jnp.bfloat16), LABELS))


@pytest.mark.parametrize(
  ("train", "test", "class_names", "words"),
  [
    ((IMAGES, LABELS), (None, None), None, "the images of test are None"),
    ((IMAGES, LABELS), (IMAGES, None), None, "test has no labels, and the oth"),
    ((IMAGES, None), (IMAGES, LABELS), None, "train has no labels, and the o"),
    ((IMAGES, None), None, ["a", "b"], "class_names are given, and train has"),
    ((IMAGES, LABELS), None, {"a", "b"}, "class_names is .*in the order of"),
    ((IMAGES, LABELS), None, "ab", "class_names is 'ab'; give a sequence"),
  ],
)
def test_some_labels_alone_are_refused(train, test, class_names, words):
  from_arrays = inspect.unwrap(data.from_arrays)
  with pytest.raises(ValueError, match=words):
    from_arrays(train, test, class_names=class_names)


def test_test_sets_number_their_classes_alike():
  names = ["a", "b"]
  test, _ = data.from_arrays((IMAGES, LABELS), class_names=names[::-1])
  with pytest.raises(ValueError, match="of train are a, b, .* test b, a; numb"):
    data.from_arrays((IMAGES, LABELS), test, class_names=names)
  data.from_arrays((IMAGES, LABELS), test, class_names=names[::-1])
  train, _ = data.from_arrays((IMAGES, LABELS), class_names=names)
  # Other names for both do not make their labels agree.
  with pytest.raises(ValueError, match="of train are a, b, .* test b, a; numb"):
    data.from_arrays(train, test, class_names=names[::-1])
  renamed = data.from_arrays(train, train, class_names=["cat", "dog"])
  assert [x.class_names for x in renamed] == [("cat", "dog")] * 2


def _words(test):
  """The images and the class names of a data set's examples."""
  return {
    image.tobytes(): word
    for image, word in zip(test.images, test.named(test.labels), strict=True)
  }


def _pair(count, seed=0):
  """Images that differ, and labels of two classes."""
  random = np.random.default_rng(seed)
  return random.integers(0, 256, (count, 4, 4), np.uint8), np.arange(count) % 2


def test_a_test_set_of_some_classes_keeps_them():
  """Its numbers are of its own classes, those of training of all classes."""
  images, labels = _pair(8)
  for names in (("2", "3"), ("owl", "wren")):
    test, _ = data.from_arrays(_pair(8, seed=1), (images, labels))
    test = test._replace(class_names=names)
    every = np.array(["0", "1", *names])[np.arange(12) % 4]
    if names[0] == "2":
      every = every.astype(int)
    train, found = data.from_arrays((_pair(12)[0], every), test)
    assert train.class_names == found.class_names == ("0", "1", *names)
    assert _words(found) == _words(test)
    train, found = data.from_arrays((_pair(12)[0], every[:, None]), test)
    assert _words(found) == _words(test)
  with pytest.raises(ValueError, match="train are 0, 1, and test has 'owl'; n"):
    data.from_arrays((images, labels), test)


def test_words_are_of_the_classes_of_a_data_set():
  images, labels = _pair(8)
  train, _ = data.from_arrays((images, labels), class_names=["wren", "owl"])
  words = np.array(["owl", "wren"])[labels]
  for given in (words, words.astype(object)):
    _, test = data.from_arrays(train, (images[..., None], given))
    wanted = {x.tobytes(): word for x, word in zip(images, words, strict=True)}
    assert _words(test) == wanted
  with pytest.raises(ValueError, match="of train are wren, owl, and .* 'tit'"):
    data.from_arrays(train, (images, np.array(["tit"] * 8)))


def test_images_of_other_shapes_are_refused():
  ragged = [np.ones((4, 4)).tolist(), np.ones((4, 5)).tolist()]
  from_arrays = inspect.unwrap(data.from_arrays)
  with pytest.raises(ValueError, match="the images differ in shape; give an a"):
    from_arrays((ragged, [0, 1]))


def test_data_sets_keep_their_classes():
  """Also those without an example, and their names."""
  train, _ = data.from_arrays((IMAGES, LABELS), class_names=["a", "b", "c"])
  for some in (train, train._replace(class_names=())):
    again, _ = data.from_arrays(some)
    assert again.num_classes == 3
    assert again.class_names == (some.class_names or ("0", "1", "2"))


def _numbered(count, names):
  """A data set whose factor numbers its images by their intensities."""
  images = np.arange(count, dtype=np.uint8)[:, None, None, None]
  return data.Dataset(
    np.broadcast_to(images, (count, 4, 4, 1)),
    np.arange(count, dtype=np.int32) % len(names),
    len(names),
    {"number": np.arange(count, dtype=np.int32)},
    names,
  )


@pytest.mark.parametrize("has_test", [False, True])
def test_factors_of_data_sets_stay_with_their_images(has_test):
  names = ("a", "b")
  sets = data.from_arrays(
    _numbered(20, names), _numbered(6, names) if has_test else None
  )
  for found in sets:
    np.testing.assert_array_equal(
      found.factors["number"], found.images[:, 0, 0, 0]
    )
    assert found.class_names == names


def test_data_sets_of_other_classes_are_refused():
  """Else labels of one would be read with the class names of the other."""
  sets = _numbered(6, ("a", "b")), _numbered(6, ("b", "a"))
  with pytest.raises(ValueError, match="train are a, b, and .* test b, a;"):
    data.from_arrays(*sets)
  named, unnamed = sets[0], sets[1]._replace(class_names=())
  for train, test in ((named, unnamed), (unnamed, named)):
    found, _ = data.from_arrays(train, test)
    assert found.class_names == (train.class_names or ("0", "1"))
