"""The results tables: what they say, and that the READMEs say the same."""

import json

import processes
import pytest
from report_cases import make_record, rows_of

from experiments import report
from experiments.records import every_metric, summary, sweeps
from experiments.records import records as archive

_ROOT = processes.ROOT
_EMPTY = f"# Title\n\n{report.BEGIN}\n{report.END}\n\nThe rest.\n"


def _write(folder, *records):
  folder.mkdir(exist_ok=True)
  lines = [json.dumps(record) for record in records]
  (folder / "runs.jsonl").write_text("\n".join(lines) + "\n")


def _run(tmp_path, *arguments):
  """The exit code, and all that it printed."""
  return processes.Running(
    "report",
    *arguments,
    f"--page={tmp_path}/README.md",
    f"--results={tmp_path}/results",
    f"--pages={tmp_path}/README.md",
  ).wait()


def test_readmes_agree_with_results():
  code, printed = processes.Running("report", "--check").wait()
  assert code == 0, printed


def test_a_card_says_what_a_row_was_made_by():
  records = [
    make_record(0),
    make_record(1, commit_at_end="b" * 40, versions={"jax": "0.11"}),
    make_record(suite="affnist", metrics={"x": 1.0}, training_commit="c" * 40),
  ]
  text = every_metric.body(records).partition("## Provenance")[2]
  assert "1. python 3.11, jax 0.10\n2. jax 0.11\n" in text
  rows = [line.split(" | ") for line in text.splitlines() if "| train_" in line]
  assert [row[5:] for row in rows] == [
    ["-", "0 1", "0123456", "-", "bbbbbbb", "-", "1 2 |"],
    ["affnist", "0", "0123456", "ccccccc", "-", "-", "1 |"],
  ]


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


