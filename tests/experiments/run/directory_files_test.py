"""Damaged and missing files of a run: messages, and what is kept."""

import concurrent.futures
import json
import os
import shutil
import signal

import processes
import pytest
from run_cases import given

from experiments.flags import runs
from experiments.run import atomic_files, directory, provenance

LINES = [
  {"step": step, "split": "train", "images_per_second": float(step)}
  for step in (1, 2, 3)
]
GARBAGE = {
  "binary": b"\xff\xfe\0",
  "text": b"]x[",
  "empty": b"",
  "missing": None,
}


@pytest.fixture
def run(tmp_path):
  """A run that was begun with --seed=1."""
  with given("--seed=1"):
    begun = directory.Run(tmp_path)
    begun.lock(runs.invocation())
    begun.rewind(0)
    for line in LINES:
      begun.log(**{"metrics": {}, **split(line)})
    begun.close()
  return tmp_path


def test_writing_that_is_cut_off_leaves_the_old_file(tmp_path, monkeypatch):
  path = tmp_path / "summary.json"
  atomic_files.write_json(path, {"step": 1})

  def cut_off(file):
    os.truncate(file, 5)
    raise KeyboardInterrupt

  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(os, "fsync", cut_off)
    atomic_files.write_json(path, {"step": 2})
  assert atomic_files.read_json(path) == {"step": 1}
  atomic_files.write_json(path, {"step": 3})
  assert atomic_files.read_json(path) == {"step": 3}
  assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
  path, seen = tmp_path / "flags.cfg", []
  atomic_files.write_whole(path, "old")

  def synced(file):
    seen.append((os.fstat(file).st_size, path.read_text()))

  monkeypatch.setattr(os, "fsync", synced)
  atomic_files.write_whole(path, "newer")
  assert seen == [(5, "old")] and path.read_text() == "newer"


def split(line):
  values = dict(line)
  step, kind = values.pop("step"), values.pop("split")
  return {"step": step, "split": kind, "metrics": values}


def claim(workdir, *words):
  with given(*words):
    again = directory.Run(workdir)
    again.lock(runs.invocation())
  return again


def harm(path, content):
  path.unlink()
  if content is not None:
    path.write_bytes(content)


def contents(folder):
  return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("kind", GARBAGE)
def test_provenance_is_written_anew_and_what_is_lost_is_unknown(
  run, kind, caplog
):
  path = run / "provenance.json"
  before = json.loads(path.read_text())
  harm(path, GARBAGE[kind])
  with given("--seed=1"):
    with pytest.raises(ValueError, match="provenance.json is .*training"):
      directory.Run(run).flags()
    again = directory.Run(run)
    again.lock(runs.invocation())
    assert again.flags() == before["flags"]
    again.write_summary(again.summary({"metrics": {}}))
    summary = again.read_summary()
  assert (summary["commit"], summary["device"]) == ("unknown", "unknown")
  assert summary["commit_at_end"] == before["commit"]
  assert str(path) in caplog.text
  if GARBAGE[kind] is not None:
    aside = run / "provenance.json.damaged"
    assert aside.read_bytes() == GARBAGE[kind]


@pytest.mark.parametrize("kind", [*GARBAGE, "flipped", "other"])
def test_flags_are_taken_from_provenance_where_they_are_lost(run, kind, caplog):
  path = run / "flags.cfg"
  before = path.read_text()
  others = {
    "flipped": before.replace("--seed=1", "--seed=9").encode(),
    "other": before.replace("--seed", "--reed").encode(),
  }
  harm(path, (others | GARBAGE)[kind])
  untouched = contents(run)
  with pytest.raises(ValueError, match="--seed was 1, is 2|--seed=9 is now"):
    claim(run, "--seed=2")
  assert contents(run) == untouched
  claim(run, "--seed=1")
  assert path.read_text() == before
  assert str(path) in caplog.text


def test_where_nothing_tells_the_flags_none_are_made_up(run):
  for name in ("flags.cfg", "provenance.json"):
    (run / name).unlink()
  untouched = contents(run)
  with pytest.raises(
    ValueError, match="flags.cfg is missing.*another workdir.*prov"
  ):
    claim(run, "--seed=1")
  assert contents(run) == untouched


