"""Data sets prepared by TensorFlow Datasets, and what it takes to get them."""

import importlib.util
import io
import socket
import sys
import urllib.error
import urllib.request

import numpy as np
import pytest
from PIL import Image as pil_image

from capjax import data


def prepare(data_dir, name, features, splits, **options):
  """Prepares a data set of the name of a stock one without its network."""
  tfds = pytest.importorskip("tensorflow_datasets")

  def info(self):
    return tfds.core.DatasetInfo(
      builder=self,
      features=tfds.features.FeaturesDict(features(tfds.features)),
      disable_shuffling=True,
    )

  def generate(self, columns):
    for i, values in enumerate(zip(*columns.values(), strict=True)):
      yield i, dict(zip(columns, values, strict=True))

  def generate_splits(self, manager):
    return {split: self._generate_examples(splits[split]) for split in splits}

  # The stock builder of that name may be registered already.
  with tfds.core.registered.skip_registration():
    builder = type(
      name.capitalize(),
      (tfds.core.GeneratorBasedBuilder,),
      {
        "VERSION": tfds.core.Version("3.0.1"),
        "__module__": __name__,
        "_info": info,
        "_split_generators": generate_splits,
        "_generate_examples": generate,
        **options,
      },
    )
  assert builder.name == name
  builder(data_dir=data_dir, file_format="array_record").download_and_prepare()


def mnist_like(size, seed=0):
  rng = np.random.default_rng(seed)
  return {
    "image": rng.integers(0, 256, (size, 28, 28, 1), np.uint8),
    "label": rng.integers(0, 10, size),
  }


def mnist_features(features):
  return {
    "image": features.Tensor(shape=(28, 28, 1), dtype=np.uint8),
    "label": features.ClassLabel(num_classes=10),
  }


def test_prepared_records_are_read(tmp_path):
  # More than one batch of records, and not a whole number of them.
  splits = {"train": mnist_like(1100), "test": mnist_like(9, seed=1)}
  prepare(tmp_path, "mnist", mnist_features, splits)
  for split, want in splits.items():
    got = data.load("mnist", split, str(tmp_path))
    np.testing.assert_array_equal(got.images, want["image"])
    np.testing.assert_array_equal(got.labels, want["label"])
    assert got.images.dtype == np.uint8
    assert got.labels.dtype == np.int32
    assert got.num_classes == 10
    assert got.factors == {}


def test_the_newest_prepared_version_is_read(tmp_path):
  tfds = pytest.importorskip("tensorflow_datasets")
  for seed, version in enumerate(["3.0.9", "3.0.10"]):
    prepare(
      tmp_path,
      "mnist",
      mnist_features,
      {"test": mnist_like(9, seed)},
      VERSION=tfds.core.Version(version),
    )
  got = data.load("mnist", "test", tmp_path)
  np.testing.assert_array_equal(got.images, mnist_like(9, seed=1)["image"])


def test_the_default_folder_is_that_of_tensorflow_datasets(
  tmp_path, monkeypatch
):
  prepare(tmp_path, "mnist", mnist_features, {"test": mnist_like(9)})
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  assert len(data.load("mnist", "test").labels) == 9


def png(image):
  content = io.BytesIO()
  pil_image.fromarray(image.squeeze()).save(content, "PNG")
  return io.BytesIO(content.getvalue())


def test_stored_pngs_are_decoded_and_text_is_passed_over(tmp_path):
  rng = np.random.default_rng(0)
  images = rng.integers(0, 256, (9, 32, 32, 3), np.uint8)
  labels = rng.integers(0, 10, 9)
  columns = {
    "id": [f"train_{i}" for i in range(9)],
    "image": list(map(png, images)),
    "label": labels,
  }

  def features(features):
    return {
      "id": features.Text(),
      "image": features.Image(shape=(32, 32, 3)),
      "label": features.ClassLabel(num_classes=10),
    }

  prepare(tmp_path, "cifar10", features, {"train": columns})
  got = data.load("cifar10", "train", tmp_path)
  np.testing.assert_array_equal(got.images, images)
  np.testing.assert_array_equal(got.labels, labels)


