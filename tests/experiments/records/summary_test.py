"""The table of main measures: which it shows, and under which label."""

import pytest
from report_cases import make_record, rows_of, whole

from experiments.records import summary, tables


def test_both_ways_to_infer_are_shown():
  error = "test_reconstruction_error"

  def measures(flags, **metrics):
    record = make_record(
      experiment="train_boltzmann", metrics={error: 0.5, **metrics}, flags=flags
    )
    return [row[2:4] for row in rows_of([record], summary.table)[1:]]

  both = {f"{error}_mean_field": 0.25, f"{error}_exact": 0.5}
  mean_field, exact = (
    f"reconstruction error, {name}"
    for name in ("by mean field", "exact posterior")
  )
  assert measures({"mean_field_iterations": 0}, **both) == [
    [mean_field, "0.25"],
    [exact, "0.5"],
  ]
  # Of older records, that of training.
  assert measures({"mean_field_iterations": 0}) == [[exact, "0.5"]]
  assert measures({"mean_field_iterations": 9}) == [[mean_field, "0.5"]]
  assert measures({}) == [["reconstruction error", "0.5"]]


def test_seeds_of_older_records_share_the_measures_that_all_have():
  error = "test_reconstruction_error"
  metrics = {error: 0.5, f"{error}_mean_field": 0.25, f"{error}_exact": 0.5}
  new, old = (
    make_record(experiment="train_boltzmann", metrics=x, flags={}, seed=seed)
    for seed, x in enumerate((metrics, {error: 0.7}))
  )
  for records in ([new, old], [old, new]):
    rows = [row[2:4] for row in rows_of(records, summary.table)[1:]]
    assert rows == [["reconstruction error", "0.5, 0.7"]]


def test_the_summary_has_a_row_for_each_main_measure():
  """Accuracies in percent; other suites are in the full table alone."""
  others = {"a_metric": 1.0}
  rows = rows_of(
    [
      make_record(0, 0.2), make_record(1, 0.4),
      make_record(
        suite="affnist_like", metrics={"affnist_like_accuracy": 0.79}
      ),
      make_record(suite="attacks", metrics={"fgsm_accuracy": [0.5, 0.25]}),
      make_record(experiment="train_constellation", preset="constellation",
              metrics={**others, "segmentation_accuracy": 0.9}),
      make_record(experiment="train_matrix_capsules", preset=None,
              metrics={"novel_error_percent": 9.0, "test_accuracy": 0.9}),
      make_record(experiment="train_new", preset="new", metrics=others),
    ],
    summary.table,
  )  # fmt: skip
  assert [row[:1] + row[2:5] + row[6:7] for row in rows] == [
    ["Preset", "Measure", "Ours", "Published", "Seeds"],
    ["mnist_paper", "test error (%)", "0.20, 0.40", "0.25", "2"],
    ["mnist_paper", "affNIST-like views, 28x28 (%)", "79.00", "-", "1"],
    ["constellation", "points assigned correctly (%)", "90.00", "-", "1"],
    ["train_matrix_capsules", "error, novel viewpoints (%)", "9.00", "-", "1"],
    ["new", "-", "-", "-", "1"],
  ]


@pytest.mark.parametrize(
  ("flags", "metrics", "dataset", "want"),
  [
    ({"canvas": 40}, {}, "mnist", "40x40"),
    ({"canvas": 0}, {}, "mnist", "28x28"),
    ({}, {}, "fashion_mnist", "28x28"),
    ({}, {"num_rows": 32}, "another", "32x32"),
    ({}, {}, "another", "size unknown"),
  ],
)
def test_views_on_another_canvas_are_another_measure(
  flags, metrics, dataset, want
):
  record = make_record(
    suite="affnist_like", dataset=dataset, flags=flags,
    metrics={"affnist_like_accuracy": 0.7, **metrics},
  )  # fmt: skip
  (row,) = rows_of([record], summary.table)[1:]
  assert row[2] == f"affNIST-like views, {want} (%)"
  assert f"| affnist_like, {want} |" in whole([record])


def test_a_suite_without_its_main_score_has_no_row():
  """As of capsules without a decoder, whose reconstructions have no error."""
  records = [
    make_record(
      seed=n,
      suite="out_of_distribution",
      metrics={"largest_activation_auroc": 0.9, **extra},
    )
    for n, extra in enumerate([{"reconstruction_error_auroc": 0.8}, {}])
  ]
  assert len(rows_of(records[:1], summary.table)) == 2
  assert summary.table(records[1:]) == tables.NO_RUNS


@pytest.mark.parametrize(
  "flags,alone",
  [
    ({"routing": "dynamic"}, False),
    ({"routing": "self"}, True),
    ({"routing": "self", "conv_capsules": [], "hidden_capsules": []}, True),
    ({"routing": "self", "conv_capsules": ["8"]}, False),
    ({"routing": "self", "hidden_capsules": ["16"]}, False),
  ],
)
def test_routings_made_for_many_layers_are_said_to_be_of_one(flags, alone):
  record = make_record(flags={"model": "capsnet", **flags})
  (row,) = rows_of([record], summary.table)[1:]
  assert ("in the last layer alone" in row[2]) == alone


@pytest.mark.parametrize(
  "words, want",
  [
    ("--workdir=DIR --seed=1 --data_dir=DATA", "0.07"),
    ("--workdir=DIR --noswitches --data_dir=DATA", "-"),
  ],
)
def test_a_paper_says_nothing_of_a_preset_that_was_changed(words, want):
  preset = "boltzmann_mnist"
  record = make_record(
    experiment="train_boltzmann",
    preset=preset,
    metrics={"test_reconstruction_error": 0.08},
    command=f"python -m x --flagfile=presets/{preset}.cfg {words}",
  )
  assert rows_of([record], summary.table)[1][4] == want
