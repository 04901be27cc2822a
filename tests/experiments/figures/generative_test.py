"""Figures of generative capsules: colours of parts, and lines of optimisers."""

import colorsys

import numpy as np

from experiments.figures import generative


def test_images_have_the_hues_of_their_parts(tiled):
  """A column for each angle; part n alone draws pixel n."""
  strengths = np.arange(1, 7) / 6  # three images of each column
  shares = strengths.reshape(6, 1, 1, 1) * np.eye(3)
  generative.coded(shares, [0, 45], "x.png")
  hues = np.array([colorsys.hsv_to_rgb(n / 3, 1, 1) for n in range(3)])
  want = strengths[[0, 3, 1, 4, 2, 5]].reshape(6, 1, 1, 1) * hues
  np.testing.assert_allclose(tiled["images"], want, atol=0.07)
  assert tiled["columns"] == 2
  assert tiled["column_labels"] == ["0°", "45°"]
  assert tiled["row_labels"] == ["image 1", "image 2", "image 3"]


def test_objectives_are_against_steps_and_against_seconds(sheets):
  objectives = {"a": [-9.0, -5.0, -4.0, -3.0], "b": [-9.0, -8.0]}
  seconds = {"a": 2.0, "b": 5.0}
  generative.climbs(objectives, seconds, "x.png")
  by_steps, by_seconds = sheets[0].axes
  for place, times in (
    (by_steps, ([0, 1, 2, 3], [0, 1])),
    (by_seconds, ([0, 0.5, 1, 1.5], [0, 2.5])),
  ):
    for line, x, (name, y) in zip(
      place.lines, times, objectives.items(), strict=True
    ):
      assert line.get_label() == name
      np.testing.assert_allclose(line.get_data(), (x, y))
