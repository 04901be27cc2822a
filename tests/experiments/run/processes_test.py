"""What processes agree on; here one process stands for each in turn."""

import contextlib
import signal
from concurrent import futures

import jax
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from experiments.flags import hosts
from experiments.run import interrupts, processes


def test_one_process_decides_alone():
  assert processes.count() == 1 and processes.is_first()
  assert processes.devices() == jax.devices()
  assert processes.highest(3, 0) == [3, 0]
  assert processes.by_first(max, [1, 2], key=lambda x: -x) == 1
  assert processes.by_first_patiently(lambda: "done") == "done"
  assert processes.together(lambda: 4) == 4
  processes.require_same("the flags", {"seed": 1})
  with pytest.raises(KeyError):
    processes.by_first({}.__getitem__, "absent")


def test_the_first_process_alone_prints(monkeypatch, capsys):
  with processes.silent_but_first():
    print("first")
  monkeypatch.setattr(jax, "process_index", lambda: 1)
  with processes.silent_but_first():
    print("second")
  print("after")
  assert capsys.readouterr().out == "first\nafter\n"


class _Network:
  """Two processes, of which this one is told what the other one sends."""

  def __init__(self, monkeypatch, index):
    self.index, self.sent, self.theirs = index, [], []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: index)
    monkeypatch.setattr(
      processes.multihost_utils, "broadcast_one_to_all", self._broadcast
    )
    monkeypatch.setattr(
      processes.multihost_utils, "process_allgather", self._gather
    )

  def _broadcast(self, buffer):
    if self.index == 0:
      self.sent.append(buffer)
      return buffer
    theirs = self.theirs.pop(0)
    assert theirs.shape == buffer.shape
    return theirs

  def _gather(self, mine):
    rows = [mine, self.theirs.pop(0)]
    return np.stack(rows if self.index == 0 else rows[::-1])


@contextlib.contextmanager
def _as_process(index):
  with pytest.MonkeyPatch.context() as patch:
    yield _Network(patch, index)


@pytest.mark.parametrize("size", [10, 5000])
def test_the_others_get_the_result_of_the_first(size):
  with _as_process(0) as first:
    assert processes.by_first(bytes, size) == bytes(size)
  with _as_process(1) as second:
    second.theirs = first.sent
    assert processes.by_first(pytest.fail, "called") == bytes(size)


def test_the_others_get_the_error_of_the_first():
  def fail():
    raise FileNotFoundError(2, "gone", "path")

  with _as_process(0) as first, pytest.raises(FileNotFoundError):
    processes.by_first(fail)
  with _as_process(1) as second:
    second.theirs = first.sent
    with pytest.raises(FileNotFoundError, match="gone: 'path'"):
      processes.by_first(lambda: None)


def test_the_first_is_alone_within():
  with _as_process(0) as network:
    assert processes.count() == 2

    def within():
      # What would wait for the others does not, nor does what is within it.
      return processes.count(), processes.by_first(processes.highest, 7)

    assert processes.by_first(within) == (1, [7])
    assert processes.count() == 2 and len(network.sent) == 1


def test_an_error_of_another_process_ends_this_one():
  row = np.zeros(1024, np.uint8)
  row[:12] = np.frombuffer(b"OSError: bad", np.uint8)
  with _as_process(0) as network:
    network.theirs = [row]
    with pytest.raises(ValueError, match="process 1 ended: OSError: bad"):
      processes.together(lambda: None)
    network.theirs = [np.zeros(1024, np.uint8)]
    assert processes.together(lambda: 3) == 3
    network.theirs = [row]
    with pytest.raises(
      ValueError, match="process 1 differs from process 0: data"
    ):
      processes.require_same("data", 0)


def test_a_signal_to_one_stops_all():
  with _as_process(0) as network, interrupts.Interrupts() as signals:
    network.theirs = [np.array([0, 4, 0])]
    assert signals.share(3, 1) == [4, 1] and signals.received is None
    network.theirs = [np.array([15])]
    with pytest.raises(interrupts.Interrupted):
      signals.check()
    assert signals.received == 15


@pytest.mark.parametrize(
  ("words", "want"),
  [
    (["--process_id=1"], "--process_id needs --distributed"),
    (["--distributed", "--coordinator_address=host"], "names no port"),
    (
      ["--distributed", "--num_processes=2", "--process_id=2"],
      "--process_id=2 of 2 processes; give 0 to 1",
    ),
  ],
)
def test_flags_that_do_not_fit_are_refused(words, want):
  with flagsaver.flagsaver(), pytest.raises(ValueError, match=f"(?i){want}"):
    flags.FLAGS(["binary", *words])
    hosts.initialise()


def test_what_is_neither_given_nor_found_is_asked_for(monkeypatch):
  def initialise(*arguments, **_):
    assert arguments == (None, 2, None)
    raise ValueError("coordinator_address should be defined.")

  monkeypatch.setattr(jax.distributed, "initialize", initialise)
  with pytest.raises(ValueError, match="Give --coordinator_address=HOST"):
    processes.initialise(num_processes=2)


def test_another_thread_than_the_main_one_has_no_signals():
  def train():
    with interrupts.Interrupts() as signals:
      signals.check()
      return signals.received

  before = signal.getsignal(signal.SIGTERM)
  with futures.ThreadPoolExecutor(1) as pool:
    assert pool.submit(train).result() is None
  assert signal.getsignal(signal.SIGTERM) is before