@pytest.mark.parametrize("instance", ["instance", "label_instance"])
def test_stereo_pairs_are_stacked_and_factors_kept(tmp_path, instance):
  rng = np.random.default_rng(0)
  pairs = rng.integers(0, 256, (6, 96, 96, 2), np.uint8)
  sizes = {
    "label_category": 5,
    instance: 10,
    "label_azimuth": 18,
    "label_elevation": 9,
    "label_lighting": 6,
  }
  columns = {key: rng.integers(0, size, 6) for key, size in sizes.items()}

  def features(features):
    image = features.Image(shape=(96, 96, 1))
    labels = {
      key: features.ClassLabel(num_classes=size) for key, size in sizes.items()
    }
    return {"image": image, "image2": image, **labels}

  stored = {
    "image": list(map(png, pairs[..., 0])),
    "image2": list(map(png, pairs[..., 1])),
    **columns,
  }
  prepare(tmp_path, "smallnorb", features, {"test": stored})
  got = data.load("smallnorb", "test", tmp_path)
  np.testing.assert_array_equal(got.images, pairs)
  np.testing.assert_array_equal(got.labels, columns.pop("label_category"))
  assert got.num_classes == 5
  columns["label_instance"] = columns.pop(instance)
  assert got.factors.keys() == columns.keys()
  for key, values in columns.items():
    np.testing.assert_array_equal(got.factors[key], values)
    assert got.factors[key].dtype == np.int32


def damage_records(folder):
  next(folder.glob("*test.array_record*")).write_bytes(bytes(70_000))


def remove_records(folder):
  next(folder.glob("*test.array_record*")).unlink()


def declare_other_format(folder):
  path = folder / "dataset_info.json"
  path.write_text(path.read_text().replace("array_record", "tfrecord"))


def damage_info(folder):
  (folder / "dataset_info.json").write_text("{")


@pytest.mark.parametrize(
  "damage,word",
  [
    (damage_records, "Corrupted"),
    (remove_records, "No such file"),
    (declare_other_format, "its records are tfrecord, not array_record"),
    (damage_info, "Failed to load JSON"),
  ],
)
def test_broken_records_are_refused(tmp_path, damage, word):
  prepare(tmp_path, "mnist", mnist_features, {"test": mnist_like(9)})
  folder = tmp_path / "mnist" / "3.0.1"
  damage(folder)
  with pytest.raises(ValueError) as caught:
    data.load("mnist", "test", tmp_path)
  for expected in (str(folder), word, "move this folder away"):
    assert expected in str(caught.value)


def test_records_of_another_kind_are_refused(tmp_path):
  columns = mnist_like(9)

  def check(word, columns, features, split="test"):
    folder = tmp_path / word.replace(" ", "_")
    prepare(folder, "mnist", features, {"test": columns})
    with pytest.raises(ValueError) as caught:
      data.load("mnist", split, folder)
    for expected in (str(folder / "mnist" / "3.0.1"), word):
      assert expected in str(caught.value)

  check("no split 'train'", columns, mnist_features, "train")
  check(
    "not images and labels",
    {"image": columns["image"]},
    lambda features: {"image": mnist_features(features)["image"]},
  )
  check(
    "float32, not uint8",
    {**columns, "image": columns["image"].astype(np.float32)},
    lambda features: {
      **mnist_features(features),
      "image": features.Tensor(shape=(28, 28, 1), dtype=np.float32),
    },
  )
  check(
    "images are 14x56x1, but those of mnist are 28x28x1",
    {**columns, "image": columns["image"].reshape(9, 14, 56, 1)},
    lambda features: {
      **mnist_features(features),
      "image": features.Tensor(shape=(14, 56, 1), dtype=np.uint8),
    },
  )
  check(
    "label 3 is -1",
    {**columns, "label": np.where(np.arange(9) == 3, -1, columns["label"])},
    lambda features: {
      **mnist_features(features),
      "label": features.Scalar(dtype=np.int64),
    },
  )


def hide(monkeypatch, *modules):
  find_spec = importlib.util.find_spec
  monkeypatch.setattr(
    importlib.util,
    "find_spec",
    lambda name: None if name in modules else find_spec(name),
  )
  for module in modules:
    monkeypatch.setitem(sys.modules, module, None)


def pretend_tensorflow(monkeypatch):
  find_spec = importlib.util.find_spec
  monkeypatch.setattr(
    importlib.util,
    "find_spec",
    lambda name: object() if name == "tensorflow" else find_spec(name),
  )


def assert_not_found(data_dir, *words, name="mnist"):
  with pytest.raises(FileNotFoundError) as caught:
    data.load(name, "test", data_dir)
  message = str(caught.value)
  for expected in (
    f"{data_dir / name}/t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte",
    f"{data_dir / name}/VERSION",
    "pip install '.[data]' tensorflow-cpu",
    *words,
  ):
    assert expected in message
  # A traceback of TFDS in front of the message would bury it.
  assert caught.value.__suppress_context__
  assert caught.value.__cause__ is None


