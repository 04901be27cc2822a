"""Folders of image files, one folder for each class."""

import string

import image_files
import numpy as np
import pytest
from PIL import Image, ImageOps

from capjax import data
from capjax.data.conversion import Conversion
from capjax.data.sources import image_folder


def pixels(seed, **options):
  array = np.asarray(image_files.picture(seed, **options))
  return array[..., np.newaxis] if array.ndim == 2 else array


def test_both_parts_are_read(tmp_path):
  image_files.write(tmp_path / "train", {"b": 3, "a": 2})
  image_files.write(tmp_path / "test", {"a": 1, "b": 2}, first=50)
  train = data.load(str(tmp_path), "train")
  test = data.load(str(tmp_path), "test")
  assert train.class_names == test.class_names == ("a", "b")
  for got, seeds in (
    (train, {0: (3, 4), 1: (0, 1, 2)}),
    (test, {0: (50,), 1: (51, 52)}),
  ):
    assert got.images.dtype == np.uint8
    assert got.labels.dtype == np.int32
    assert got.num_classes == 2
    for label, wanted in seeds.items():
      found = {x.tobytes() for x in got.images[got.labels == label]}
      assert found == {pixels(seed).tobytes() for seed in wanted}
  assert train.notes == ()


def test_a_fifth_is_held_out_of_a_flat_folder(tmp_path):
  image_files.write(tmp_path, {"a": 10, "b": 20})
  train = data.load(str(tmp_path), "train")
  test = data.load(str(tmp_path), "test")
  assert np.bincount(train.labels).tolist() == [8, 16]
  assert np.bincount(test.labels).tolist() == [2, 4]
  together = [x.tobytes() for x in (*train.images, *test.images)]
  assert len(set(together)) == 30
  again = data.load(str(tmp_path), "test")
  assert data.fingerprint(again) == data.fingerprint(test)
  assert "6 of 30 examples, a seeded fifth" in test.notes[0]
  # Validation takes the first sixth, which must not be one class.
  assert set(train.labels[:4]) == {0, 1}


def test_many_classes_of_coloured_images_of_odd_size(tmp_path):
  counts = dict.fromkeys(string.ascii_uppercase, 5)
  image_files.write(tmp_path, counts, height=37, width=23, mode="RGB")
  train = data.load(str(tmp_path), "train")
  assert train.images.shape == (104, 37, 23, 3)
  assert train.num_classes == 26
  assert train.class_names == tuple(string.ascii_uppercase)
  # The first of all files that is not held out has its seed.
  kept = {x.tobytes() for x in train.images[train.labels == 0]}
  written = {
    pixels(n, height=37, width=23, mode="RGB").tobytes() for n in range(5)
  }
  assert kept < written


@pytest.mark.parametrize(
  "names,train,test",
  [
    (("training", "testing"), 6, 5),
    (("Train", "val"), 6, 5),
    (("train", "test", "valid"), 6, 5),
    (("train",), 4, 2),
  ],
)
def test_other_names_of_the_parts(tmp_path, names, train, test):
  for n, name in enumerate(names):
    image_files.write(tmp_path / name, {"a": 3 - n, "b": 3}, first=10 * n)
  for split, size in (("train", train), ("test", test)):
    got = data.load(str(tmp_path), split)
    assert len(got.labels) == size
  notes = " ".join(data.load(str(tmp_path), "train").notes)
  assert ("val is the test set" in notes) == ("val" in names)
  assert ("valid is not used" in notes) == ("valid" in names)


@pytest.mark.parametrize(
  ("counts", "sizes"),
  [
    ({"": 10}, (8, 2)),
    ({"train": 7, "test": 4}, (7, 4)),
    ({"training": 7, "valid": 4}, (7, 4)),
    ({"train": 10}, (8, 2)),
  ],
)
def test_images_without_folders_of_classes_have_no_labels(
  tmp_path, counts, sizes
):
  folder = image_files.write(tmp_path / "data", counts)
  seen = set()
  for split, size in zip(("train", "test"), sizes, strict=True):
    got = data.load(str(folder), split)
    assert not got.is_labelled and not got.is_multi_hot
    assert got.num_classes == 0 and got.class_names == ()
    assert got.labels.shape == (size, 0) and got.labels.dtype == np.int32
    seen |= {x.tobytes() for x in got.images}
    assert len(data.fingerprint(got)) == 64
  assert len(seen) == sum(sizes)


