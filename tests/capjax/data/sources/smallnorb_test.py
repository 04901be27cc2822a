"""The files of smallNORB: whole, cut, exchanged, in part or absent."""

import gzip
import struct

import numpy as np
import pytest

from capjax import data
from capjax.data.sources import smallnorb

_STEMS = {
  "train": "smallnorb-5x46789x9x18x6x2x96x96-training",
  "test": "smallnorb-5x01235x9x18x6x2x96x96-testing",
}
_FACTORS = ["instance", "elevation", "azimuth", "lighting"]


def _matrix(array, *, magic=None, shape=None):
  """What a file holds; a shape of under three numbers is filled up with 1."""
  magic = magic or {1: 0x1E3D4C55, 4: 0x1E3D4C54}[array.itemsize]
  shape = list(array.shape if shape is None else shape)
  filled = shape + [1] * (3 - len(shape))
  header = struct.pack(f"<{2 + len(filled)}i", magic, len(shape), *filled)
  return header + array.tobytes()


def _path(folder, split, kind, suffix=""):
  return folder / "smallnorb" / f"{_STEMS[split]}-{kind}.mat{suffix}"


def _write(folder, split, columns, suffix=""):
  for kind, array in columns.items():
    path = _path(folder, split, kind, suffix)
    path.parent.mkdir(exist_ok=True)
    content = _matrix(array)
    path.write_bytes(gzip.compress(content) if suffix else content)


def _columns(count=5, seed=0):
  rng = np.random.default_rng(seed)
  info = rng.integers([0] * 4, [10, 9, 18, 6], (count, 4)) * [1, 1, 2, 1]
  return dict(
    dat=rng.integers(0, 256, (count, 2, 96, 96), np.uint8),
    cat=rng.integers(0, 5, count, np.int32),
    info=info.astype(np.int32),
  )


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_round_trip(tmp_path, suffix):
  written = {"train": _columns(5), "test": _columns(4, seed=1)}
  for split, columns in written.items():
    _write(tmp_path, split, columns, suffix)
  for split, columns in written.items():
    got = data.load("smallnorb", split, tmp_path)
    assert got.images.shape == (len(columns["cat"]), 96, 96, 2)
    assert got.images.dtype == np.uint8
    for eye in range(2):
      np.testing.assert_array_equal(
        got.images[..., eye], columns["dat"][:, eye]
      )
    np.testing.assert_array_equal(got.labels, columns["cat"])
    assert got.labels.dtype == np.int32 and got.num_classes == 5
    assert set(got.factors) == {f"label_{name}" for name in _FACTORS}
    for column, name in enumerate(_FACTORS):
      values = got.factors[f"label_{name}"]
      assert values.dtype == np.int32
      scale = 2 if name == "azimuth" else 1
      np.testing.assert_array_equal(scale * values, columns["info"][:, column])


def test_the_bytes_of_a_small_file(tmp_path):
  """Written out by hand from the description of the format."""
  path = tmp_path / "info.mat"
  head = "544c3d1e 02000000 02000000 04000000 01000000"
  rows = (
    "08000000 06000000 22000000 05000000 00000000 01000000 02000000 00000000"
  )
  path.write_bytes(bytes.fromhex(head + rows))
  columns = _columns(2)
  for kind in ("dat", "cat"):
    (tmp_path / kind).write_bytes(_matrix(columns[kind]))
  files = smallnorb.Files(tmp_path / "dat", tmp_path / "cat", path)
  _, _, factors = smallnorb.read(files)
  got = {name: values.tolist() for name, values in factors.items()}
  assert got == dict(
    label_instance=[8, 0],
    label_elevation=[6, 1],
    label_azimuth=[17, 1],
    label_lighting=[5, 0],
  )


