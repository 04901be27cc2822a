"""The results tables: what they say, and that the READMEs say the same."""

import json

import processes
import pytest
from report_cases import make_record

from experiments import report
from experiments.records import records as archive

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


def test_pages_of_binaries_without_records_go(tmp_path):
  (tmp_path / "README.md").write_text(_EMPTY)
  scored = make_record(suite="affnist", metrics={"x": 1.0})
  _write(tmp_path / "results", scored)
  assert _run(tmp_path)[0] == 0
  page = tmp_path / "results/metrics/train_capsnet.md"
  assert "affnist" in page.read_text()
  old = page.with_name("train_old.md")
  old.write_text("old")
  code, printed = _run(tmp_path, "--check")
  assert code == 1 and f"{old} is out of date" in printed
  assert _run(tmp_path)[0] == 0
  assert page.exists() and not old.exists()


def test_sweeps_are_on_no_other_page(tmp_path):
  (tmp_path / "README.md").write_text(_EMPTY)
  swept = make_record(preset="a_sweep", metrics={"bound_1": 1.0})
  _write(tmp_path / "results", swept, make_record())
  assert _run(tmp_path)[0] == 0
  pages = [page for page in tmp_path.rglob("*.md")]
  found = [page.name for page in pages if "a_sweep" in page.read_text()]
  assert found == ["sweeps.md"] and len(pages) == 5


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