def test_test_images_without_classes_are_not_used(tmp_path):
  """As in competitions: only training images have labels."""
  image_files.write(tmp_path / "train", {"a": 10, "b": 10})
  image_files.write(tmp_path, {"test": 5}, first=50)
  got = data.load(str(tmp_path), "test")
  assert len(got.labels) == 4 and got.is_labelled
  assert "test is not used, since it has no folders of classes" in got.notes


def test_what_is_not_used_beside_unlabelled_parts_is_told(tmp_path):
  folder = tmp_path / "data"
  image_files.write(folder, {"train": 7, "valid": 4, "validation": 3})
  for n in range(2):
    image_files.picture(n).save(folder / f"{n}.png")
  got = data.load(str(folder), "test")
  assert len(got.images) == 4 and not got.is_labelled
  assert got.notes == (
    "validation is not used, since another folder is the same part",
    "files beside the folders are not used: 2",
    "valid is the test set, since there is no test",
  )


def test_what_is_not_used_beside_parts_with_classes_is_told(tmp_path):
  for part in ("train", "evaluation"):
    image_files.write(tmp_path / part, {"a": 10, "b": 10})
  image_files.write(tmp_path, {"a": 3})
  image_files.picture(0).save(tmp_path / "x.png")
  notes = data.load(str(tmp_path), "train").notes
  names = "test, testing, train, training, val, valid, validation"
  for folder in ("a", "evaluation"):
    assert f"{folder} is not used, since its name is none of {names}" in notes
  assert "files beside the folders are not used: 1" in notes


def test_files_beside_folders_of_classes_are_told(tmp_path):
  image_files.write(tmp_path, {"a": 5, "b": 5})
  image_files.picture(0).save(tmp_path / "x.png")
  notes = data.load(str(tmp_path), "train").notes
  assert "files beside the folders are not used: 1" in notes


@pytest.mark.parametrize(
  ("counts", "notes"),
  [
    ({"car": 5, "test": 5}, []),
    ({"car": 5, "train": 5}, []),
    (
      {"masks": 5, "test": 5, "train": 5},
      ["test and train are read as classes, since masks is beside them"],
    ),
  ],
)
def test_parts_beside_another_folder_are_classes(tmp_path, counts, notes):
  image_files.write(tmp_path, counts)
  got = data.load(str(tmp_path), "train")
  assert got.class_names == tuple(counts)
  assert list(got.notes[:-1]) == notes  # the last line says what is held out


def test_what_is_no_image_of_a_class_is_passed_over(tmp_path):
  image_files.write(tmp_path, {"a": 5, "b": 5})
  (tmp_path / "README.md").write_text("about the data")
  for name in (".DS_Store", "a/.hidden", "a/Thumbs.db", "b/._0.png"):
    (tmp_path / name).write_bytes(b"\0")
  for name in (".cache", "__MACOSX"):
    (tmp_path / name).mkdir()
  got = data.load(str(tmp_path), "train")
  assert got.class_names == ("a", "b")
  assert len(got.labels) == 8


def load_both(folder, **options):
  """All images of a folder, by the name of their class."""
  found = {}
  for split in ("train", "test"):
    got = data.load(str(folder), split, **options)
    for image, label in zip(got.images, got.labels, strict=True):
      found.setdefault(got.class_names[label], []).append(image)
  return found, got.notes