def test_flags_in_provenance_are_held_to_flags_cfg(run, caplog):
  path = run / "provenance.json"
  before = json.loads(path.read_text())
  wrong = {**before, "commit": "abc", "flags": {**before["flags"], "seed": 3}}
  path.write_text(json.dumps(wrong))
  claim(run, "--seed=1")
  now = json.loads(path.read_text())
  assert (now["flags"], now["commit"]) == (before["flags"], "abc")
  assert "provenance.json is damaged" in caplog.text


@pytest.mark.parametrize(
  "line",
  [b"\xff\xfe", b"[1]", b"7", b'{"step": "x", "split": "train"}', b"{",
   b'{"step": 2}', b'{"step": 2, "split": "train", "loss": "1"}'],
)  # fmt: skip
def test_damaged_lines_of_metrics_are_named_and_kept_aside(run, line, caplog):
  path = run / "metrics.jsonl"
  lines = path.read_bytes().split(b"\n")
  lines[1] = line
  harmed = b"\n".join(lines)
  path.write_bytes(harmed)
  again = claim(run, "--seed=1")
  assert again.metrics() == [LINES[0], LINES[2]]
  assert again.images_per_second() == 2
  again.rewind(3)
  again.close()
  assert f"{path}: lines 2 are damaged" in caplog.text
  assert (run / "metrics.jsonl.damaged").read_bytes() == harmed
  assert again.metrics() == [LINES[0], LINES[2]]


def test_a_line_cut_off_by_a_crash_is_no_damage(run, caplog):
  path = run / "metrics.jsonl"
  path.write_bytes(path.read_bytes()[:-5])
  again = claim(run, "--seed=1")
  again.rewind(2)
  again.close()
  assert again.metrics() == LINES[:2]
  assert not caplog.text


@pytest.mark.parametrize("kind", ["empty", "missing"])
def test_lost_metrics_are_told(run, kind, caplog):
  harm(run / "metrics.jsonl", GARBAGE[kind])
  (run / "checkpoints").mkdir()
  again = claim(run, "--seed=1")
  again.rewind(3)
  again.close()
  assert "metrics.jsonl has no lines up to step 3" in caplog.text
  assert again.images_per_second() is None


@pytest.mark.parametrize(
  "content", [b"", b"\xff\xfe\0", b"]x[", b"[]", b'"x"', b"3", b"{}"]
)
def test_a_damaged_summary_is_named_with_its_remedy(run, content):
  path = run / "summary.json"
  path.write_bytes(content)
  with pytest.raises(ValueError) as caught:
    directory.Run(run).read_summary()
  assert f"{path} is damaged (" in str(caught.value)
  assert "repeat the training command" in str(caught.value)


def test_a_run_that_never_was_is_told_from_one_that_did_not_end(run):
  with pytest.raises(ValueError, match="no run was completed there"):
    directory.Run(run).read_summary()
  with pytest.raises(ValueError, match="typo does not exist; give the folder"):
    directory.Run(run / "typo").read_summary()
  with pytest.raises(ValueError, match="typo does not exist; give the folder"):
    directory.Run(run / "typo").read_evaluation("views")


def test_a_damaged_evaluation_makes_room_for_the_next(run, caplog):
  path = run / "evaluation.json"
  path.write_bytes(b"\xff{")
  one = directory.Run(run)
  with pytest.raises(ValueError, match="evaluation.json is damaged.*--suite=x"):
    one.read_evaluation("x")
  one.write_evaluation("x", {"metrics": {}})
  assert one.read_evaluation("x") == {"metrics": {}}
  assert (run / "evaluation.json.damaged").read_bytes() == b"\xff{"
  assert str(path) in caplog.text


FLAGS = (*processes.BASELINE, "--num_steps=40", "--eval_every=10")


