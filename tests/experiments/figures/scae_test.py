"""Figures of stacked capsule autoencoders: what is shown in which colour."""

import colorsys

import matplotlib.colors
import numpy as np
import pytest

from experiments.figures import scae

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("has_targets", [True, False])
def test_pixels_have_the_hue_of_their_part(sheets, has_targets):
  """Part n has column n, at half the brightness in the lower row."""
  images, by_objects, targets = RANDOM.uniform(size=(3, 2, 2, 3, 1))
  if not has_targets:
    targets = images
  by_parts = np.tile(np.array([[0.8], [0.4]])[..., None], (2, 1, 3, 1))
  coefficients = np.zeros((2, 4, 2, 3, 1))  # three parts and the background
  coefficients[:, :3] = np.eye(3)[:, None, :, None]
  scae.reconstructions(
    images, targets, by_parts, coefficients, by_objects, "x.png"
  )
  hues = np.array([colorsys.hsv_to_rgb(n / 3, 1, 1) for n in range(3)])
  which = np.stack([hues, hues / 2])
  want = {
    "image": images,
    "target": targets,
    "parts": by_parts,
    "which part": np.stack([which, which]),
    "objects": by_objects,
  }
  if not has_targets:
    del want["target"]
  places = sheets[0].axes
  assert [place.get_ylabel() for place in places] == list(want)
  for place, pictures in zip(places, want.values(), strict=True):
    shown = place.images[0].get_array()
    for n, picture in enumerate(pictures):
      got = shown[:, 4 * n :][:, :3]
      np.testing.assert_allclose(
        got, np.broadcast_to(picture, (2, 3, 3)), atol=0.07
      )


def test_presences_have_a_row_for_each_class(sheets):
  means = {"prior": RANDOM.uniform(size=(2, 3)),
           "posterior": RANDOM.uniform(size=(2, 3))}  # fmt: skip
  scae.presences(means, ["a", "b"], "x.png")
  shown = {x.get_title(): x.images for x in sheets[0].axes if x.images}
  for kind, values in means.items():
    (picture,) = shown[f"{kind} presence"]
    np.testing.assert_array_equal(picture.get_array(), values)


def test_points_are_in_the_colour_of_their_class(sheets):
  """No point is of the second class."""
  points = RANDOM.normal(size=(5, 2))
  labels = np.array([2, 0, 0, 3, 2])
  scae.embedding(points, labels, ["a", "b", "c", "d"], "x.png")
  (place,) = sheets[0].axes
  legend = place.get_legend()
  names = [text.get_text() for text in legend.get_texts()]
  assert names == ["a", "c", "d"]
  colours = set()
  for label, dots, handle in zip(
    (0, 2, 3), place.collections, legend.legend_handles, strict=True
  ):
    np.testing.assert_array_equal(dots.get_offsets(), points[labels == label])
    colours.add(matplotlib.colors.to_hex(dots.get_facecolor()[0]))
    np.testing.assert_array_equal(dots.get_facecolor(), handle.get_facecolor())
  assert len(colours) == 3
