"""The folder of a run: who may train in it, and with which flags."""

import json
import subprocess
import sys
from unittest import mock

import pytest
from run_cases import given

from experiments.flags import runs
from experiments.run import atomic_files, directory, provenance

# Takes the lock of a folder, says so, and waits to be killed.
_HOLD = """
import pathlib, sys, time
from experiments.run import atomic_files
file = atomic_files.locked(pathlib.Path(sys.argv[1]) / "lock")
print("held", flush=True)
time.sleep(60)
"""


def claim(workdir, *words, shortest=None):
  """Begins a run, as one that has written metrics, or resumes it."""
  with given(*words):
    run = directory.Run(workdir)
    run.lock(runs.invocation(), shortest=shortest and (lambda: shortest))
    run.record_length()
  (workdir / "metrics.jsonl").write_text('{"step": 1, "split": "train"}\n')
  return run


def test_a_folder_has_one_run_at_a_time(tmp_path):
  run = claim(tmp_path)
  with pytest.raises(ValueError, match="another process.*another workdir"):
    claim(tmp_path)
  del run
  claim(tmp_path)


def test_a_folder_of_runs_is_no_run(tmp_path):
  claim(tmp_path / "a")
  (tmp_path / "a" / "checkpoints").mkdir()
  claim(tmp_path)


def test_a_folder_with_a_layer_is_a_run(tmp_path):
  latest = tmp_path / "layer_1" / "checkpoints" / "latest"
  (latest / "0").mkdir(parents=True)
  assert not directory.Run(tmp_path).has_earlier_phase()
  (latest / "5").mkdir()
  with pytest.raises(ValueError, match="flags.cfg is missing"):
    claim(tmp_path)


@pytest.mark.parametrize(
  "saved", ["0", "0.partial", "0.replaced", "2", "2.partial"]
)
def test_a_run_without_an_update_takes_other_flags(tmp_path, saved):
  with given("--num_steps=5"):
    directory.Run(tmp_path).lock(runs.invocation())
  (tmp_path / "checkpoints" / "latest" / saved).mkdir(parents=True)
  with given("--num_steps=5", "--seed=3"):
    run = directory.Run(tmp_path)
    if saved in ("0", "0.partial"):
      run.lock(runs.invocation())
      assert run.flags()["seed"] == 3
    else:
      with pytest.raises(
        ValueError, match="other flags: --seed=0 is now --seed=3"
      ):
        run.lock(runs.invocation())


def test_other_flags_are_refused_before_the_lock(tmp_path):
  claim(tmp_path, "--num_steps=5")
  before = {x.name: x.read_bytes() for x in tmp_path.iterdir()}
  with given("--num_steps=7", "--batch_size=99"):
    with pytest.raises(
      ValueError,
      match="other flags: --batch_size=128 is now --batch_size=99. .*flags.cfg",
    ):
      directory.Run(tmp_path).refuse_others(runs.invocation())
  with given("--num_steps=7"):  # a length is for `lock` to judge
    directory.Run(tmp_path).refuse_others(runs.invocation())
    other = runs.invocation()._replace(experiment="train_other")
    with pytest.raises(ValueError, match="not of train_other"):
      directory.Run(tmp_path).refuse_others(other)
  (tmp_path / "flags.cfg").unlink()  # `lock` restores it
  with given("--num_steps=7", "--batch_size=99"):
    directory.Run(tmp_path).refuse_others(runs.invocation())
  before.pop("flags.cfg")
  assert {x.name: x.read_bytes() for x in tmp_path.iterdir()} == before


def test_another_length_is_recorded_after_a_check(tmp_path):
  claim(tmp_path, "--num_steps=5")
  before = {x.name: x.read_bytes() for x in tmp_path.iterdir()}

  def refuse():
    raise ValueError("other data")

  with given("--num_steps=7"):
    with pytest.raises(ValueError, match="other data"):
      directory.Run(tmp_path).lock(runs.invocation(), check=refuse)
    run = directory.Run(tmp_path)
    run.lock(runs.invocation())
  assert run.lengthened_from == [5]
  assert {x.name: x.read_bytes() for x in tmp_path.iterdir()} == before
  run.record_length()
  assert "--num_steps=7\n" in (tmp_path / "flags.cfg").read_text()


def test_a_longer_run_does_not_keep_an_edited_flag(tmp_path):
  claim(tmp_path, "--num_steps=5")
  path = tmp_path / "flags.cfg"
  before = path.read_text()
  path.write_text(before + "--batch_size=3\n")
  assert claim(tmp_path, "--num_steps=7").lengthened_from == [5]
  assert path.read_text() == before.replace("num_steps=5", "num_steps=7")


