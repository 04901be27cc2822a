"""Pictures of the documentation show the records and kernels that there are."""

import importlib.metadata
import subprocess
import sys

import numpy as np
import processes
import pytest
from PIL import Image

from experiments.figures import examples

_FIGURES = processes.ROOT / "docs" / "figures"


def _known_matplotlib():
  lines = (processes.ROOT / "constraints.txt").read_text().splitlines()
  versions = dict(line.split("==") for line in lines if "==" in line)
  return versions["matplotlib"]


@pytest.fixture
def same_pixels():
  if importlib.metadata.version("matplotlib") != _known_matplotlib():
    pytest.skip("another version of Matplotlib draws other pixels")


def test_pictures_of_records_are_up_to_date(tmp_path, same_pixels):
  words = ["experiments.gallery", "--of_records", f"--folder={tmp_path}"]
  made = subprocess.run(
    [sys.executable, "-m", *words],
    cwd=processes.ROOT,
    capture_output=True,
    text=True,
  )
  assert made.returncode == 0, made.stderr
  paths = sorted(tmp_path.glob("*.png"))
  assert len(paths) >= 9
  for path in paths:
    want, got = (
      np.asarray(Image.open(x)) for x in (path, _FIGURES / path.name)
    )
    assert np.array_equal(got, want), (
      f"{path.name} shows other records; repeat python -m experiments.gallery "
      "--of_records"
    )


@pytest.mark.parametrize("name", ["agreement", "em", "parts"])
def test_pictures_of_kernels_are_up_to_date(tmp_path, same_pixels, name):
  """But for the smallest differences, which the compiler may make."""
  path = tmp_path / f"{name}.png"
  getattr(examples, name)(path)
  want, got = (
    np.asarray(Image.open(x).convert("RGB"), float)
    for x in (_FIGURES / path.name, path)
  )
  assert np.mean(np.abs(got - want)) < 0.1, (
    f"{path.name} has changed; repeat python -m experiments.gallery "
    f"--only={name}"
  )


def test_moved_digits_stand_beside_the_unmoved_one(tmp_path):
  path = tmp_path / "rows.npz"
  code, printed = processes.Running(
    "moving_pictures", str(path), package=""
  ).wait()
  assert code == 0, printed
  rows = np.load(path)
  shifts = range(-6, 7, 2)
  for number, dot in ((1, (5, 7)), (2, (9, 6))):
    image = np.zeros((15, 15, 1))
    image[dot] = 1
    moved = np.stack([np.roll(image, x, axis=1) for x in shifts])
    np.testing.assert_allclose(rows[f"a {number}, moved"], moved, atol=1e-4)
    by_model = np.stack([image + x for x in shifts])
    np.testing.assert_allclose(rows[f"a {number}, by capsules"], by_model)
