"""Any image classification set of TensorFlow Datasets, by its name or path."""

import io

import numpy as np
import pytest
from PIL import Image

from capjax import data

tfds = pytest.importorskip("tensorflow_datasets")


def records(count, *, height=6, seed=0, odd=False, **other):
  rng = np.random.default_rng(seed)
  for n in range(count):
    image = rng.integers(0, 256, (height + (odd and n % 2), 5, 3), np.uint8)
    content = io.BytesIO()
    Image.fromarray(image).save(content, "PNG")
    yield (
      n,
      {
        "picture": io.BytesIO(content.getvalue()),
        "kind": n % 3,
        "text": "words",
        **other,
      },
    )


def prepare(
  folder, splits, *, configs=("",), features=None, odd=False, name="birds"
):
  """Prepares a set of this name; of each split, a size and other values."""
  default = {
    "picture": tfds.features.Image(shape=(None, None, 3)),
    "kind": tfds.features.ClassLabel(names=["wren", "owl", "jay"]),
    "text": tfds.features.Text(),
  }
  if not odd:
    default["picture"] = tfds.features.Image(shape=(6, 5, 3))
  default |= features or {}
  set_name = name

  with tfds.core.registered.skip_registration():

    class Birds(tfds.core.GeneratorBasedBuilder):
      name = set_name
      VERSION = tfds.core.Version("1.0.0")
      BUILDER_CONFIGS = [
        tfds.core.BuilderConfig(name=name) for name in configs if name
      ]

      def _info(self):
        return tfds.core.DatasetInfo(
          builder=self,
          features=tfds.features.FeaturesDict(default),
          supervised_keys=("picture", "kind"),
          disable_shuffling=True,
        )

      def _split_generators(self, manager):
        return {
          split: records(count, seed=seed, **given)
          for seed, (split, (count, given)) in enumerate(splits.items())
        }

      def _generate_examples(self):
        pass

  for config in configs:
    with tfds.core.registered.skip_registration():
      Birds(
        data_dir=folder, config=config or None, file_format="array_record"
      ).download_and_prepare()


def test_images_of_emnist_are_turned_upright(tmp_path):
  for name in ("birds", "emnist"):
    prepare(tmp_path, {"train": (9, {}), "test": (6, {})}, name=name)
  stored, upright = (
    data.load(f"tfds:{name}", "test", tmp_path) for name in ("birds", "emnist")
  )
  np.testing.assert_array_equal(
    upright.images, np.swapaxes(stored.images, 1, 2)
  )
  assert "upright" in " ".join(upright.notes) and not stored.notes


def test_names_of_classes_and_shapes_are_read(tmp_path):
  prepare(tmp_path, {"train": (30, {}), "test": (12, {})})
  for seed, (split, size) in enumerate((("train", 30), ("test", 12))):
    got = data.load("tfds:birds", split, tmp_path)
    assert got.images.shape == (size, 6, 5, 3)
    assert got.class_names == ("wren", "owl", "jay")
    want = {
      np.asarray(Image.open(record["picture"])).tobytes(): record["kind"]
      for _, record in records(size, seed=seed)
    }
    pairs = zip(got.images, got.labels, strict=True)
    assert {image.tobytes(): label for image, label in pairs} == want
  # The same by the path of the name and of the version.
  for path in ("birds", "birds/1.0.0"):
    same = data.load(str(tmp_path / path), "test")
    assert data.fingerprint(same) == data.fingerprint(got)


@pytest.mark.parametrize(
  "splits,sizes,note",
  [
    ({"train": (30, {})}, (24, 6), "a seeded fifth"),
    ({"train": (30, {}), "validation": (9, {})}, (30, 9), "validation is"),
    (
      {
        "train": (30, {}),
        "test": (6, {"kind": -1}),
        "validation": (9, {}),
      },
      (30, 9),
      "validation is",
    ),
  ],
)
def test_sets_without_a_labelled_test_split(tmp_path, splits, sizes, note):
  prepare(tmp_path, splits)
  for split, size in zip(("train", "test"), sizes, strict=True):
    got = data.load("tfds:birds", split, tmp_path)
    assert len(got.labels) == size
    assert note in got.notes[0]


def test_images_of_several_sizes_are_resized(tmp_path):
  prepare(tmp_path, {"train": (30, {"odd": True})}, odd=True)
  with pytest.raises(ValueError, match="differ in size.*--image_size"):
    data.load("tfds:birds", "train", tmp_path)
  got = data.load("tfds:birds", "train", tmp_path, image_size=(4, 4))
  assert got.images.shape == (24, 4, 4, 3)


def test_configs_are_told_apart(tmp_path):
  prepare(tmp_path, {"train": (30, {})}, configs=("small", "large"))
  got = data.load("tfds:birds/small", "train", tmp_path)
  assert len(got.labels) == 24
  with pytest.raises(ValueError, match=r"several configs \(large, small\)"):
    data.load("tfds:birds", "train", tmp_path)


@pytest.mark.parametrize(
  "name,feature,value,word",
  [
    (
      "kind",
      tfds.features.Sequence(tfds.features.ClassLabel(num_classes=3)),
      [0, 2],
      "not images with one label each",
    ),
    ("picture", tfds.features.Text(), "a", "not images with one label each"),
    (
      "picture",
      tfds.features.Tensor(shape=(2, 2, 1), dtype=np.float32),
      np.zeros((2, 2, 1), np.float32),
      "'picture' is of float32, not uint8",
    ),
  ],
)
def test_sets_of_another_kind_are_refused(tmp_path, name, feature, value, word):
  splits = {"train": (3, {name: value})}
  prepare(tmp_path, splits, features={name: feature})
  with pytest.raises(ValueError, match=word):
    data.load("tfds:birds", "train", tmp_path)


def test_whole_numbers_are_labels_too(tmp_path):
  scalar = tfds.features.Scalar(dtype=np.int64)
  splits = {"train": (30, {}), "test": (3, {"kind": 2})}
  prepare(tmp_path, splits, features={"kind": scalar})
  got = data.load("tfds:birds", "test", tmp_path)
  assert got.class_names == ("0", "1", "2")
  assert got.labels.tolist() == [2, 2, 2]


def test_what_is_missing_is_named(tmp_path):
  with pytest.raises(FileNotFoundError) as caught:
    data.load("tfds:birds", "train", tmp_path)
  for word in (str(tmp_path / "birds"), "pip install '.[data]' tensorflow-cpu"):
    assert word in str(caught.value)
