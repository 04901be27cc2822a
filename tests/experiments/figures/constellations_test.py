"""The figure of constellations: points where they are, coloured by object."""

import matplotlib.colors
import numpy as np

from experiments.figures import constellations

# The last point is absent, and would be far away.
POINTS = np.array([[[-0.5, 0.2], [0.4, 0.3], [0.1, -0.7], [0.0, 9.0]]])
PRESENCE = np.array([[1, 1, 1, 0]])


def test_points_have_the_colours_of_their_objects(sheets):
  objects = {"truth": [[0, 1, 1, 1]], "found": [[-1, 0, 1, 0]]}
  constellations.segments(POINTS, PRESENCE, objects, "x.png")
  places = sheets[0].axes
  assert [place.get_ylabel() for place in places] == list(objects)
  colours = []
  for place in places:
    (dots,) = place.collections
    np.testing.assert_allclose(dots.get_offsets(), POINTS[0, :3])
    colours.append(list(map(tuple, dots.get_facecolor())))
  first, second = colours[0][:2]
  black = matplotlib.colors.to_rgba("black")
  assert len({first, second, black}) == 3
  assert colours == [[first, second, second], [black, first, second]]


def test_y_is_down_and_all_present_points_are_inside(sheets):
  constellations.segments(2 * POINTS, PRESENCE, {"a": [[0] * 4]}, "x.png")
  (place,) = sheets[0].axes
  assert place.yaxis_inverted() and not place.xaxis_inverted()
  for low, high in (place.get_xlim(), place.get_ylim()[::-1]):
    assert 1.4 < high == -low < 2
  assert place.get_aspect() == 1
