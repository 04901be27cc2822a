"""IDX files: what is found, what is read and what is refused."""

import gzip
import struct
import tracemalloc
import zlib

import numpy as np
import pytest

from capjax import data
from capjax.data.sources import idx

IMAGES = "train-images-idx3-ubyte"
LABELS = "train-labels-idx1-ubyte"


def idx_bytes(array, *, element_type=0x08, shape=None):
  shape = array.shape if shape is None else shape
  magic = struct.pack(">HBB", 0, element_type, len(shape))
  return magic + struct.pack(f">{len(shape)}I", *shape) + array.tobytes()


def write(folder, name, content):
  folder.mkdir(exist_ok=True)
  if name.endswith(".gz"):
    content = gzip.compress(content)
  (folder / name).write_bytes(content)


@pytest.fixture
def examples():
  rng = np.random.default_rng(0)
  images = rng.integers(0, 256, (12, 28, 28), np.uint8)
  return images, np.arange(12, dtype=np.uint8) % 10


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("prefix", ["train", "t10k", "test"])
@pytest.mark.parametrize(
  "name,shape",
  [
    ("mnist", (28, 28)),
    ("fashion_mnist", (28, 28, 1)),
    ("cifar10", (32, 32, 3)),
    ("svhn_cropped", (32, 32, 3)),
    ("smallnorb", (96, 96, 2)),
  ],
)
def test_round_trip(tmp_path, name, shape, prefix, suffix):
  images = np.random.default_rng(0).integers(0, 256, (7, *shape), np.uint8)
  labels = np.array([4, 0, 1, 3, 2, 2, 0], np.uint8)
  stem = tmp_path / name
  write(
    stem, f"{prefix}-images-idx{images.ndim}-ubyte{suffix}", idx_bytes(images)
  )
  write(stem, f"{prefix}-labels-idx1-ubyte{suffix}", idx_bytes(labels))
  split = "train" if prefix == "train" else "test"
  got = data.load(name, split, tmp_path)
  np.testing.assert_array_equal(got.images.reshape(images.shape), images)
  np.testing.assert_array_equal(got.labels, labels)
  assert got.images.ndim == 4
  assert got.images.dtype == np.uint8
  assert got.labels.dtype == np.int32
  assert got.num_classes == (5 if name == "smallnorb" else 10)
  assert got.factors == {}


def test_the_uncompressed_file_and_the_usual_prefix_come_first(
  tmp_path, examples
):
  images, labels = examples
  folder = tmp_path / "mnist"
  for value, name in enumerate(
    [
      "t10k-images-idx3-ubyte",
      "t10k-images-idx3-ubyte.gz",
      "test-images-idx3-ubyte",
    ]
  ):
    write(folder, name, idx_bytes(np.full_like(images, value)))
  write(folder, "t10k-labels-idx1-ubyte", idx_bytes(labels))
  assert not data.load("mnist", "test", tmp_path).images.any()


def test_names_may_have_a_dot(tmp_path, examples):
  images, labels = examples
  folder = tmp_path / "mnist"
  write(folder, "train-images.idx3-ubyte", idx_bytes(images))
  write(folder, "train-labels.idx1-ubyte", idx_bytes(labels))
  found = data.load("mnist", "train", tmp_path)
  np.testing.assert_array_equal(found.images[..., 0], images)


