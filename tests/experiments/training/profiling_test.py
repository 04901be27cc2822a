"""Traces of updates."""

import jax
import jax.numpy as jnp
import processes
import pytest

from experiments.training import profiling


def files(folder):
  return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_one_trace_spans_several_calls(tmp_path):
  said, counts = [], []
  with profiling.Trace(tmp_path, 3, said.append) as trace:
    for number in range(3):
      count = trace.begin(2)
      jax.block_until_ready(jnp.ones(number + 1) + 1)
      assert not said or number == 2
      trace.end(count)
      counts.append(count)
  assert counts == [2, 1, 2]
  assert said == [f"trace of 3 updates in {tmp_path}"]
  names = files(tmp_path)
  assert "perfetto_trace.json.gz" in names
  assert sum(name.endswith(".xplane.pb") for name in names) == 1


def test_a_trace_that_is_cut_short_is_kept(tmp_path):
  said = []
  with pytest.raises(KeyboardInterrupt):
    with profiling.Trace(tmp_path, 9, said.append) as trace:
      trace.end(trace.begin(2))
      raise KeyboardInterrupt
  assert said == [f"trace of 2 updates in {tmp_path}"]
  assert files(tmp_path)


def test_without_steps_nothing_is_traced(tmp_path):
  with profiling.Trace(tmp_path, 0, print) as trace:
    assert trace.begin(7) == 7
    trace.end(7)
  assert not files(tmp_path)


@pytest.mark.long
def test_a_run_is_traced(tmp_path):
  words = (
    "--num_steps=6",
    "--log_every=3",
    "--profile=2",
    *processes.UNDECODED,
  )
  run = processes.Running("train_capsnet", f"--workdir={tmp_path}/run", *words)
  code, printed = run.wait()
  assert code == 0, printed
  assert "trace of 2 updates in" in printed
  assert list((tmp_path / "run" / "trace").rglob("*.xplane.pb"))
  assert "profile" not in processes.summary_of(tmp_path / "run")["flags"]
