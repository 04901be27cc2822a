"""The figure of a confusion matrix: rows are classes, columns predictions."""

import numpy as np
import pytest
from matplotlib.backends import backend_agg

from experiments.figures import confusion

NAMES = ("ant", "bee", "cat")
# No image is of the last class.
COUNTS = np.array([[12_000, 4000, 0], [1, 2, 5], [0, 0, 0]])


def test_cells_are_shares_of_the_images_of_a_class(sheets):
  confusion.confusion(COUNTS, NAMES, "x.png")
  panel, _ = sheets[0].axes
  np.testing.assert_allclose(
    panel.images[0].get_array(), [[75, 25, 0], [12.5, 25, 62.5], [0, 0, 0]]
  )
  assert panel.images[0].get_clim() == (0, 100)
  assert panel.get_ylabel() == "class"
  assert panel.get_xlabel() == "predicted class"
  for labels in (panel.get_xticklabels(), panel.get_yticklabels()):
    assert [x.get_text() for x in labels] == list(NAMES)


def test_numbers_stand_in_their_cells(sheets):
  confusion.confusion(COUNTS, NAMES, "x.png")
  texts = {x.get_position(): x for x in sheets[0].axes[0].texts}
  assert {place: text.get_text() for place, text in texts.items()} == {
    (0, 0): "12,000", (1, 0): "4,000",
    (0, 1): "1", (1, 1): "2", (2, 1): "5",
  }  # fmt: skip
  # White on dark blue.
  assert {x for x, text in texts.items() if text.get_color() == "white"} == {
    (0, 0), (2, 1)
  }  # fmt: skip


@pytest.mark.parametrize(
  ("num_classes", "numbers", "names"),
  [(1, 1, 1), (20, 400, 20), (21, 0, 21), (61, 0, 0)],
)
def test_many_classes_have_no_numbers_and_no_names(
  sheets, num_classes, numbers, names
):
  """Names are no mathematics, and those that are long are cut."""
  words = [f"$x^$ a long name of class {n}" for n in range(num_classes)]
  counts = np.ones((num_classes, num_classes), int)
  confusion.confusion(counts, words, "x.png")
  backend_agg.FigureCanvasAgg(sheets[0]).draw()
  panel = sheets[0].axes[0]
  assert len(panel.texts) == numbers
  for labels in (panel.get_xticklabels(), panel.get_yticklabels()):
    assert [x.get_text() for x in labels].count("$x^$ a long name…") == names
