"""Training in two processes, which talk to each other over the loopback."""

import signal
import time

import hosts
import numpy as np
import processes
import pytest

pytestmark = pytest.mark.long
_FLAGS = (*processes.SMALL, "--num_steps=300", "--eval_every=100",
          "--log_every=10", "--checkpoint_every=20")  # fmt: skip


def test_every_task_learns_the_same_however_devices_are_divided(tmp_path):
  """Sums over a batch have other orders: float32's rounding, no more."""
  one = hosts.losses(tmp_path, 1, 1)
  fetching = ("capsnet", "capsnet/2", "multimnist", "boltzmann")
  for count, devices, names in (
    (1, 8, fetching),
    (2, 4, ("capsnet/4", *hosts.NAMES)),
  ):
    other = hosts.losses(tmp_path, count, devices, names)
    # Batches of 8 rows are fetched, not the 4001 of the data.
    assert one["fetched"] == 0
    assert 8 * 64 <= other["fetched"] < 4001 * 64 / 8
    # Each device has its own transforms, and what Adam keeps for them.
    assert one["capsnet"]["transforms_here"] == [8, 8, 8]
    divided = names[1] if count == 1 else names[0]
    assert other[divided]["transforms_here"] == [8 // int(divided[-1])] * 3
    # And runs its own of the 16 chains.
    assert one["boltzmann"]["chains_here"] == 16
    assert other["boltzmann"]["chains_here"] == 2
    for task in names:
      want, got = one[task.partition("/")[0]], other[task]
      for mine, theirs in zip(got["updates"], want["updates"], strict=True):
        for name, value in theirs.items():
          assert mine[name] == pytest.approx(value, rel=1e-5, abs=1e-7), (
            count, task, name
          )  # fmt: skip
      for name, values in want.get("measures", {}).items():
        np.testing.assert_allclose(
          got["measures"][name], values, rtol=1e-5, atol=1e-6
        )


@pytest.fixture
def pair(start):
  """Starts two processes that train together in a folder."""

  def run(workdir):
    address = hosts.free_address()
    return [
      start(
        workdir, *_FLAGS, "--distributed", "--num_processes=2",
        f"--coordinator_address={address}", f"--process_id={index}",
      )
      for index in range(2)
    ]  # fmt: skip

  return run


def _at(workdir, step, running):
  """Waits until a run has logged a step."""
  deadline = time.monotonic() + 120
  while not any(x["step"] >= step for x in processes.metrics_of(workdir)):
    assert not running[0].has_ended() and time.monotonic() < deadline
    time.sleep(0.02)


def test_two_processes_train_as_one_and_survive_signals(pair, train, tmp_path):
  code, printed = train(tmp_path / "one", *_FLAGS)
  assert code == 0, printed
  unbroken = [x.wait() for x in pair(tmp_path / "two")]
  assert [code for code, _ in unbroken] == [0, 0], unbroken
  assert "test accuracy" in unbroken[0][1]
  # Process 0 alone says what happens.
  assert "step" not in unbroken[1][1], unbroken[1][1]
  want = processes.metrics_of(tmp_path / "two")
  for mine, theirs in zip(
    want, processes.metrics_of(tmp_path / "one"), strict=True
  ):
    assert mine.keys() == theirs.keys()
    for name in ("step", "epoch"):
      assert mine[name] == theirs[name]
    # Roundings grow with the steps, as they do from machine to machine.
    if mine["split"] == "train" and mine["step"] <= 200:
      assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
  assert len(list((tmp_path / "two" / "figures").iterdir())) >= 3
  words = (tmp_path / "two" / "flags.cfg").read_text()
  assert "--distributed" not in words and "--process_id" not in words

  # SIGTERM to one saves and stops both.
  broken = tmp_path / "broken"
  running = pair(broken)
  _at(broken, 50, running)
  running[1].send_signal(signal.SIGTERM)
  ends = [x.wait() for x in running]
  assert [code for code, _ in ends] == [143, 143], ends
  assert "stopped at step" in ends[0][1] and "the same command" in ends[0][1]

  # One is killed: the other ends by itself, for it can do nothing alone.
  running = pair(broken)
  _at(broken, 150, running)
  running[1].send_signal(signal.SIGKILL)
  began = time.monotonic()
  ends = [x.wait() for x in running]
  assert ends[1][0] == -signal.SIGKILL and ends[0][0] != 0
  assert time.monotonic() - began < 150

  ends = [x.wait() for x in pair(broken)]
  assert [code for code, _ in ends] == [0, 0], ends
  assert "resuming from step" in ends[0][1]
  assert processes.metrics_of(broken) == want

  # One process resumes what two have saved.
  code, printed = train(broken, *_FLAGS, "--num_steps=310")
  assert code == 0, printed
  assert "lengthened from 300 to 310" in printed
