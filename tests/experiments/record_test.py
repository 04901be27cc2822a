"""Records are files that make can tell missing from made."""

import json
import re
import subprocess

import processes
import pytest

from experiments.records import records
from experiments.run import directory, provenance

MAKE = ("make", "--no-print-directory", "-o", ".venv/installed")


def listed():
  printed = subprocess.run(
    [*MAKE, "-s", "list-records"],
    cwd=processes.ROOT, capture_output=True, text=True, check=True,
  ).stdout  # fmt: skip
  return dict(line.split(": ", 1) for line in printed.splitlines())


def test_every_target_names_a_preset_a_seed_and_its_minutes():
  for name, command in listed().items():
    binary, *words = command.split()
    assert (processes.ROOT / f"experiments/{binary}.py").exists(), name
    flags = dict(word.removeprefix("--").partition("=")[::2] for word in words)
    assert (processes.ROOT / flags["flagfile"]).exists(), name
    assert name.endswith(f"-{flags['seed']}"), name
    plan = subprocess.run(
      [*MAKE, "-n", "-W", "Makefile", "-B", f"results/records/{name}.jsonl"],
      cwd=processes.ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert re.search(rf"# {re.escape(name)}: about \d+ minutes", plan), plan


def test_every_record_file_has_a_target():
  folder = processes.ROOT / "results" / "records"
  made = {path.stem for path in folder.glob("*.jsonl")}
  assert made <= listed().keys()


@pytest.fixture
def finished(tmp_path):
  """The folder of a run, complete and evaluated."""
  line = (
    (processes.ROOT / "results/records/vae_mnist-0.jsonl")
    .read_text()
    .splitlines()
  )
  summary = json.loads(line[0])
  run = tmp_path / "run"
  run.mkdir()
  (run / "summary.json").write_text(json.dumps(summary))
  bound = {**summary, "suite": "bound", "metrics": {"bound_100": -1.5}}
  (run / "evaluation.json").write_text(json.dumps({"bound": bound}))
  return run


def record(run, path):
  return processes.Running("record", f"--workdir={run}", f"--out={path}").wait()


def test_a_run_and_its_evaluations_are_recorded(finished, tmp_path):
  path = tmp_path / "results" / "records" / "vae-0.jsonl"
  code, printed = record(finished, path)
  assert code == 0, printed
  first, second = records.read(tmp_path / "results")
  assert first["metrics"] == json.loads(
    (finished / "summary.json").read_text()
  )["metrics"]  # fmt: skip
  assert second["suite"] == "bound"
  assert second["metrics"] == {"bound_100": -1.5}


def test_an_evaluation_on_other_data_is_not_recorded(finished, tmp_path):
  path = finished / "evaluation.json"
  evaluations = json.loads(path.read_text())
  evaluations["bound"]["data"] = {"test": 64 * "0"}
  summary = json.loads((finished / "summary.json").read_text())
  summary["data"] = {"test": 64 * "1"}
  (finished / "summary.json").write_text(json.dumps(summary))
  path.write_text(json.dumps(evaluations))
  code, printed = record(finished, tmp_path / "x.jsonl")
  assert code == 1 and "bound is of other data than the run (the te" in printed
  assert not (tmp_path / "x.jsonl").exists()


def test_an_evaluation_of_another_length_is_not_recorded(finished, tmp_path):
  path = finished / "evaluation.json"
  evaluations = json.loads(path.read_text())
  evaluations["bound"]["num_steps"] = 7
  path.write_text(json.dumps(evaluations))
  code, printed = record(finished, tmp_path / "x.jsonl")
  assert code == 1 and "bound is outdated (num_steps was 7, is " in printed
  assert not (tmp_path / "x.jsonl").exists()
  with pytest.raises(ValueError, match="--suite=bound again"):
    directory.Run(finished).read_evaluation("bound")


def test_a_run_whose_suites_failed_is_not_recorded(finished, tmp_path):
  summary = json.loads((finished / "summary.json").read_text())
  summary["failed_suites"] = {"bound": "no memory"}
  (finished / "summary.json").write_text(json.dumps(summary))
  code, printed = record(finished, tmp_path / "x.jsonl")
  assert code == 1 and "suites failed after training (bound: no me" in printed
  assert not (tmp_path / "x.jsonl").exists()


def test_what_is_no_record_is_not_written(finished, tmp_path):
  summary = json.loads((finished / "summary.json").read_text())
  del summary["num_steps"]
  (finished / "summary.json").write_text(json.dumps(summary))
  path = tmp_path / "records" / "vae-0.jsonl"
  code, printed = record(finished, path)
  assert code != 0 and "num_steps" in printed and not path.exists()
  code, printed = record(finished, tmp_path / "vae.json")
  assert code != 0 and ".jsonl" in printed


def test_records_do_not_make_the_code_dirty(tmp_path, monkeypatch):
  folder = tmp_path / "experiments" / "run"
  folder.mkdir(parents=True)
  monkeypatch.setattr(provenance, "__file__", str(folder / "provenance.py"))
  (folder / "provenance.py").touch()
  git = ["git", "-C", tmp_path, "-c", "user.name=n", "-c", "user.email=e"]
  subprocess.run([*git, "init", "-q"], check=True)
  # The repository of another project, in which a copy is installed.
  subprocess.run([*git, "commit", "-qm", "a", "--allow-empty"], check=True)
  assert provenance.commit() is None and provenance.is_dirty() is None
  subprocess.run([*git, "add", "."], check=True)
  subprocess.run([*git, "commit", "-qm", "b"], check=True)
  assert len(provenance.commit()) == 40
  assert provenance.is_dirty() is False
  (tmp_path / "results").mkdir()
  (tmp_path / "results" / "new.jsonl").touch()
  assert provenance.is_dirty() is False
  (folder / "new.py").touch()
  assert provenance.is_dirty() is True


@pytest.mark.parametrize(
  ("dirty", "began", "words"),
  [
    (False, None, None),
    (False, {"dirty": False}, None),
    (True, None, "that `git status` shows"),
    (None, None, "that `git status` shows"),
    (False, {"dirty": True}, "remove this folder"),
  ],
)
def test_what_would_be_refused_is_said_before_training(
  tmp_path, monkeypatch, dirty, began, words
):
  monkeypatch.setattr(provenance, "is_dirty", lambda: dirty)
  if began is not None:
    (tmp_path / "provenance.json").write_text(json.dumps(began))
  if dirty is False:  # what no run began
    provenance.require_committed()
  else:
    with pytest.raises(ValueError, match=words):
      provenance.require_committed()
  if words is None:
    provenance.require_committed(tmp_path)
    return
  with pytest.raises(ValueError, match=words):
    provenance.require_committed(tmp_path)
