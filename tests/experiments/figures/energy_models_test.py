"""Figures of energy models: what is shown, and in which colours."""

import numpy as np
import pytest

from experiments.figures import energy_models

RANDOM = np.random.default_rng(0)


def test_only_capsules_that_are_present_are_shown(sheets):
  images, means = RANDOM.uniform(size=(2, 2, 4, 4, 1))
  parts = RANDOM.uniform(size=(2, 3, 4, 4, 1))
  probabilities = np.array([[0.9, 0.11, 0.09], [0.4, 0.0, 0.0]])
  energy_models.decompositions(images, means, parts, probabilities, "x.png")
  picture = sheets[0].axes[0].images[0].get_array()
  for n in range(2):
    alone = [
      part if probability > 0.1 else np.ones((4, 4, 1))
      for part, probability in zip(parts[n], probabilities[n], strict=True)
    ]
    for column, want in enumerate([images[n], means[n], *alone]):
      got = picture[5 * n :, 5 * column :][:4, :4]
      np.testing.assert_allclose(got, np.tile(want, 3), rtol=1e-6)


@pytest.mark.parametrize(
  ("least", "most", "limits"),
  [(0.2, 0.8, (0, 1)), (-0.5, 0.8, (-0.5, 1)), (0.2, 3.0, (0, 3))],
)
def test_all_strips_have_one_range_of_colours(sheets, least, most, limits):
  classes = [np.array([[0.5, least, 0.6]]), np.array([[0.3, most, 0.4]])]
  names = ["a", "b"]
  energy_models.spectra(classes, names, "x.png")
  energy_models.compared_spectra({"m": classes}, names, "x.png")
  for sheet in sheets:
    strips = {x.get_title(): x.images[0] for x in sheet.axes if x.images}
    for name, values in zip(names, classes, strict=True):
      np.testing.assert_array_equal(strips[name].get_array(), values)
      assert strips[name].get_clim() == limits
