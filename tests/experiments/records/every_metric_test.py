"""The page of every metric: its tables, and where the records come from."""

import processes
import pytest
from report_cases import make_record, rows_of, whole

from experiments.records import every_metric


def test_a_card_says_what_a_row_was_made_by():
  records = [
    make_record(0),
    make_record(1, commit_at_end="b" * 40, versions={"jax": "0.11"}),
    make_record(suite="affnist", metrics={"x": 1.0}, training_commit="c" * 40),
  ]
  text = whole(records).partition("# Provenance")[2]
  assert "1. python 3.11, jax 0.10\n2. jax 0.11\n" in text
  rows = [line.split(" | ") for line in text.splitlines() if "| train_" in line]
  assert [row[5:] for row in rows] == [
    ["-", "0 1", "0123456", "-", "bbbbbbb", "-", "1 2 |"],
    ["affnist", "0", "0123456", "ccccccc", "-", "-", "1 |"],
  ]


@pytest.mark.parametrize(
  "changes, want",
  [
    ({"flags": {"reconstruction": "official"}}, "0.25"),
    ({"flags": {"reconstruction": "none"}}, "0.35"),
    (
      {"flags": {"reconstruction": "none"}, "num_parameters": 6_804_384},
      "0.35",
    ),
    ({"flags": {"num_iterations": 1}}, "0.29"),
    ({"flags": {"num_iterations": 1, "reconstruction": "none"}}, "0.34"),
    ({"flags": {"num_iterations": 2}}, "-"),
    (
      {"flags": {"model": "baseline"}, "num_parameters": 35_445_522},
      "0.39",
    ),
    ({"flags": {"model": "baseline"}}, "-"),
    ({"flags": {"model": "other"}}, "-"),
    ({"flags": {"canvas": 40}}, "-"),
    *(
      ({"flags": {"reconstruction": "official", name: value}}, want)
      for name, value, want in (
        ("routing", "sinkhorn", "-"),
        ("leaky", True, "-"),
        ("start_from", "another", "-"),
        ("conv_capsules", [], "0.25"),
      )
    ),
    ({"num_parameters": 8_215_729}, "-"),
    ({"dataset": "fashion_mnist"}, "-"),
  ],
)
def test_the_papers_figure_stands_beside_ours(changes, want):
  assert rows_of([make_record(**changes)])[1][9] == want


@pytest.mark.parametrize(
  "size, want", [(999, "1K"), (160_500, "160K"), (999_500, "1.0M")]
)
def test_parameters(size, want):
  assert rows_of([make_record(num_parameters=size)])[1][10] == want


def test_evaluations_have_a_table_of_their_own():
  records = [
    make_record(
      seed, metrics={"affnist_accuracy": 0.7 + seed / 10}, suite="affnist"
    )
    for seed in (0, 1)
  ]
  rows = rows_of(
    [
      *records,
      make_record(0),
      make_record(experiment="train_x", metrics={"elbo": -1234.56}),
    ]
  )
  header = ["Suite", "Metric", "Value", "Images", "Seeds", "Commit"]
  assert rows[2:] == [
    header,
    ["affnist", "affnist_accuracy", "0.7, 0.8", "-", "2", "0123456"],
    header,
    ["-", "elbo", "-1235", "-", "1", "0123456"],
  ]


def test_a_metric_of_one_seed_is_shown():
  records = [
    make_record(seed, metrics={"elbo": 1.0, **more})
    for seed, more in enumerate(({}, {"peak": 0.25}, {"views": 3}))
  ]
  rows = rows_of(records)[1:]
  assert [row[1:5] for row in rows] == [
    ["elbo", "1 ± 0", "-", "3"], ["peak", "0.25", "-", "1"]
  ]  # fmt: skip


def test_metrics_beside_a_test_error_are_shown_too():
  metrics = {"test_error_percent": 0.5, "test_routing_entropy": 0.75}
  pages = every_metric.pages([make_record(metrics=metrics)])
  assert "0.50" in pages["README.md"]
  page = pages["metrics/train_capsnet.md"]
  assert "| test_routing_entropy | 0.75 |" in page
  assert "test_error_percent" not in page  # once is enough


def test_validation_is_of_no_test_images():
  metrics = {"validation_elbo": 1.0, "test_elbo": 2.0}
  counts = dict.fromkeys(metrics, 10)
  rows = rows_of([make_record(0, metrics=metrics, num_images=counts)])[1:]
  assert {row[1]: row[3] for row in rows} == {
    "validation_elbo": "-", "test_elbo": "10"
  }  # fmt: skip


def test_pages_hold_every_binary_and_setting():
  scored = make_record(suite="affnist", metrics={"x": 1.0})
  other = make_record(experiment="train_x", metrics={"elbo": -1.0})
  pages = every_metric.pages([make_record(), scored, other])
  assert set(pages) == {
    "README.md", "metrics/train_capsnet.md", "metrics/train_x.md",
    "provenance.md", "commands.md",
  }  # fmt: skip
  assert all(
    f"[{name}]({name})" in pages["README.md"]
    for name in set(pages) - {"README.md"}
  )
  title = "## mnist_paper on mnist, 39,000 updates, CPU, 2 cores"
  assert title in pages["metrics/train_capsnet.md"]
  assert "elbo" not in pages["metrics/train_capsnet.md"]


def test_pages_fit_what_sites_show():
  """Half a megabyte, above which a code host cuts a page."""
  for page in (processes.ROOT / "results").rglob("*.md"):
    assert page.stat().st_size < 500_000, page


def test_no_records_give_one_page():
  assert set(every_metric.pages([])) == {"README.md"}
