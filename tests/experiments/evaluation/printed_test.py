"""Scores as a table."""

from experiments.evaluation import printed


def test_each_number_and_each_curve_has_a_row():
  scores = {"test_accuracy": 0.98765, "views": 32, "accuracies": [0.5, 0.25],
            "num_images": 1000}  # fmt: skip
  text = printed.table("views", scores, dict.fromkeys(scores, 1000))
  assert text.splitlines() == [
    "views, on 1,000 test images",
    "  test_accuracy     0.9877",
    "  views                 32",
    "  accuracies      0.5 0.25",
  ]


def test_a_suite_that_uses_no_image_says_nothing_of_them():
  assert printed.table("dreams", {"steps": 3}, {"steps": 0}).startswith(
    "dreams\n"
  )