def test_real_pairs(data_dir, tmp_path):
  path = data_dir / "smallnorb_samples" / "samples.npz"
  if not path.is_file():
    pytest.skip(f"no {path}")
  real = np.load(path)
  for split in ("train", "test"):
    rows = real["split"] == split
    columns = dict(
      dat=real["images"][rows],
      cat=real["category"][rows].astype(np.int32),
      info=real["info"][rows].astype(np.int32),
    )
    _write(tmp_path, split, columns)
    got = data.load("smallnorb", split, tmp_path)
    assert set(got.labels) == set(range(5))
    instances = {"train": [4, 6, 7, 8, 9], "test": [0, 1, 2, 3, 5]}[split]
    assert set(got.factors["label_instance"]) <= set(instances)
    for image in got.images:
      left, right = np.float64(np.moveaxis(image, -1, 0))
      assert np.corrcoef(left.ravel(), right.ravel())[0, 1] > 0.3
      assert (left != right).mean() > 0.05
      # A toy before an empty ground: rows that are mixed up would not be flat.
      assert np.ptp(left[:, :3]) < 40 < np.ptp(left[32:64, 32:64])


def test_order_of_the_sources(tmp_path):
  """IDX files, then whole files, then zipped ones."""
  for value, suffix in ((1, ".gz"), (2, "")):
    columns = _columns() | {"cat": np.full(5, value, np.int32)}
    _write(tmp_path, "train", columns, suffix)
    assert set(data.load("smallnorb", "train", tmp_path).labels) == {value}
  folder = tmp_path / "smallnorb"
  pairs = np.zeros((3, 96, 96, 2), np.uint8)
  head = struct.pack(">I4I", 0x00000804, *pairs.shape)
  (folder / "train-images-idx4-ubyte").write_bytes(head + pairs.tobytes())
  head = struct.pack(">II", 0x00000801, 3)
  (folder / "train-labels-idx1-ubyte").write_bytes(head + bytes([3] * 3))
  assert data.load("smallnorb", "train", tmp_path).labels.tolist() == [3] * 3


@pytest.mark.parametrize("missing", ["dat", "cat", "info"])
def test_part_of_a_split_is_refused(tmp_path, missing):
  columns = _columns()
  del columns[missing]
  _write(tmp_path, "train", columns, ".gz")
  with pytest.raises(FileNotFoundError) as caught:
    data.load("smallnorb", "train", tmp_path)
  for word in (f"training-{missing}.mat[.gz] beside", *columns, "add it"):
    assert word in str(caught.value)


def test_the_other_split_alone_is_refused(tmp_path):
  _write(tmp_path, "train", _columns())
  with pytest.raises(FileNotFoundError, match="testing-dat.mat"):
    data.load("smallnorb", "test", tmp_path)


def test_nothing_there(tmp_path):
  assert smallnorb.find(tmp_path / "absent", "train") is None
  (tmp_path / "readme.mat").touch()
  assert smallnorb.find(tmp_path, "train") is None


def test_a_message_names_the_files(tmp_path, monkeypatch):
  def fail(*arguments):
    raise RuntimeError("no network")

  monkeypatch.setattr(data.loading.tfds, "prepare", fail)
  with pytest.raises(FileNotFoundError) as caught:
    data.load("smallnorb", "test", tmp_path)
  path = tmp_path / "smallnorb" / smallnorb.pattern("test")
  assert f"{path}: none there" in str(caught.value)


