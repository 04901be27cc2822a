"""Figures of the documentation show what they are given, in its place."""

import matplotlib.colors
import numpy as np
import pytest

from experiments.figures import concepts

RANDOM = np.random.default_rng(0)
VOTES = RANDOM.normal(size=(5, 2, 2))  # of 5 parts for 2 parents
COLOURS = [matplotlib.colors.to_rgb(f"C{n}") for n in range(2)]


def _assert_votes(place, parent):
  """Those for one parent, in its colour; gives the dots."""
  dots = place.collections[parent]
  np.testing.assert_array_equal(dots.get_offsets(), VOTES[:, parent])
  np.testing.assert_allclose(dots.get_facecolor()[0, :3], COLOURS[parent])
  return dots


def test_agreement_shows_poses_and_shares_of_each_iteration(sheets):
  poses = RANDOM.normal(size=(3, 2, 2))
  shares = RANDOM.uniform(size=(3, 5, 2))
  concepts.agreement(VOTES, poses, shares, (1, 2, 5), "x.png")
  areas = []
  for n, place in enumerate(sheets[0].axes):
    sizes = [_assert_votes(place, j).get_sizes() for j in range(2)]
    areas.append(np.stack(sizes, axis=1))
    for arrow, pose in zip(place.texts, poses[n], strict=True):
      np.testing.assert_array_equal(arrow.xy, pose)
      assert arrow.get_position() == (0, 0)
  np.testing.assert_allclose(areas / shares, areas[0][0, 0] / shares[0, 0, 0])
  titles = [place.get_title() for place in sheets[0].axes]
  assert titles == ["1 iteration", "2 iterations", "5 iterations"]


def test_clusters_are_ellipses_of_two_standard_deviations(sheets):
  means = RANDOM.normal(size=(3, 2, 2))
  scales = RANDOM.uniform(0.5, 2, size=(3, 2, 2))
  activations = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.65]])
  concepts.clusters(VOTES, means, scales**2, activations, "x.png")
  for n, place in enumerate(sheets[0].axes):
    for j, (ellipse, text) in enumerate(
      zip(place.patches, place.texts, strict=True)
    ):
      _assert_votes(place, j)
      (x, y), (width, height) = means[n, j], scales[n, j]
      np.testing.assert_allclose(ellipse.center, (x, y))
      assert ellipse.width == pytest.approx(4 * width)
      assert ellipse.height == pytest.approx(4 * height) and not ellipse.angle
      np.testing.assert_allclose(ellipse.get_edgecolor()[:3], COLOURS[j])
      assert text.get_text() == f"a = {activations[n, j]:.2f}"
      np.testing.assert_allclose(text.get_position(), (x, y + 2 * height))
  titles = [place.get_title() for place in sheets[0].axes]
  assert titles == ["1 iteration", "2 iterations", "3 iterations"]


def _shown(place, row, column, size):
  """One image of a mosaic, whose images have white lines between them."""
  picture = place.images[0].get_array()
  rows, columns = (slice(n * (size + 1), n * (size + 1) + size)
                   for n in (row, column))  # fmt: skip
  return picture[rows, columns]


def test_strips_have_an_image_in_each_place(sheets):
  rows = {"a": RANDOM.uniform(size=(3, 4, 4, 3)),
          "b": RANDOM.uniform(size=(2, 4, 4, 3))}  # fmt: skip
  concepts.strips(rows, "x.png")
  for place, (name, images) in zip(sheets[0].axes, rows.items(), strict=True):
    assert place.get_ylabel() == name
    for n, image in enumerate(images):
      np.testing.assert_allclose(_shown(place, 0, n, 4), image, rtol=1e-6)


def test_panels_have_an_image_in_each_place(sheets):
  panels = {"a": RANDOM.uniform(size=(2, 3, 4, 4, 3)),
            "b": RANDOM.uniform(size=(1, 2, 4, 4, 3))}  # fmt: skip
  concepts.overview(panels, "x.png")
  for place, (name, images) in zip(sheets[0].axes, panels.items(), strict=True):
    assert place.get_title() == name
    for row, column in np.ndindex(images.shape[:2]):
      shown = _shown(place, row, column, 4)
      np.testing.assert_allclose(shown, images[row, column], rtol=1e-6)


def test_the_best_model_has_the_highest_row_of_dots(sheets):
  values = {"best": [3.0, 5.0], "worst": [1.0], "middle": [0.0, 4.0, 5.0]}
  concepts.bars(values, "x.png", label="nats")
  (place,) = sheets[0].axes
  names = [x.get_text() for x in place.get_yticklabels()]
  assert names == ["worst", "middle", "best"]
  for row, (line, name) in enumerate(zip(place.lines, names, strict=True)):
    x, y = line.get_data()
    assert list(x) == values[name] and set(y) == {row}
  assert list(place.get_yticks()) == [0, 1, 2]
  assert place.get_xlabel() == "nats"