def test_a_killed_process_leaves_its_folder_free(tmp_path):
  command = [sys.executable, "-c", _HOLD, str(tmp_path)]
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
    assert other.stdout.readline() == "held\n"
    with pytest.raises(ValueError, match="another process trains"):
      claim(tmp_path)
    other.kill()
    other.wait()
    claim(tmp_path)


@pytest.mark.parametrize(
  ("place", "fault"),
  [
    ("file", r"file is a file; give a folder"),
    ("file/run", r"cannot be kept in .* \(.+\); give another folder"),
    ("n" * 300, r"cannot be kept in .* \(.+\); give another folder"),
  ],
)
def test_a_folder_that_cannot_be_made_is_named(tmp_path, place, fault):
  (tmp_path / "file").touch()
  with pytest.raises(ValueError, match=rf"{fault} \(--workdir\)"):
    claim(tmp_path / place)


def test_systems_without_locks_train_all_the_same(tmp_path):
  none = mock.Mock(side_effect=NotImplementedError("no flock here"))
  with mock.patch.object(atomic_files.filelock.FileLock, "acquire", none):
    both = claim(tmp_path), claim(tmp_path)
  assert len(both) == 2


def test_changed_flags_are_named(tmp_path):
  claim(tmp_path, "--deterministic", "--stop_accuracy=0.5")
  with pytest.raises(ValueError) as caught:
    claim(tmp_path, "--nodeterministic", "--checkpoint_every=5", "--data_dir=x")
  for part in (
    "--deterministic is now --nodeterministic",
    "--stop_accuracy=0.5 is now unset",
    "checkpoint_every unset is now --checkpoint_every=5",
  ):
    assert part in str(caught.value)
  assert "seed" not in str(caught.value) and "_dir" not in str(caught.value)


def test_a_run_of_another_binary_is_named(tmp_path):
  claim(tmp_path)
  path = tmp_path / "provenance.json"
  recorded = json.loads(path.read_text())
  path.write_text(json.dumps({**recorded, "experiment": "train_vae"}))
  with pytest.raises(ValueError, match="a run of train_vae, not of ") as caught:
    claim(tmp_path, "--checkpoint_every=5")
  assert "checkpoint_every" not in str(caught.value)


def test_a_larger_number_of_steps_lengthens_a_run(tmp_path):
  claim(tmp_path, "--num_steps=5")
  assert claim(tmp_path, "--num_steps=5").lengthened_from == []
  for steps, before in ((7, [5]), (9, [5, 7])):
    assert claim(tmp_path, f"--num_steps={steps}").lengthened_from == before
  run = claim(tmp_path, "--num_steps=9")
  assert run.lengthened_from == [] and run.flags()["num_steps"] == 9
  assert "--num_steps=9\n" in (tmp_path / "flags.cfg").read_text()
  recorded = json.loads((tmp_path / "provenance.json").read_text())
  assert recorded["lengthened_from"] == [5, 7]


def test_a_smaller_number_of_steps_ends_a_run_earlier(tmp_path):
  claim(tmp_path, "--num_steps=9")
  with pytest.raises(ValueError, match="5 updates.*; give --num_steps=5 or mo"):
    claim(tmp_path, "--num_steps=4", shortest=5)
  with pytest.raises(ValueError, match="--seed=0 is now --seed=1"):
    claim(tmp_path, "--num_steps=4", "--seed=1", shortest=5)
  run = claim(tmp_path, "--num_steps=5", shortest=5)
  assert run.shortened_from == [9] and run.lengthened_from == []
  del run
  assert claim(tmp_path, "--num_steps=6", shortest=5).lengthened_from == [5]
  recorded = json.loads((tmp_path / "provenance.json").read_text())
  assert recorded["shortened_from"] == [9]
  assert recorded["flags"]["num_steps"] == 6


@pytest.mark.parametrize(
  "words", [["--num_steps=4"], ["--num_steps=9", "--seed=1"]]
)
def test_a_shorter_or_another_run_is_refused(tmp_path, words):
  claim(tmp_path, "--num_steps=5")
  before = (tmp_path / "flags.cfg").read_text()
  with pytest.raises(ValueError, match="--num_steps=5 is now"):
    claim(tmp_path, *words)
  assert (tmp_path / "flags.cfg").read_text() == before


def test_flags_younger_than_the_run_must_be_at_their_defaults(tmp_path):
  claim(tmp_path)
  path = tmp_path / "flags.cfg"
  lines = path.read_text().splitlines(keepends=True)
  older = [line for line in lines if not line.startswith("--log_every=")]
  assert len(older) == len(lines) - 1
  path.write_text("".join(older))
  claim(tmp_path)
  with pytest.raises(ValueError, match="log_every unset is now --log_every=7"):
    claim(tmp_path, "--log_every=7")


