"""Figures of transforming auto-encoders: points, and lines where they lie."""

import numpy as np

from experiments.figures import transforming

RANDOM = np.random.default_rng(0)


def _axis(name):
  truth = RANDOM.integers(-3, 4, 20)
  readout, noise, still = RANDOM.normal(size=(3, 20))
  return transforming.Axis(
    name, truth, readout, truth + 7 + noise / 9, still, still + 2.5
  )


def test_points_and_lines_of_each_axis(sheets):
  """The jitter of true shifts is less than half a pixel."""
  axes = [_axis("x"), _axis("y")]
  transforming.coordinates(axes, 2, "x.png")
  panels = np.reshape(sheets[0].axes, (2, 3))
  for (readout, own, pair), axis in zip(panels, axes, strict=True):
    for panel, values in ((readout, axis.readout), (own, axis.own)):
      x, y = panel.collections[0].get_offsets().T
      np.testing.assert_array_equal(y, values)
      np.testing.assert_allclose(x, axis.truth, atol=0.31)
      assert panel.get_xlabel() == f"true shift in {axis.name} (pixels)"
    np.testing.assert_array_equal(
      pair.collections[0].get_offsets(), np.stack([axis.still, axis.shifted], 1)
    )
    assert pair.get_xlabel() == f"{axis.name} of the capsule"
    median = np.median(axis.own - axis.truth)
    for panel, values, above in (
      (readout, axis.truth, 0), (own, axis.truth, median), (pair, axis.still, 2)
    ):  # fmt: skip
      x, y = panel.lines[0].get_data()
      np.testing.assert_allclose(x, [values.min(), values.max()])
      np.testing.assert_allclose(y, x + above)


def test_errors_are_against_the_distance(sheets):
  lines = {"shifted": [0.1, 0.2, 0.4], "unmoved": [0.0, 1.2, 1.9]}
  transforming.errors([0, 1, 3], lines, {"shifts": 1, "places": 2}, "x.png")
  (panel,) = sheets[0].axes
  found = {line.get_label(): line.get_data() for line in panel.lines}
  for name, values in lines.items():
    np.testing.assert_allclose(found[name], ([0, 1, 3], values))
  assert found["shifts"][0] == [1, 1] and found["places"][0] == [2, 2]
