"""Pictures of the documentation show the records that there are."""

import importlib.metadata
import subprocess
import sys

import numpy as np
import processes
import pytest
from PIL import Image

_FIGURES = processes.ROOT / "docs" / "figures"


def _known_matplotlib():
  lines = (processes.ROOT / "constraints.txt").read_text().splitlines()
  versions = dict(line.split("==") for line in lines if "==" in line)
  return versions["matplotlib"]


def test_pictures_of_records_are_up_to_date(tmp_path):
  if importlib.metadata.version("matplotlib") != _known_matplotlib():
    pytest.skip("another version of Matplotlib draws other pixels")
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