def test_a_run_older_than_a_flag_does_not_resume_otherwise(tmp_path):
  claim(tmp_path)
  path = tmp_path / "provenance.json"
  told = atomic_files.read_json(path)
  told["flags"] |= {"model": "capsnet", "primary_scale": None}
  atomic_files.write_json(path, told)
  claim(tmp_path)
  del told["flags"]["primary_scale"]
  atomic_files.write_json(path, told)
  with pytest.raises(ValueError, match="--primary_scale=1.0 is now unset"):
    claim(tmp_path)


@pytest.mark.parametrize(
  ("word", "name"),
  [
    ("--seed=1", "seed"),
    ("-seed", "seed"),
    ("--data_dir=a=b", "data_dir"),
    ("--deterministic=false", "deterministic"),
    ("--nodeterministic", "deterministic"),
    ("--notes=1", "notes"),  # not a flag
  ],
)
def test_words_name_flags(word, name):
  assert runs.flag_name(word) == name


@pytest.mark.parametrize(
  ("printed", "commit", "dirty"),
  [("", "", False), ("x", "x", True), (None, "unknown", None)],
)
def test_dirty_is_unknown_without_git(printed, commit, dirty):
  with given(), mock.patch.object(provenance, "_git", lambda *_: printed):
    told = provenance.record(runs.invocation())
  assert (told["commit"], told["dirty"]) == (commit or "unknown", dirty)


def test_a_missing_git_tells_nothing(monkeypatch, tmp_path):
  monkeypatch.setenv("PATH", str(tmp_path))
  assert provenance._git("status") is None


def test_a_new_length_keeps_the_command_that_began_the_run(tmp_path):
  claim(tmp_path, "--num_steps=5")
  path = tmp_path / "provenance.json"
  record = json.loads(path.read_text())
  began = "python -m experiments.train --flagfile=a.cfg"
  for length in ("--num_steps=5", "--num_steps 5"):
    given_first = f"{began} {length} --tags='a b'"
    path.write_text(json.dumps({**record, "command": given_first}))
    claim(tmp_path, "--num_steps=7").record_length()
    command = json.loads(path.read_text())["command"]
    assert command == f"{began} '--tags=a b' --num_steps=7"
    claim(tmp_path, "--num_steps=5", shortest=1).record_length()


def test_weights_that_a_run_started_from_may_be_moved(tmp_path, caplog):
  for folder in ("a", "b"):
    (tmp_path / folder / "source").mkdir(parents=True)
  run = tmp_path / "run"
  claim(run, f"--start_from={tmp_path}/a/source")
  before = (run / "flags.cfg").read_text()
  (tmp_path / "a" / "source").rmdir()
  claim(run, f"--start_from={tmp_path}/b/source")
  assert (run / "flags.cfg").read_text() == before and not caplog.text
  with pytest.raises(ValueError, match="start_from"):
    claim(run, f"--start_from={tmp_path}/b")


def test_restarts_are_those_of_all_phases(tmp_path):
  for folder, splits in (
    ("", ("train", "restart")),
    ("layer_1", ("restart", "restart", "validation")),
    ("layer_2", ("train",)),
  ):
    (tmp_path / folder).mkdir(exist_ok=True)
    lines = [json.dumps({"step": 1, "split": split}) for split in splits]
    path = tmp_path / folder / "metrics.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
  run = directory.Run(tmp_path)
  assert (run.restarts(), run.restarts_of_phases()) == (1, 3)


def test_code_of_a_resumption_in_the_middle_is_recorded(tmp_path, monkeypatch):
  def resumed(commit, dirty, trains=True):
    monkeypatch.setattr(provenance, "commit", lambda: commit * 40)
    monkeypatch.setattr(provenance, "is_dirty", lambda: dirty)
    run = claim(tmp_path, "--num_steps=5")
    if trains:
      run.note_resumption()
    return run.summary({"metrics": {}})

  assert "resumptions" not in resumed("a", False)
  assert "resumptions" not in resumed("a", False)
  assert "resumptions" not in resumed("b", True, trains=False)
  resumed("b", True)
  found = resumed("a", False)
  assert (found["commit"], found["dirty"]) == ("a" * 40, False)
  codes = [(x["commit"][0], x["dirty"]) for x in found["resumptions"]]
  assert codes == [("b", True), ("a", False)]
  with pytest.raises(ValueError, match="by code that no commit holds"):
    provenance.require_committed(tmp_path)
