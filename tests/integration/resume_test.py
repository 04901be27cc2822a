"""Runs that are killed, interrupted or repeated: real processes and signals."""

import signal
import time

import processes
import pytest

pytestmark = pytest.mark.long
NUM_STEPS = 300
FLAGS = (
  *processes.UNDECODED, f"--num_steps={NUM_STEPS}",
  "--log_every=5", "--checkpoint_every=10",
)  # fmt: skip


@pytest.fixture(scope="module")
def unbroken(train, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "unbroken"
  code, printed = train(workdir, *FLAGS)
  assert code == 0, printed
  return workdir


@pytest.fixture(scope="module")
def resumed(train, stop_at, tmp_path_factory):
  """A run that was stopped in each way, and what its last sitting printed."""
  workdir = tmp_path_factory.mktemp("runs") / "resumed"
  for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
    stop_at(workdir, number)
  code, printed = train(workdir, *FLAGS)
  assert code == 0, printed
  return workdir, printed


@pytest.fixture(scope="module")
def stop_at(start):
  """Starts or resumes a run, and sends it a signal some steps later."""

  def run(workdir, number):
    before = last_step(workdir)
    process = start(workdir, *FLAGS)
    deadline = time.monotonic() + 120
    while last_step(workdir) < before + 35:
      assert not process.has_ended(), process.wait()
      assert time.monotonic() < deadline
      time.sleep(0.005)
    process.send_signal(number)
    code, printed = process.wait()
    assert before + 35 <= last_step(workdir) < NUM_STEPS
    assert not (workdir / "summary.json").exists()
    if number == signal.SIGKILL:
      assert code == -number
      with (workdir / "metrics.jsonl").open("a") as file:
        file.write("{")  # a line cut off by a crash is passed over
      return
    assert code == 128 + number
    stopped = saved_steps(workdir)[-1]  # maybe between two lines
    assert f"stopped at step {stopped}" in printed
    assert last_step(workdir) <= stopped < last_step(workdir) + 5
    if before:
      assert "step 5/" not in printed  # it resumed, and did not start anew

  return run


def saved_steps(workdir):
  """Steps of the saved states to resume from."""
  folder = workdir / "checkpoints" / "latest"
  names = (path.name for path in folder.iterdir())
  return sorted(int(name) for name in names if name.isdigit())


def last_step(workdir):
  return max((m["step"] for m in processes.metrics_of(workdir)), default=0)


def test_a_stopped_run_resumes_to_identical_numbers(unbroken, resumed):
  workdir, printed = resumed
  assert "step 5/" not in printed
  assert processes.metrics_of(workdir) == processes.metrics_of(unbroken)
  summary, want = map(processes.summary_of, (workdir, unbroken))
  for volatile in (summary, want):
    for name in ("seconds", "images_per_second", "command"):
      volatile.pop(name)
  assert summary == want


def test_a_finished_run_repeats_its_answer(train, resumed):
  workdir, _ = resumed
  before = processes.summary_of(workdir)["metrics"]
  code, again = train(workdir, *FLAGS)
  assert code == 0, again
  assert "step 5/" not in again
  assert processes.summary_of(workdir)["metrics"] == before


def test_other_flags_on_an_old_folder_are_named(train, unbroken):
  before = {p: p.stat().st_mtime_ns for p in unbroken.rglob("*") if p.is_file()}
  code, printed = train(unbroken, *FLAGS, "--seed=1", "--leaky")
  assert code == 1
  assert "--seed=0 is now --seed=1" in printed
  assert "--noleaky is now --leaky" in printed
  assert "batch_size" not in printed and "Traceback" not in printed
  after = {p: p.stat().st_mtime_ns for p in unbroken.rglob("*") if p.is_file()}
  assert after == before


def test_infinite_numbers_stop_the_run_and_keep_the_last_good_state(
  train, tmp_path
):
  flags = (*processes.BASELINE, "--log_every=1", "--checkpoint_every=1")
  code, printed = train(tmp_path, *flags, "--learning_rate=3e38")
  assert code == 1
  assert "the loss became infinite or NaN" in printed
  assert "Try a smaller learning_rate" in printed and "Traceback" not in printed
  assert not (tmp_path / "summary.json").exists()
  assert saved_steps(tmp_path) == [0, 1]
  metrics = processes.metrics_of(tmp_path)
  assert [line["step"] for line in metrics] == [1]


def test_training_stops_at_an_accuracy_and_stays_there(train, tmp_path):
  flags = (
    *processes.BASELINE, "--num_steps=1000", "--eval_every=20",
    "--stop_accuracy=0.3", "--learning_rate=0.003",
  )  # fmt: skip
  code, printed = train(tmp_path, *flags)
  assert code == 0, printed
  metrics = processes.summary_of(tmp_path)["metrics"]
  assert metrics["validation_accuracy"] >= 0.3
  assert metrics["best_step"] < 1000
  lines = (tmp_path / "metrics.jsonl").read_text()
  seconds = processes.summary_of(tmp_path)["seconds"]
  code, printed = train(tmp_path, *flags)
  assert code == 0, printed
  assert (tmp_path / "metrics.jsonl").read_text() == lines
  assert processes.summary_of(tmp_path)["seconds"] == seconds
