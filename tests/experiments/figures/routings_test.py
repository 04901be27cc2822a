"""The figure of routings: dots where their values are."""

import numpy as np
import pytest

from experiments.figures import routings

COLUMNS = {
  "error": {"a": [1.0, 3.0], "b": [0.5, 0.7], "none": []},
  "entropy": {"b": [0.2], "unknown": [0.1]},
}


def test_each_seed_has_a_dot_in_the_row_of_its_name(sheets):
  routings.properties(COLUMNS, "x.png")
  first, second = sheets[0].axes
  labels = [x.get_text() for x in first.get_yticklabels()]
  assert labels == ["a", "b"]  # from below: the highest error first
  dots = [tuple(map(list, line.get_data())) for line in first.lines]
  assert dots == [([1.0, 3.0], [0, 0]), ([0.5, 0.7], [1, 1])]
  assert [list(line.get_xdata()) for line in second.lines] == [[0.2]]
  means = [x.get_segments()[0][0][0] for x in first.collections]
  np.testing.assert_allclose(means, [2.0, 0.6])


def test_it_is_written_and_refuses_nothing_at_all(tmp_path):
  path = routings.properties(COLUMNS, tmp_path / "folder" / "x.png")
  assert path.stat().st_size > 1000
  with pytest.raises(ValueError, match="no values to plot"):
    routings.properties({"error": {"a": []}}, path)
