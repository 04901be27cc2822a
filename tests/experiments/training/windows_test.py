"""Sums of metrics, which do not depend on how steps are divided."""

import json

import numpy as np
import pytest

from experiments.training import train_step, windows

VALUES = np.random.default_rng(0).uniform(0, 1, 40).astype(np.float32)
ZEROS = {"loss": np.zeros((), np.float32)}


def add(state, totals, images, labels, count):
  """One value after the other is added; the state is their number."""
  total = totals["loss"]
  for value in VALUES[state : state + count]:
    total = np.float32(total + value)
  return state + count, {"loss": total}


UPDATE = train_step.Update(add, lambda *arguments: ZEROS)


@pytest.mark.parametrize("cuts", [[40], [1, 39], [7] * 5 + [5], [1] * 40])
def test_sums_are_the_same_in_any_calls_and_processes(cuts):
  want = windows.Window(ZEROS, {})
  want.add(UPDATE, 0, None, None, 40)
  window, state = windows.Window(ZEROS, {}), 0
  for count in cuts:
    state = window.add(UPDATE, state, None, None, count)
    record = json.loads(json.dumps(window.record()))
    window = windows.Window(ZEROS, record)  # as a process that resumes
  assert window.means() == want.means()
  assert window.means()["loss"] == pytest.approx(np.mean(VALUES), rel=1e-6)


def test_a_new_window_has_no_means():
  window = windows.Window(ZEROS, {})
  window.add(UPDATE, 0, None, None, 3)
  window.clear()
  assert (window.means(), window.record(), window.rate()) == ({}, None, 0.0)


def test_sums_of_other_metrics_are_not_taken_over():
  window = windows.Window(ZEROS, {"window_steps": 3, "error": 1.0})
  assert window.means() == {}


def test_calls_grow_to_seconds(monkeypatch):
  now = iter([0.0, 5.0, 5.0, 5.02])
  monkeypatch.setattr(windows.time, "monotonic", lambda: next(now))
  window = windows.Window(ZEROS, {})
  assert window.most_steps() == 1
  window.add(UPDATE, 0, None, None, 1)
  assert window.most_steps() == 1 and window.first == 5.0  # it compiled
  assert window.rate() == 1 / 5.0
  window.add(UPDATE, 1, None, None, 1)
  assert window.most_steps() == round(windows._CALL / 0.02)
  assert window.rate() == pytest.approx(50)  # without what compiled


def test_compiles_once_before_the_first_update(monkeypatch):
  done = []
  monkeypatch.setattr(windows.allocator, "trim", lambda: done.append("trim"))

  def noted(state, totals, images, labels, count):
    done.append(count)
    return add(state, totals, images, labels, count)

  window, update = windows.Window(ZEROS, {}), UPDATE._replace(add=noted)
  state = window.add(update, 0, None, None, 2)
  assert window.add(update, state, None, None, 3) == 5
  assert done == ["trim", 0, "trim", 2, 3]
