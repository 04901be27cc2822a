"""Small files in the formats of known data sets."""

import gzip
import pathlib
import struct

import numpy as np


def write_idx(path: pathlib.Path, array: np.ndarray) -> None:
  """Writes bytes in the format of MNIST; compressed if `path` ends so."""
  header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
  content = header + array.astype(np.uint8).tobytes()
  path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_solids(folder: pathlib.Path, *, train: int, test: int) -> None:
  """Writes noise in the form of two splits of the viewpoint solids."""
  random = np.random.default_rng(0)
  solids = folder / "viewpoint_solids"
  solids.mkdir()
  for split, first, count in (("train", 0, train), ("test", 5, test)):
    numbers = np.arange(count, dtype=np.int32)
    np.savez(
      solids / f"{split}-v1.npz",
      images=random.integers(0, 256, (count, 48, 48, 2), np.uint8),
      labels=numbers % 5,
      label_instance=first + numbers // 5 % 5,
      label_azimuth=numbers % 18,
      label_elevation=numbers // 2 % 9,
      label_lighting=numbers % 6,
    )
