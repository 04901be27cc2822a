"""Tables of images with labels."""

import numpy as np
import pytest

from experiments.figures import energy_models

IMAGES = np.random.default_rng(0).uniform(0, 1, (5, 4, 6, 1))


def draw(path, **options):
  options = {"columns": 3, "title": "five", **options}
  return energy_models.tiles(IMAGES, path, **options).read_bytes()


def test_title_and_labels_are_drawn(tmp_path):
  path = tmp_path / "tiles.png"
  files = [
    draw(path),
    draw(path, title="six"),
    draw(path, row_labels=["a", "b"]),
    draw(path, column_labels=["x", "y", "z"]),
  ]
  assert len(set(files)) == 4
  assert draw(path, row_labels=["1–3", "4–5"]) == files[0]  # the default


@pytest.mark.parametrize(
  ("labels", "fault"),
  [
    ({"row_labels": ["a"]}, "1 row labels for 2 rows"),
    ({"column_labels": ["a"] * 4}, "4 column labels for 3 columns"),
  ],
)
def test_labels_of_another_number_are_refused(tmp_path, labels, fault):
  with pytest.raises(ValueError, match=fault):
    draw(tmp_path / "tiles.png", **labels)