def test_modes_become_grey_or_colour(tmp_path):
  """Classes hold two equal files each, so that both splits have one."""
  grey = image_files.picture(0)
  ramp = np.linspace(0, 65535, 30).reshape(6, 5)
  modes = {
    "bits": grey.convert("1"),
    "deep": Image.fromarray(ramp.astype(np.uint16)),
    "grey": grey,
    "palette": grey.convert("P"),
  }
  for name, image in modes.items():
    (tmp_path / name).mkdir()
    for n in range(2):
      image.save(tmp_path / name / f"{n}.png")
  found, notes = load_both(tmp_path)
  np.testing.assert_array_equal(found["grey"][0][..., 0], np.asarray(grey))
  np.testing.assert_array_equal(found["palette"][0], found["grey"][0])
  np.testing.assert_array_equal(found["deep"][0][..., 0], np.round(ramp / 257))
  assert set(np.unique(found["bits"][0])) == {0, 255}
  assert any("2 of 8 images are of 16 bits" in note for note in notes)

  # One coloured image, and all have three channels.
  (tmp_path / "red").mkdir()
  red = Image.new("RGB", (5, 6), "red")
  red.quantize(4).save(tmp_path / "red" / "0.png")
  red.convert("CMYK").save(tmp_path / "red" / "1.tif")
  found, notes = load_both(tmp_path)
  assert {x.shape for images in found.values() for x in images} == {(6, 5, 3)}
  np.testing.assert_array_equal(found["grey"][0][..., 2], np.asarray(grey))
  for image in found["red"]:
    np.testing.assert_array_equal(image[0, 0], (255, 0, 0))
  assert any("8 of 10 images are grey" in note for note in notes)
  found, _ = load_both(tmp_path, grayscale=True)
  np.testing.assert_array_equal(found["grey"][0][..., 0], np.asarray(grey))
  np.testing.assert_array_equal(found["red"][0][..., 0], 76)


def test_transparent_pixels_become_white(tmp_path):
  letter = np.zeros((6, 5, 4), np.uint8)
  letter[2:4, 2, 3] = 255  # black on nothing
  grey = Image.fromarray(letter).convert("LA")
  for name, image in (("a", Image.fromarray(letter)), ("b", grey)):
    (tmp_path / name).mkdir()
    for n in range(2):
      image.save(tmp_path / name / f"{n}.png")
  found, notes = load_both(tmp_path)
  for images in found.values():
    np.testing.assert_array_equal(images[0], 255 - letter[..., 3:].repeat(3, 2))
  assert any(
    "4 of 4 images are of a kind with transparency" in x for x in notes
  )


def test_transparent_pixels_of_16_bits_become_white(tmp_path):
  """A PNG of grey names one intensity that is transparent."""
  image = Image.fromarray(np.array([[1000, 2570], [0, 65535]], np.uint16))
  for name in "ab":
    (tmp_path / name).mkdir()
    for n in range(2):
      path = tmp_path / name / f"{n}.png"
      image.save(path, transparency=1000)
  found, _ = load_both(tmp_path)
  np.testing.assert_array_equal(found["a"][0][..., 0], [[255, 10], [0, 255]])


def test_photographs_are_turned_upright(tmp_path):
  tag = Image.Exif()
  tag[0x0112] = 6  # turned by a quarter
  for name in "ab":
    (tmp_path / name).mkdir()
    for n in range(2):
      image_files.picture(n, 8, 16, "RGB").save(
        tmp_path / name / f"{n}.jpg", exif=tag
      )
  assert data.load(str(tmp_path), "train").images.shape[1:] == (16, 8, 3)


@pytest.mark.parametrize("kind", ["webp", "png"])
@pytest.mark.parametrize("tag", range(1, 9))
def test_webp_and_png_are_turned_upright(tmp_path, kind, tag):
  stored = image_files.picture(0, 8, 16, "RGB")
  exif = Image.Exif()
  exif[0x0112] = tag
  path = tmp_path / f"a.{kind}"
  stored.save(path, exif=exif, **({"lossless": True} if kind == "webp" else {}))
  stored.info["exif"] = exif.tobytes()
  want = np.asarray(ImageOps.exif_transpose(stored))
  got = image_folder.read_file(path, coloured=True, conversion=Conversion())
  np.testing.assert_array_equal(got, want)
  assert image_folder._header(path).size == want.shape[:2]


