"""The results tables: what they say, and that the READMEs say the same."""

import json
import pathlib
import subprocess
import sys

import pytest

from experiments import report
from experiments.common import archive

_ROOT = pathlib.Path(__file__).parents[1]
_EMPTY = f"# Title\n\n{report.BEGIN}\n{report.END}\n\nThe rest.\n"


def _record(seed=0, error=0.3, *, metrics=None, flags=None, **changes):
  given = dict(model="capsnet", num_iterations=3, reconstruction="paper")
  return {
    "experiment": "train_capsnet",
    "dataset": "mnist",
    "preset": "mnist_paper",
    "command": f"python -m experiments.train_capsnet --seed={seed}",
    "flags": {**given, "seed": seed, **(flags or {})},
    "seed": seed,
    "device": "CPU, 2 cores",
    "num_parameters": 8_215_568,
    "num_steps": 39_000,
    "metrics": metrics or {"test_error_percent": error},
    "seconds": 90,
    "images_per_second": 1234.5,
    **changes,
  }


def _rows(records, table=report.table):
  """The cells of the tables' lines, without the rules below the headers."""
  return [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in table(records).splitlines()
    if line.startswith("|") and "---" not in line
  ]


def _write(folder, *records):
  folder.mkdir(exist_ok=True)
  lines = [json.dumps(record) for record in records]
  (folder / "runs.jsonl").write_text("\n".join(lines) + "\n")


def _run(tmp_path, *arguments):
  return subprocess.run(
    [
      *(sys.executable, "-m", "experiments.report", *arguments),
      *(f"--readme={tmp_path}/README.md", f"--results={tmp_path}/results"),
    ],
    cwd=_ROOT,
    capture_output=True,
    text=True,
  )