@pytest.fixture(scope="module")
def unbroken(train, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "unbroken"
  code, printed = train(workdir, *FLAGS)
  assert code == 0, printed
  return workdir


def numbers_of(workdir):
  summary = processes.summary_of(workdir)
  return {name: summary[name] for name in ("metrics", "num_steps", "flags")}


def harm_much(workdir, binary):
  """Something in nearly every file, so that each has a second to turn to."""
  (workdir / "flags.cfg").write_bytes(b"\0" + binary)
  (workdir / "summary.json").write_bytes(binary)
  latest = workdir / "checkpoints" / "latest"
  newest = max(latest.iterdir(), key=lambda path: int(path.name))
  shutil.rmtree(newest / "default")
  with (workdir / "metrics.jsonl").open("ab") as file:
    file.write(binary + b"\n")


@pytest.mark.long
def test_a_run_with_many_damaged_files_ends_as_an_unbroken_one(
  train, unbroken, tmp_path
):
  workdir = shutil.copytree(unbroken, tmp_path / "run")
  harm_much(workdir, b"\xff\xfe")
  code, printed = train(workdir, "--suite=accuracy", binary="evaluate")
  assert code == 1 and "summary.json is damaged" in printed
  code, printed = train(workdir, *FLAGS)  # as it says
  assert code == 0 and "Traceback" not in printed, printed
  for words in (
    "flags.cfg is damaged", "latest/40 (it has no folder default)",
    "metrics.jsonl: lines",
  ):  # fmt: skip
    assert words in printed
  assert numbers_of(workdir) == numbers_of(unbroken)
  assert processes.metrics_of(workdir) == processes.metrics_of(unbroken)


@pytest.mark.long
def test_a_run_without_its_states_is_not_started_again(
  train, unbroken, tmp_path
):
  workdir = shutil.copytree(unbroken, tmp_path / "run")
  shutil.move(workdir / "checkpoints" / "latest", tmp_path / "latest")
  before = contents(workdir)
  code, printed = train(workdir, *FLAGS)
  assert code == 1 and "restore its folder checkpoints/latest" in printed, (
    printed
  )
  assert contents(workdir) == before
  shutil.move(tmp_path / "latest", workdir / "checkpoints" / "latest")
  code, printed = train(workdir, *FLAGS)
  assert code == 0, printed
  assert numbers_of(workdir) == numbers_of(unbroken)


@pytest.mark.long
def test_an_evaluation_trusts_no_name_and_no_cache_of_a_run(
  start, unbroken, tmp_path
):
  workdir = shutil.copytree(unbroken, tmp_path / "run")
  cache = tmp_path / "cache"
  flags = workdir / "flags.cfg"
  lines = flags.read_text().splitlines()
  lines = [x for x in lines if not x.startswith("--compilation_cache")]
  lines.append(f"--compilation_cache={cache}")
  flags.write_text("\n".join(lines) + "\n")
  code, printed = start(workdir, binary="evaluate").wait()
  assert code == 0, printed
  assert not cache.exists()
  path = workdir / "summary.json"
  summary = processes.summary_of(workdir)
  for name in ("run.directory", 3):
    path.write_text(json.dumps({**summary, "experiment": name}))
    code, printed = start(workdir, binary="evaluate").wait()
    assert code == 1 and "Traceback" not in printed
    assert f"names the experiment {name!r}, which is none of" in printed
  path.write_text(json.dumps({**summary, "flags": {"seed": 5}}))
  code, printed = start(workdir, binary="evaluate").wait()
  assert code == 1 and "--seed was 5, is 0" in printed, printed


@pytest.mark.long
def test_a_kill_before_the_first_checkpoint_loses_nothing(
  start, train, unbroken, tmp_path
):
  process = start(tmp_path, *FLAGS, "--log_every=1")
  while not (tmp_path / "checkpoints" / "latest").exists():
    assert not process.has_ended(), process.wait()
  process.send_signal(signal.SIGKILL)
  process.wait()
  code, printed = train(tmp_path, *FLAGS, "--log_every=1")
  assert code == 0, printed
  want = numbers_of(unbroken)
  assert numbers_of(tmp_path)["metrics"] == want["metrics"]


def test_suites_of_several_processes_are_all_kept(tmp_path):
  """Each of two writers reads what the other has written."""

  def write(kind):
    run = directory.Run(tmp_path)
    for number in range(20):
      run.write_evaluation(f"{kind}_{number}", {"metrics": {"x": number}})

  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    list(pool.map(write, ("one", "other")))
  records = atomic_files.read_json(tmp_path / "evaluation.json")
  assert len(records) == 40
  assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("name", ["num_steps", "seed"])
def test_evaluations_of_another_training_are_outdated(name):
  summary = {"num_steps": 4, "seed": 0}
  assert not directory.outdated(summary, {**summary, "metrics": {}})
  assert directory.outdated(summary, {}).startswith("num_steps was None")
  told = directory.outdated(summary, {**summary, name: 7})
  assert told == f"{name} was 7, is {summary[name]}"


def test_records_hold_the_versions_of_all_that_gives_numbers():
  """Of clusters, probes, matching, resized images and rendered letters too."""
  versions = provenance.versions()
  assert versions.keys() >= {
    "jax", "matplotlib", "numpy", "pillow", "scikit-learn", "scipy"
  }  # fmt: skip
  assert all(versions.values())