def write_deep(root, values):
  """Two equal images of 6x5 pixels and 16 bits in each of two classes."""
  image = Image.fromarray(values.reshape(6, 5).astype(np.uint16))
  for name in "ab":
    (root / name).mkdir()
    for n in range(2):
      image.save(root / name / f"{n}.png")


@pytest.mark.parametrize(
  ("largest", "said"),
  [(4095, "the largest intensity is 4095 of 65535"), (4096, None)],
)
def test_dark_images_of_16_bits_are_told(tmp_path, largest, said):
  write_deep(tmp_path, np.linspace(0, largest, 30))
  _, notes = load_both(tmp_path)
  (note,) = (x for x in notes if "of 16 bits" in x)
  assert (said in note) if said else ("largest" not in note)


def test_one_bright_image_does_not_hide_black_ones(tmp_path):
  write_deep(tmp_path, np.arange(255, 225, -1))
  bright = np.full((6, 5), 65535, np.uint16)
  Image.fromarray(bright).save(tmp_path / "a" / "2.png")
  _, notes = load_both(tmp_path)
  (note,) = (x for x in notes if "of 16 bits" in x)
  assert "(4 hold at most 255 of 65535, and become black)" in note


def test_8_bits_in_files_of_16_are_refused(tmp_path):
  """Divided by 257 they would be black."""
  write_deep(tmp_path, np.arange(255, 225, -1))
  with pytest.raises(ValueError, match="at most 255, and would be black; save"):
    data.load(str(tmp_path), "train")


def test_a_file_of_16_bits_that_would_be_black_may_be_refused(tmp_path):
  pixels = np.arange(25, dtype=np.uint16).reshape(5, 5)
  for factor in (1, 2000):
    Image.fromarray(factor * pixels).save(tmp_path / f"{factor}.png")

  def read(name, may_be_black=False):
    found = image_folder.read_file(
      tmp_path / f"{name}.png",
      coloured=False,
      conversion=Conversion(),
      may_be_black=may_be_black,
    )
    return found[..., 0]

  with pytest.raises(ValueError, match="are at most 24 of 65535, and would be"):
    read(1)
  np.testing.assert_array_equal(read(1, may_be_black=True), 0)
  np.testing.assert_array_equal(read(2000), np.round(2000 * pixels / 257))


@pytest.mark.parametrize("mode", ["L", "I;16", "RGB", "RGBA"])
@pytest.mark.parametrize("tag", range(1, 9))
def test_tiff_is_turned_upright(tmp_path, mode, tag):
  """Not compressed: Pillow would map it in the size that it is turned to."""
  stored = image_files.picture(0, 8, 16, "L")
  if mode == "I;16":
    deep = 257 * np.asarray(stored).astype(np.uint16)
    written = Image.fromarray(deep)
  else:
    written = stored.convert(mode)
  written.save(tmp_path / "a.tiff", tiffinfo={0x0112: tag})
  coloured = mode.startswith("RGB")
  got = image_folder.read_file(
    tmp_path / "a.tiff", coloured=coloured, conversion=Conversion()
  )
  exif = Image.Exif()
  exif[0x0112] = tag
  stored.info["exif"] = exif.tobytes()
  want = np.asarray(ImageOps.exif_transpose(stored))
  np.testing.assert_array_equal(got[..., 0], want)
  assert image_folder._header(tmp_path / "a.tiff").size == want.shape


def test_images_of_other_sizes_are_named_or_resized(tmp_path):
  image_files.write(tmp_path, {"a": 5, "b": 5})
  image_files.picture(0, 9, 8).save(tmp_path / "b" / "odd.png")
  with pytest.raises(ValueError) as caught:
    data.load(str(tmp_path), "test")
  for word in ("b/odd.png is 9x8", "a/0.png is 6x5", "--image_size=6,5"):
    assert word in str(caught.value)
  got = data.load(str(tmp_path), "train", image_size=(4, 3))
  assert got.images.shape == (9, 4, 3, 1)


def spoil(folder, name):
  (folder / "b" / name).write_bytes(b"no image")