@pytest.mark.parametrize(
  "changes, want",
  [
    ({"flags": {"reconstruction": "official"}}, "0.25"),
    ({"flags": {"reconstruction": "none"}}, "0.35"),
    ({"flags": {"num_iterations": 1}}, "0.29"),
    ({"flags": {"num_iterations": 1, "reconstruction": "none"}}, "0.34"),
    ({"flags": {"num_iterations": 2}}, "-"),
    ({"flags": {"model": "baseline"}}, "0.39"),
    ({"flags": {"model": "other"}}, "-"),
    ({"flags": {"canvas": 40}}, "-"),
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
  assert [row[5:] for row in rows[2:]] == [
    ["Suite", "Metric", "Value", "Images", "Seeds", "Commit"],
    ["affnist", "affnist_accuracy", "0.7, 0.8", "-", "2", "0123456"],
    ["-", "elbo", "-1235", "-", "1", "0123456"],
  ]


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
  assert f"| affnist_like, {want} |" in every_metric.body([record])


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


def test_sweeps_show_validation_before_test():
  metrics = {
    "presence_accuracy": 0.9,
    "validation_presence_accuracy": 0.8,
    "validation_objective": 7.0,
  }
  record = make_record(preset="a_sweep", metrics=metrics)
  header, _ = rows_of([record], sweeps.page)
  assert header[1:4] == [
    "validation: objective (nats)", "validation: t (%)", "t (%)",
  ]  # fmt: skip


def test_bounds_of_nothing_have_another_name(tmp_path):
  """Of generative capsules; an auto-encoder's ELBO is one."""
  metrics = {"test_elbo": 1.0, "adam_bound_after": 2.0, "bound_1": 3.0}
  _write(
    tmp_path,
    make_record(experiment="train_generative", metrics=metrics),
    make_record(experiment="train_vae", metrics=metrics),
  )
  ours, others = (record["metrics"] for record in archive.read(tmp_path))
  assert ours == {
    "test_objective": 1.0, "adam_objective_after": 2.0, "bound_1": 3.0
  }  # fmt: skip
  assert others == metrics


def test_sweeps_stand_beside_each_other(tmp_path):
  def short(flags, seed=0, **changes):
    command = f"python -m x --workdir=DIR --flagfile=a_sweep.cfg {flags}"
    changes.setdefault("metrics", {"presence_accuracy": 0.9})
    return make_record(
      seed, command=f"{command} --seed={seed}", preset="a_sweep", **changes
    )

  records = [
    short("--max_rotation=100"),
    short("--max_rotation=20"),
    short("--max_rotation=20", 1, metrics={"presence_accuracy": 0.8}),
    short(""),
    # What an evaluation adds, beside what nobody compares.
    short("", suite="importance", metrics={"bound_1": -1.5, "num_images": 9}),
  ]
  where = ["0123456", "CPU, 2 cores"]
  assert rows_of(records, sweeps.page)[:4] == [
    ["Flags", "bound, 1 sample", "t (%)", "Seeds", "Commit", "Device"],
    ["as it is", "-1.5", "90.0", "1", *where],
    ["`--max_rotation=20`", "-", "90.0, 80.0", "2", *where],
    ["`--max_rotation=100`", "-", "90.0", "1", *where],
  ]
  # Seeds of other flags or another device are rows of their own.
  newer = short("", 1)
  newer["flags"]["newer"] = 2
  others = [*records, newer, short("", 1, device="CPU, 1 core")]
  names = [row[0] for row in rows_of(others, sweeps.page)[1:6]]
  assert sorted(names) == [
    "`--max_rotation=100`", "`--max_rotation=20`",
    "as it is", "as it is `newer=2`", "as it is before `--newer`",
  ]  # fmt: skip
  # They are in no other table.
  (tmp_path / "README.md").write_text(_EMPTY)
  _write(tmp_path / "results", *records, make_record())
  assert _run(tmp_path)[0] == 0
  tables = {
    path.stem: "a_sweep" in path.read_text()
    for path in (tmp_path / "README.md", *(tmp_path / "results").glob("*.md"))
  }
  assert tables == {"README": False, "sweeps": True}


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


@pytest.mark.parametrize(
  "text",
  [
    "",
    report.BEGIN,
    report.END,
    f"{report.END}\n{report.BEGIN}\n",
    _EMPTY + report.BEGIN,
    _EMPTY + report.END,
  ],
)
def test_missing_markers(text):
  with pytest.raises(ValueError, match=f"{report.BEGIN}.*{report.END}.* add"):
    report.replace_block(text, "table")


def test_only_the_block_is_replaced():
  once = report.replace_block(_EMPTY, "one\n")
  assert once == _EMPTY.replace(report.END, f"\none\n\n{report.END}")
  assert report.replace_block(once, "one\n") == once
  assert "one" not in report.replace_block(once, "two\n")


@pytest.mark.long
def test_check_fails_until_the_readme_is_rewritten(tmp_path):
  readme, results = tmp_path / "README.md", tmp_path / "results"
  readme.write_text(_EMPTY)
  _write(results, make_record(0, 0.2), make_record(1, 0.4))

  def check():
    return _run(tmp_path, "--check")

  assert check()[0] == 1
  assert readme.read_text() == _EMPTY
  assert not (results / "README.md").exists()
  assert _run(tmp_path)[0] == 0
  assert "0.20, 0.40" in readme.read_text()
  assert "0.20, 0.40" in (results / "README.md").read_text()
  assert check()[0] == 0
  # A record edited by hand, and then a table edited by hand.
  _write(results, make_record(0, 0.2), make_record(1, 0.3))
  code, printed = check()
  assert code == 1 and "out of date" in printed
  assert _run(tmp_path)[0] == 0
  for path in (readme, results / "README.md"):
    text = path.read_text()
    path.write_text(text.replace("0.20, 0.30", "0.20, 0.31"))
    code, printed = check()
    assert code == 1 and str(path) in printed
    path.write_text(text)


def test_faults_end_with_their_message(tmp_path):
  (tmp_path / "README.md").write_text("no markers")
  (tmp_path / "results").mkdir()
  code, printed = _run(tmp_path)
  assert code == 1
  assert report.BEGIN in printed and "Traceback" not in printed
  assert (tmp_path / "README.md").read_text() == "no markers"