def test_readmes_agree_with_results():
  done = subprocess.run(
    [sys.executable, "-m", "experiments.report", "--check"],
    cwd=_ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr


def test_a_row_holds_mean_and_sample_deviation_of_its_seeds():
  # Mean 0.3, squared deviations 0.01 + 0 + 0.01, over n - 1 = 2: sd 0.1.
  errors = {0: 0.2, 1: 0.3, 2: 0.4}
  records = [
    _record(seed, error, seconds=60 * seed, images_per_second=1000 * seed)
    for seed, error in errors.items()
  ]
  header, row = _rows(records)
  assert dict(zip(header, row, strict=True)) == {
    "Experiment": "train_capsnet",
    "Dataset": "mnist",
    "Preset": "mnist_paper",
    "Steps": "39,000",
    "Device": "CPU, 2 cores",
    "Test error (%)": "0.30 ± 0.100",
    "Seeds": "3",
    "Published (%)": "0.25",
    "Parameters": "8.2M",
    "Minutes": "1.0",
    "Images/s": "1,000",
  }


def test_order_of_records_is_irrelevant():
  records = [
    _record(seed, 0.1 + seed / 7, num_steps=steps, preset=preset)
    for seed in range(3)
    for steps in (900, 10_000)
    for preset in (None, "a")
  ]
  want = report.table(records)
  assert report.table(records[::-1]) == want
  # By preset, then by number of steps as a number; the lowest seed's command.
  rows = _rows(records)[1:]
  assert [row[2:4] for row in rows] == [
    ["-", "900"], ["-", "10,000"], ["a", "900"], ["a", "10,000"],
  ]  # fmt: skip
  assert "--seed=0\n" in want and "--seed=1" not in want


@pytest.mark.parametrize(
  "change",
  [
    {"experiment": "train_other"},
    {"dataset": "digits"},
    {"preset": None},
    {"num_steps": 1},
    {"device": "TPU"},
    {"flags": {"num_iterations": 1}},
  ],
)
def test_other_settings_are_other_rows(change):
  rows = _rows([_record(0, 0.25), _record(1, 0.75, **change)])[1:]
  assert sorted(row[5] for row in rows) == ["0.25", "0.75"]
  assert [row[6] for row in rows] == ["1", "1"]


def test_flags_tell_rows_of_one_preset_apart():
  records = [_record(flags={"num_iterations": n}) for n in (3, 1)]
  assert [row[2] for row in _rows(records)[1:]] == [
    "mnist_paper `num_iterations=1`",
    "mnist_paper `num_iterations=3`",
  ]


def test_flags_that_are_newer_than_a_record_do_not_tell_it_apart():
  old, new = _record(0, 0.2), _record(1, 0.4, flags={"newer": 2.0})
  (row,) = _rows([old, new])[1:2]
  assert "0.30 ± 0.141" in row and "newer" not in " ".join(row)
  changed = _record(1, 0.4, flags={"newer": 3.0})
  names = [row[2] for row in _rows([old, new, changed])[1:4]]
  assert names == [
    "mnist_paper", "mnist_paper `newer=2.0`", "mnist_paper `newer=3.0`"
  ]  # fmt: skip


def test_flags_that_tell_a_run_from_its_preset_are_named():
  command = "python -m x --flagfile=presets/mnist_paper.cfg --seed=2 --width=3"
  words = " --nodecoder --num_steps=5 --log_every=2"
  name = _rows([_record(command=command + words)])[1][2]
  assert name == "mnist_paper `nodecoder` `width=3`"
  assert _rows([_record(command=command, preset=None)])[1][2] == "-"


def test_repeated_seed_is_an_error():
  with pytest.raises(ValueError, match=r"train_capsnet.*twice in \[0, 0\]"):
    report.table([_record(0), _record(0)])


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
  assert _rows([_record(**changes)])[1][7] == want


@pytest.mark.parametrize(
  "size, want", [(999, "1K"), (160_500, "160K"), (999_500, "1.0M")]
)
def test_parameters(size, want):
  assert _rows([_record(num_parameters=size)])[1][8] == want


def test_evaluations_have_a_table_of_their_own():
  records = [
    _record(
      seed, metrics={"affnist_accuracy": 0.7 + seed / 10}, suite="affnist"
    )
    for seed in (0, 1)
  ]
  rows = _rows(
    [
      *records,
      _record(0),
      _record(experiment="train_x", metrics={"elbo": -1234.56}),
    ]
  )
  assert [row[5:] for row in rows[2:]] == [
    ["Suite", "Metric", "Value", "Seeds"],
    ["affnist", "affnist_accuracy", "0.75 ± 0.071", "2"],
    ["-", "elbo", "-1235", "1"],
  ]


def test_the_summary_has_a_row_for_each_main_measure():
  """Accuracies in percent; other suites are in the full table alone."""
  others = {"a_metric": 1.0}
  rows = _rows(
    [
      _record(0, 0.2), _record(1, 0.4),
      _record(suite="affnist", metrics={"affnist_accuracy": 0.79}),
      _record(suite="attacks", metrics={"fgsm_accuracy": [0.5, 0.25]}),
      _record(experiment="train_constellation", preset="constellation",
              metrics={**others, "segmentation_accuracy": 0.9}),
      _record(experiment="train_matrix_capsules", preset=None,
              metrics={"novel_error_percent": 9.0, "test_accuracy": 0.9}),
      _record(experiment="train_new", preset="new", metrics=others),
    ],
    report.summary,
  )  # fmt: skip
  assert [row[:1] + row[2:6] for row in rows] == [
    ["Preset", "Measure", "Ours", "Published", "Seeds"],
    ["mnist_paper", "test error (%)", "0.30 ± 0.14", "0.25", "2"],
    ["mnist_paper", "affNIST (%)", "79.00", "-", "1"],
    ["constellation", "points right (%)", "90.00", "-", "1"],
    ["train_matrix_capsules", "error, novel viewpoints (%)", "9.00", "-", "1"],
    ["new", "-", "-", "-", "1"],
  ]


def test_sweeps_stand_beside_each_other(tmp_path):
  def short(flags, seed=0, **changes):
    command = f"python -m x --workdir=DIR --flagfile=a_sweep.cfg {flags}"
    changes.setdefault("metrics", {"presence_accuracy": 0.9})
    return _record(
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
  assert _rows(records, report.sweeps) == [
    ["Flags", "bound, 1 sample", "t (%)"],
    ["as it is", "-1.5", "90.0"],
    ["`--max_rotation=20`", "-", "85.0 ± 7.1"],
    ["`--max_rotation=100`", "-", "90.0"],
  ]
  # They are in no other table.
  (tmp_path / "README.md").write_text(_EMPTY)
  _write(tmp_path / "results", *records, _record())
  assert _run(tmp_path).returncode == 0
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
  record = _record(
    experiment="train_boltzmann",
    preset=preset,
    metrics={"test_reconstruction_error": 0.08},
    command=f"python -m x --flagfile=presets/{preset}.cfg {words}",
  )
  assert _rows([record], report.summary)[1][4] == want


def test_bars_do_not_break_the_table():
  assert r"| a\|b |" in report.table([_record(device="a|b")])


def test_files_are_read_by_name(tmp_path):
  for name in ("b", "a"):
    text = json.dumps(_record(command=name)) + "\n"
    (tmp_path / f"{name}.jsonl").write_text(text)
  (tmp_path / "notes.txt").write_text("not a record")
  records = archive.read(tmp_path)
  assert [record["command"] for record in records] == ["a", "b"]


@pytest.mark.parametrize(
  "line, fault",
  [
    ("{", "Expecting property name"),
    ("", "Expecting value"),
    ("[1]", "expected an object"),
    (json.dumps(_record(seed="0")), "`seed` is '0', expected <class 'int'>"),
    (json.dumps(_record(seconds=None)), "`seconds` is None"),
    (json.dumps(_record(error=float("nan"))), "test_error_percent"),
    (json.dumps(_record(error="low")), "test_error_percent"),
    ("{}", "`experiment` is None"),
  ],
)
def test_malformed_line(tmp_path, line, fault):
  good = json.dumps(_record())
  (tmp_path / "runs.jsonl").write_text(f"{good}\n{line}\n{good}\n")
  with pytest.raises(ValueError, match="runs.jsonl, line 2: ") as caught:
    archive.read(tmp_path)
  assert fault in str(caught.value)


def test_missing_folder(tmp_path):
  with pytest.raises(ValueError, match="no folder"):
    archive.read(tmp_path / "results")


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


def test_check_fails_until_the_readme_is_rewritten(tmp_path):
  readme, results = tmp_path / "README.md", tmp_path / "results"
  readme.write_text(_EMPTY)
  _write(results, _record(0, 0.2), _record(1, 0.4))

  def check():
    return _run(tmp_path, "--check")

  assert check().returncode == 1
  assert readme.read_text() == _EMPTY
  assert not (results / "README.md").exists()
  assert _run(tmp_path).returncode == 0
  assert "0.30 ± 0.14" in readme.read_text()
  assert "0.30 ± 0.141" in (results / "README.md").read_text()
  assert check().returncode == 0
  # A record edited by hand, and then a table edited by hand.
  _write(results, _record(0, 0.2), _record(1, 0.3))
  edited = check()
  assert edited.returncode == 1 and "out of date" in edited.stderr
  assert _run(tmp_path).returncode == 0
  for path in (readme, results / "README.md"):
    text = path.read_text()
    path.write_text(text.replace("0.25 ±", "0.24 ±"))
    edited = check()
    assert edited.returncode == 1 and str(path) in edited.stderr
    path.write_text(text)


def test_faults_end_with_their_message(tmp_path):
  (tmp_path / "README.md").write_text("no markers")
  (tmp_path / "results").mkdir()
  ended = _run(tmp_path)
  assert ended.returncode == 1
  assert report.BEGIN in ended.stderr and "Traceback" not in ended.stderr
  assert (tmp_path / "README.md").read_text() == "no markers"
