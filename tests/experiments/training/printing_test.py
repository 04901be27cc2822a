"""Lines of a run's progress."""

import pytest

from experiments.training import printing


@pytest.mark.parametrize("num_steps", [1, 7, 1000, 300_000])
def test_a_run_prints_few_lines_and_the_last_one(capsys, num_steps):
  with printing.Lines(0, num_steps) as lines:
    for step in range(1, num_steps + 1):
      lines.move(step)
      if step % 20 == 0 or step == num_steps:
        lines.add(step, "train", {"loss": 0.5}, 123.0)
      if step % 18 == 0 or step == num_steps:
        lines.add(step, "validation", {"accuracy": 0.25})
  printed = capsys.readouterr().out.splitlines()
  assert len(printed) <= 28
  end = f"step {num_steps}/{num_steps}"
  assert printed[-2:] == [
    f"{end} train: loss 0.5 (123 images/s)", f"{end} validation: accuracy 0.25"
  ]  # fmt: skip
  steps = [int(line.split()[1].split("/")[0]) for line in printed]
  assert steps == sorted(steps)


def test_a_slow_run_prints_each_minute(capsys, monkeypatch):
  now = [0.0]
  monkeypatch.setattr(printing.time, "monotonic", lambda: now[0])
  with printing.Lines(0, 10_000) as lines:
    for step in range(1, 9):
      now[0] += 31.0
      lines.add(step, "train", {"loss": 1.0})
    printed = capsys.readouterr().out.split()
  steps = [word for word in printed if word.endswith("/10000")]
  assert steps == ["1/10000", "3/10000", "5/10000", "7/10000"]


def test_a_warning_comes_after_the_lines_before_it(capsys):
  with printing.Lines(0, 1000) as lines:
    lines.add(1, "train", {"loss": 1.0})
    lines.add(2, "train", {"loss": 0.5})  # not yet due
    assert "step 2/" not in capsys.readouterr().out
    lines.warn("stopped")
    printed = capsys.readouterr()
    assert "step 2/1000" in printed.out and "stopped" in printed.err