# (the file to change, its new content given images and labels or None to
# remove it, words of the message: the file or folder, the fault, the remedy).
BROKEN = {
  "labels missing": (LABELS, None, "mnist", "no train labels beside", "add"),
  "images missing": (IMAGES, None, "mnist", "no train images beside", "add"),
  "empty": (IMAGES, lambda x, y: b"", IMAGES, "magic", "again"),
  "text": (
    IMAGES,
    lambda x, y: b"<html>404</html>",
    IMAGES,
    "0x3c68746d",
    "again",
  ),
  "floats": (
    IMAGES,
    lambda x, y: idx_bytes(x, element_type=0x0D),
    IMAGES,
    "0x00000d03",
    "again",
  ),
  "little endian": (
    IMAGES,
    lambda x, y: idx_bytes(x)[3::-1] + idx_bytes(x)[4:],
    IMAGES,
    "0x03080000",
    "again",
  ),
  "labels as images": (
    IMAGES,
    lambda x, y: idx_bytes(y),
    IMAGES,
    "rank 1",
    "exchanged",
  ),
  "images as labels": (
    LABELS,
    lambda x, y: idx_bytes(x),
    LABELS,
    "rank 3",
    "exchanged",
  ),
  "half a header": (
    IMAGES,
    lambda x, y: idx_bytes(x)[:9],
    IMAGES,
    "9 of 16 bytes",
    "again",
  ),
  "short": (
    IMAGES,
    lambda x, y: idx_bytes(x)[:-5],
    IMAGES,
    "12x28x28 = 9408",
    "9403 follow (short by 5)",
    "again",
  ),
  "long": (
    LABELS,
    lambda x, y: idx_bytes(y) + b"\0",
    LABELS,
    "12 = 12",
    "but more follow",
    "again",
  ),
  "more labels": (
    LABELS,
    lambda x, y: idx_bytes(np.append(y, y[:1])),
    IMAGES,
    LABELS,
    "12 images",
    "13 labels",
    "again",
  ),
  "no examples": (
    IMAGES,
    lambda x, y: idx_bytes(x[:0]),
    IMAGES,
    "no images",
    "again",
  ),
  "label out of range": (
    LABELS,
    lambda x, y: idx_bytes(np.where(y < 7, y, y + 5)),
    LABELS,
    "label 7 is 12",
    "0..9",
    "put the mnist labels",
  ),
  "transposed colour": (
    IMAGES,
    lambda x, y: idx_bytes(x, shape=(12, 1, 28, 28)),
    IMAGES,
    "1x28x28",
    "28x28x1",
    "put the mnist images",
  ),
  "wrong size": (
    IMAGES,
    lambda x, y: idx_bytes(x[:, :27]),
    IMAGES,
    "27x28x1",
    "28x28x1",
    "put the mnist images",
  ),
  "zipped under a plain name": (
    IMAGES,
    lambda x, y: gzip.compress(idx_bytes(x)),
    IMAGES,
    "holds gzip",
    f"rename it to {IMAGES}.gz",
  ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_files_are_refused(tmp_path, examples, fault):
  images, labels = examples
  name, change, *words = BROKEN[fault]
  folder = tmp_path / "mnist"
  write(folder, IMAGES, idx_bytes(images))
  write(folder, LABELS, idx_bytes(labels))
  if change is None:
    (folder / name).unlink()
  else:
    (folder / name).write_bytes(change(images, labels))
  if fault == "no examples":
    write(folder, LABELS, idx_bytes(labels[:0]))
  with pytest.raises((ValueError, FileNotFoundError)) as caught:
    data.load("mnist", "train", tmp_path)
  for word in (str(tmp_path), *words):
    assert word in str(caught.value)


@pytest.mark.parametrize(
  "change,words",
  [
    (lambda zipped: zipped[:-10], ("truncated gzip", "again")),
    (lambda zipped: zipped[:3], ("truncated gzip", "again")),
    (lambda zipped: zipped[:-8] + b"\1" * 8, ("corrupt gzip", "CRC", "again")),
    (lambda zipped: zipped[:10] + b"\xff" + zipped[11:],
     ("corrupt gzip", "block type", "again")),
    (gzip.decompress, ("not a gzip file", f"rename it to {IMAGES} ")),
    (lambda zipped: b"", ("not a gzip file", "again")),
  ],
)  # fmt: skip
def test_broken_gzip_files_are_refused(tmp_path, examples, change, words):
  images, labels = examples
  folder = tmp_path / "mnist"
  write(folder, IMAGES + ".gz", idx_bytes(images))
  write(folder, LABELS, idx_bytes(labels))
  path = folder / (IMAGES + ".gz")
  path.write_bytes(change(path.read_bytes()))
  with pytest.raises(ValueError) as caught:
    data.load("mnist", "train", tmp_path)
  for word in (str(path), *words):
    assert word in str(caught.value)


def bomb(size):
  """A gzip file of many zeros, made in pieces."""
  packer = zlib.compressobj(9, zlib.DEFLATED, 31)
  piece = bytes(2**20)
  packed = [packer.compress(piece) for _ in range(size // len(piece))]
  return b"".join([*packed, packer.flush()])


@pytest.mark.parametrize("shape", [(12, 28, 28), (2**32 - 1, 2**16, 2**16)])
def test_no_more_is_unzipped_than_the_header_promises(tmp_path, shape):
  """100 MB of zeros behind a header, in 100 kB."""
  path = tmp_path / (IMAGES + ".gz")
  header = gzip.compress(idx_bytes(np.zeros(0, np.uint8), shape=shape))
  path.write_bytes(header + bomb(100 * 2**20))
  tracemalloc.start()
  try:
    with pytest.raises(ValueError, match="header counts.*(more|hold).*again"):
      idx.read(path, "images")
    _, most = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert most < 2**21


def test_one_split_alone_is_not_completed_from_elsewhere(tmp_path, examples):
  images, labels = examples
  write(tmp_path / "mnist", IMAGES, idx_bytes(images))
  write(tmp_path / "mnist", LABELS, idx_bytes(labels))
  with pytest.raises(FileNotFoundError, match="no test images beside"):
    data.load("mnist", "test", tmp_path)
