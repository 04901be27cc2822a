"""Figures of the documentation: each is written, and shows what it is given."""

import numpy as np
import pytest
from PIL import Image

from experiments.figures import concepts

RNG = np.random.default_rng(0)
VOTES = RNG.normal(size=(4, 2, 2))
PLOTS = {
  "strips": lambda path, x: concepts.strips({"a": x, "b": x}, path),
  "overview": lambda path, x: concepts.overview({"a": x[None]}, path),
  "agreement": lambda path, x: concepts.agreement(
    VOTES, VOTES[:3], np.full((3, 4, 2), x.mean()), path
  ),
  "clusters": lambda path, x: concepts.clusters(
    VOTES, VOTES[:3], np.ones((3, 2, 2)), np.full((3, 2), x.mean()), path
  ),
  "bars": lambda path, x: concepts.bars({"a": [x.mean()]}, path, label="x"),
}


@pytest.mark.parametrize("name", PLOTS)
def test_a_figure_shows_its_numbers(name, tmp_path):
  pictures = []
  for number, shade in enumerate((0.2, 0.8)):
    images = np.full((3, 5, 5, 1), shade)
    path = PLOTS[name](tmp_path / f"{number}.png", images)
    pictures.append(np.asarray(Image.open(path).convert("L"), float))
  one, other = pictures
  assert one.shape != other.shape or np.abs(one - other).max() > 50
  assert np.ptp(one) > 100