# (the kind of file, its new content given the array, words of the message)
_BROKEN = {
  "empty": ("dat", lambda x: b"", "magic", "again"),
  "text": ("cat", lambda x: b"<html>404</html>", "0x3c68746d", "again"),
  "big endian": ("info", lambda x: _matrix(x)[3::-1], "0x1e3d4c54", "again"),
  "floats": ("cat", lambda x: _matrix(x, magic=0x1E3D4C51), "0x514c3d1e"),
  "magic alone": ("info", lambda x: _matrix(x)[:4], "4 of 20", "again"),
  "half a header": ("dat", lambda x: _matrix(x)[:22], "22 of 24", "again"),
  "short": (
    "dat",
    lambda x: _matrix(x)[:-1],
    "5x2x96x96",
    "92160 bytes, but 92159",
    "again",
  ),
  "long": ("cat", lambda x: _matrix(x) + b"\0", "20 bytes, but 21", "again"),
  "negative": (
    "dat",
    lambda x: _matrix(x, shape=(-5, -2, 96, 96)),
    "-5x-2",
    "again",
  ),
  "integers": ("dat", lambda x: _matrix(np.int32(x)), "int32", "exchanged"),
  "categories as info": (
    "info",
    lambda x: _matrix(x[:, 0].copy()),
    "rank 1, not int32 of rank 2",
    "exchanged",
  ),
  "one eye": ("dat", lambda x: _matrix(x[:, :1].copy()), "1 images", "again"),
  "fewer infos": ("info", lambda x: _matrix(x[:3]), "[3, 4]", "5 pairs"),
  "three factors": (
    "info",
    lambda x: _matrix(x[:, :3].copy()),
    "[5, 3], not [5, 4]",
  ),
  "odd azimuth": (
    "info",
    lambda x: _matrix(x | np.int32([0, 0, 1, 0])),
    "azimuth of 0",
  ),
  "lighting 6": (
    "info",
    lambda x: _matrix(np.where([[0, 0, 0, 1]], 6, x).astype(np.int32)),
    "label_lighting of 0 is 6",
  ),
  "category 5": ("cat", lambda x: _matrix(np.full_like(x, 5)), "0..4"),
  "fewer categories": ("cat", lambda x: _matrix(x[:4]), "[4], not [5]", "dat"),
  "small images": (
    "dat",
    lambda x: _matrix(x[..., :48].copy()),
    "96x48x2",
    "96x96x2",
  ),
}


@pytest.mark.parametrize("fault", _BROKEN)
def test_broken_files_are_refused(tmp_path, fault):
  kind, change, *words = _BROKEN[fault]
  columns = _columns()
  _write(tmp_path, "train", columns)
  path = _path(tmp_path, "train", kind)
  path.write_bytes(change(columns[kind]))
  with pytest.raises(ValueError) as caught:
    data.load("smallnorb", "train", tmp_path)
  for word in (str(path), *words):
    assert word in str(caught.value)


@pytest.mark.parametrize(
  "damage",
  [
    lambda content: content[: len(content) // 2],
    lambda content: content[:5],
    lambda content: b"<html>404</html>",
    lambda content: content[:99] + bytes(9) + content[108:],
  ],
)
def test_broken_gzip_files_are_refused(tmp_path, damage):
  _write(tmp_path, "train", _columns(), ".gz")
  path = _path(tmp_path, "train", "dat", ".gz")
  path.write_bytes(damage(path.read_bytes()))
  with pytest.raises(
    ValueError, match="not a whole gzip file.*again"
  ) as caught:
    data.load("smallnorb", "train", tmp_path)
  assert str(path) in str(caught.value)


def test_familiar_azimuths():
  azimuths = np.arange(18, dtype=np.int32)
  familiar = smallnorb.familiar_azimuths({"label_azimuth": azimuths})
  degrees = 20 * azimuths
  assert sorted(degrees[familiar]) == [0, 20, 40, 300, 320, 340]
  assert sorted(degrees[~familiar]) == list(range(60, 281, 20))


def test_familiar_elevations():
  elevations = np.array([8, 2, 0, 3, 1, 5, 2], np.int32)
  familiar = smallnorb.familiar_elevations({"label_elevation": elevations})
  assert sorted(elevations[familiar]) == [0, 1, 2, 2]
  assert familiar.dtype == bool


@pytest.mark.parametrize(
  "split,name",
  [
    (smallnorb.familiar_azimuths, "label_azimuth"),
    (smallnorb.familiar_elevations, "label_elevation"),
  ],
)
def test_unknown_viewpoints_are_refused(split, name):
  with pytest.raises(ValueError, match=f"'label_x'.*{name}"):
    split({"label_x": np.zeros(3, np.int32)})