def cut(folder, name):
  path = folder / "b" / name
  image_files.picture(0, 60, 50).save(path)
  path.write_bytes(path.read_bytes()[:-2000])


def float_pixels(folder, name):
  Image.fromarray(np.ones((6, 5), np.float32)).save(folder / "b" / name)


@pytest.mark.parametrize(
  "damage,name,words",
  [
    (spoil, "notes.txt", ["notes.txt", "replace or remove"]),
    (spoil, "0.png", ["b/0.png (is no image that Pillow reads); replace"]),
    (cut, "0.png", ["b/0.png", "truncated"]),
    (float_pixels, "0.tif", ["b/0.tif", "floating-point"]),
  ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, damage, name, words):
  options = {"height": 60, "width": 50} if damage is cut else {}
  for part in ("train", "test"):
    image_files.write(tmp_path / part, {"a": 2, "b": 2}, **options)
  damage(tmp_path / "train", name)
  with pytest.raises(ValueError) as caught:
    data.load(str(tmp_path), "train")
  for word in words:
    assert word in str(caught.value)


def test_only_a_few_unreadable_files_are_named(tmp_path):
  image_files.write(tmp_path, {"a": 9, "b": 9})
  for n in range(9):
    spoil(tmp_path, f"{n}.png")
  with pytest.raises(ValueError, match=r"2\.png .* and 6 more"):
    data.load(str(tmp_path), "train")


def one_class(folder):
  image_files.write(folder, {"a": 5})


def too_deep(folder):
  image_files.write(folder / "birds" / "wrens", {"a": 5, "b": 5})


def one_image(folder):
  image_files.picture(0).save(folder / "0.png")


def empty_class(folder):
  image_files.write(folder, {"a": 5, "b": 0})


def only_test(folder):
  image_files.write(folder / "test", {"a": 5, "b": 5})


def empty_train(folder):
  image_files.write(folder / "test", {"a": 5, "b": 5})
  (folder / "train").mkdir()


def new_class(folder):
  image_files.write(folder / "train", {"a": 2, "b": 2})
  image_files.write(folder / "test", {"a": 2, "c": 2})


def empty_test(folder):
  image_files.write(folder, {"train": 5, "test": 0})


def single_images(folder):
  image_files.write(folder, {"a": 1, "b": 1})


@pytest.mark.parametrize(
  "make,words",
  [
    (lambda folder: None, ["holds no images", "train/CLASS/*"]),
    (one_image, ["one image, so that none can be held out"]),
    (one_class, ["1 class (a)", "at least two"]),
    (too_deep, ["birds: is a class", "holds the folder wrens"]),
    (empty_class, ["b: holds no images"]),
    (only_test, ["no folder train with classes beside test"]),
    (empty_train, ["no folder train with classes beside test"]),
    (empty_test, ["test: holds no images"]),
    (new_class, ["test images have a class 'c'"]),
    (single_images, ["no class has two images"]),
  ],
)
def test_folders_without_a_data_set_are_refused(tmp_path, make, words):
  make(tmp_path)
  with pytest.raises((ValueError, FileNotFoundError)) as caught:
    data.load(str(tmp_path), "train")
  for word in (str(tmp_path), *words):
    assert word in str(caught.value)


def test_a_single_image_of_a_class_trains(tmp_path):
  image_files.write(tmp_path, {"a": 10, "b": 10, "rare": 1})
  train = data.load(str(tmp_path), "train")
  test = data.load(str(tmp_path), "test")
  assert np.bincount(train.labels).tolist() == [8, 8, 1]
  assert np.bincount(test.labels).tolist() == [2, 2]
  assert test.num_classes == 3
  assert any("too few images to test: class rare" in x for x in test.notes)


def test_one_file_of_floats_is_refused(tmp_path):
  """As in a folder: Pillow would clip them to black or white."""
  path = tmp_path / "x.tif"
  Image.fromarray(np.full((4, 4), 0.5, np.float32)).save(path)
  with pytest.raises(ValueError, match="floating-point numbers, not integers"):
    image_folder.read_file(path, coloured=False, conversion=Conversion())