@pytest.mark.parametrize(
  "name",
  # The others are made here, and never missing.
  sorted(
    {*data.NAMES}
    - {"digits", "font_letters", "viewpoint_solids", "constellations"}
  ),
)
def test_without_tensorflow_the_remedy_is_named(tmp_path, monkeypatch, name):
  hide(monkeypatch, "tensorflow")
  fetched = f"capjax fetch {name} --data_dir='{tmp_path}'"
  remedy = fetched if "mnist" in name else "write IDX files"
  assert_not_found(tmp_path, "TensorFlow, which", remedy, name=name)


def test_without_tensorflow_datasets_the_remedy_is_named(tmp_path, monkeypatch):
  hide(monkeypatch, "tensorflow", "tensorflow_datasets")
  assert_not_found(tmp_path, "TensorFlow Datasets is not installed")


def test_records_without_tensorflow_datasets(tmp_path, monkeypatch):
  prepare(tmp_path, "mnist", mnist_features, {"test": mnist_like(9)})
  hide(monkeypatch, "tensorflow_datasets")
  with pytest.raises(ValueError, match=r"pip install '\.\[data\]'"):
    data.load("mnist", "test", tmp_path)


@pytest.mark.parametrize(
  "error",
  [
    urllib.error.URLError(socket.gaierror(-2, "Name or service not known")),
    TimeoutError("timed out"),
    ConnectionResetError(104, "Connection reset by peer"),
  ],
)
def test_without_a_network_nothing_is_downloaded(tmp_path, monkeypatch, error):
  tfds = pytest.importorskip("tensorflow_datasets")
  pretend_tensorflow(monkeypatch)

  def fail(*args, **kwargs):
    raise error

  def download(*args, **kwargs):
    pytest.fail("tried to download")

  monkeypatch.setattr(urllib.request, "urlopen", fail)
  monkeypatch.setattr(
    tfds.core.DatasetBuilder, "download_and_prepare", download
  )
  assert_not_found(tmp_path, "no connection to http", str(error))


def test_a_failing_download_is_reported(tmp_path, monkeypatch):
  tfds = pytest.importorskip("tensorflow_datasets")
  pretend_tensorflow(monkeypatch)

  def refuse_head(request, **kwargs):
    raise urllib.error.HTTPError(request.full_url, 405, "no HEAD", {}, None)

  def download(*args, **kwargs):
    raise tfds.download.DownloadError("Failed to get url.\nHTTP code: 404.")

  monkeypatch.setattr(urllib.request, "urlopen", refuse_head)
  monkeypatch.setattr(
    tfds.core.DatasetBuilder, "download_and_prepare", download
  )
  assert_not_found(
    tmp_path, "DownloadError: Failed to get url. HTTP code: 404."
  )


def test_what_the_download_prepares_is_read(tmp_path, monkeypatch):
  tfds = pytest.importorskip("tensorflow_datasets")
  pretend_tensorflow(monkeypatch)
  monkeypatch.setattr(
    urllib.request, "urlopen", lambda *args, **kwargs: io.BytesIO()
  )
  download_and_prepare = tfds.core.DatasetBuilder.download_and_prepare

  def download(builder, **kwargs):
    assert builder.name == "mnist"
    with monkeypatch.context() as context:
      context.setattr(
        tfds.core.DatasetBuilder, "download_and_prepare", download_and_prepare
      )
      prepare(tmp_path, "mnist", mnist_features, {"test": mnist_like(9)})

  monkeypatch.setattr(
    tfds.core.DatasetBuilder, "download_and_prepare", download
  )
  got = data.load("mnist", "test", tmp_path)
  np.testing.assert_array_equal(got.images, mnist_like(9)["image"])


def test_missing_permissions_are_not_taken_for_damage(tmp_path, monkeypatch):
  tfds = pytest.importorskip("tensorflow_datasets")
  pretend_tensorflow(monkeypatch)

  def fail(*args, **kwargs):
    raise PermissionError(13, "Permission denied", str(tmp_path))

  monkeypatch.setattr(tfds, "builder", fail)
  with pytest.raises(PermissionError):
    data.load("mnist", "test", tmp_path)
  prepare(tmp_path, "mnist", mnist_features, {"test": mnist_like(9)})
  monkeypatch.setattr(tfds, "builder_from_directory", fail)
  with pytest.raises(PermissionError):
    data.load("mnist", "test", tmp_path)
