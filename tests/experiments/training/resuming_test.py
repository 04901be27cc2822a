"""Runs that stop, resume, grow or end earlier give the same numbers."""

import os
import shutil
import signal

import chex
import jax
import processes
import pytest
import straight_lines

from experiments.run import directory
from experiments.training import checkpoints, loop, train_step, windows


@pytest.mark.parametrize("decay", [0.0, 0.7])
@pytest.mark.long_after_first
def test_without_validation_a_run_resumes_to_the_same_numbers(tmp_path, decay):
  for num_steps in (3, 7):
    state, _ = straight_lines.fit(
      tmp_path / "cut", num_steps, validation=straight_lines.EMPTY, decay=decay
    )
  want, _ = straight_lines.fit(
    tmp_path / "whole", 7, validation=straight_lines.EMPTY, decay=decay
  )
  assert int(state.step) == 7
  assert (state.average is not None) == bool(decay)
  chex.assert_trees_all_equal(
    jax.tree.leaves((state.model, state.opt_state, state.average)),
    jax.tree.leaves((want.model, want.opt_state, want.average)),
  )


def same_runs(one, other):
  """Whether two folders hold the same lines and the same states."""
  assert processes.metrics_of(one) == processes.metrics_of(other)
  states = [
    checkpoints.Checkpoints(x / "checkpoints", straight_lines.score_of)
    for x in (one, other)
  ]
  first, second = (
    x.restore((straight_lines.make()[0], 0.0))[0] for x in states
  )
  chex.assert_trees_all_equal(
    jax.tree.leaves((first.model, first.opt_state)),
    jax.tree.leaves((second.model, second.opt_state)),
  )
  assert states[0].best_step() == states[1].best_step()


CADENCES = {"log_every": 3, "eval_every": 4}


@pytest.fixture(scope="module")
def nine_steps(tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "whole"
  straight_lines.fit(
    workdir, 9, validation=straight_lines.DATASET, config=CADENCES
  )
  return workdir


def test_lines_of_training_have_one_cadence(nine_steps):
  lines = processes.metrics_of(nine_steps)
  places = [(line["split"], line["step"]) for line in lines]
  assert places == [
    ("train", 3), ("validation", 4), ("train", 6), ("validation", 8),
    ("train", 9), ("validation", 9),
  ]  # fmt: skip


@pytest.mark.parametrize("at", [2, 3, 4, 7])
@pytest.mark.long_after_first
def test_a_signal_saves_between_lines(tmp_path, monkeypatch, nine_steps, at):
  """The state is saved at once, and the sums of metrics with it."""
  add = windows.Window.add

  def add_one(window, update, state, *arguments):
    state = add(window, update, state, *arguments)
    if int(state.step) == at and not (tmp_path / "sent").exists():
      (tmp_path / "sent").touch()
      os.kill(os.getpid(), signal.SIGTERM)
    return state

  monkeypatch.setattr(windows.Window, "add", add_one)
  monkeypatch.setattr(windows.Window, "most_steps", lambda window: 1)
  run = tmp_path / "run"
  with pytest.raises(SystemExit) as ended:
    straight_lines.fit(
      run, 9, validation=straight_lines.DATASET, config=CADENCES
    )
  assert ended.value.code == 128 + signal.SIGTERM
  assert checkpoints.Checkpoints(run / "checkpoints", None).last_step() == at
  straight_lines.fit(run, 9, validation=straight_lines.DATASET, config=CADENCES)
  same_runs(run, nine_steps)


def test_a_signal_in_a_validation_ends_it(tmp_path, monkeypatch, nine_steps):
  """The state was saved before; the validation is repeated on resuming."""
  evaluate = train_step.make_evaluate

  def make_interrupted(*arguments, **changes):
    whole = evaluate(*arguments, **changes)

    def measured(*arguments, between):
      os.kill(os.getpid(), signal.SIGTERM)
      return whole(*arguments, between=between)

    return measured

  run = tmp_path / "run"
  with monkeypatch.context() as patched, pytest.raises(SystemExit):
    patched.setattr(train_step, "make_evaluate", make_interrupted)
    straight_lines.fit(
      run, 9, validation=straight_lines.DATASET, config=CADENCES
    )
  assert checkpoints.Checkpoints(run / "checkpoints", None).last_step() == 4
  lines = processes.metrics_of(run)
  assert [(x["split"], x["step"]) for x in lines] == [("train", 3)]
  straight_lines.fit(run, 9, validation=straight_lines.DATASET, config=CADENCES)
  same_runs(run, nine_steps)


def test_a_signal_while_the_last_model_is_saved_ends_the_run(
  tmp_path, monkeypatch, nine_steps
):
  """Nothing follows it, such as suites; all is saved."""
  save_best = checkpoints.Checkpoints.save_best

  def save(saved, step, *arguments):
    save_best(saved, step, *arguments)
    if step == 9:
      os.kill(os.getpid(), signal.SIGTERM)

  options = {"validation": straight_lines.DATASET, "config": CADENCES}
  with monkeypatch.context() as patched, pytest.raises(SystemExit) as ended:
    patched.setattr(checkpoints.Checkpoints, "save_best", save)
    straight_lines.fit(tmp_path / "run", 9, **options)
  assert ended.value.code == 128 + signal.SIGTERM
  straight_lines.fit(tmp_path / "run", 9, **options)
  same_runs(tmp_path / "run", nine_steps)


def test_a_goal_that_a_later_step_reached_is_reached_again(
  tmp_path, monkeypatch
):
  """After a damaged state the steps to it are repeated, with their lines."""
  options = {
    "validation": straight_lines.DATASET,
    "config": {**CADENCES, "stop_accuracy": 0.5},
    "score": straight_lines.score_of,
  }
  marks = []
  monkeypatch.setattr(
    directory.Run, "note_resumption", lambda run: marks.append(run)
  )
  straight_lines.fit(tmp_path / "whole", 9, **options)
  marks.clear()
  straight_lines.fit(tmp_path / "whole", 9, **options)
  assert not marks  # a finished run is not resumed
  straight_lines.fit(tmp_path / "run", 9, **options)
  shutil.rmtree(tmp_path / "run" / "checkpoints" / "latest" / "4")
  straight_lines.fit(tmp_path / "run", 9, **options)
  assert len(marks) == 2  # a new run has one, too
  assert processes.metrics_of(tmp_path / "run")[-1]["step"] == 4
  same_runs(tmp_path / "run", tmp_path / "whole")


def test_a_repeated_validation_warns_of_what_training_measured(
  tmp_path, monkeypatch
):
  """Also where no line of training was due, as at step 4 of lines by threes."""
  seen = []

  def warn(metrics):
    seen.append(metrics)
    return []

  options = {
    "validation": straight_lines.DATASET,
    "config": CADENCES,
    "warn": warn,
  }
  straight_lines.fit(tmp_path / "whole", 9, **options)
  first = seen.pop(0)
  with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):

    def interrupted(*arguments, **changes):
      raise KeyboardInterrupt

    patched.setattr(checkpoints.Checkpoints, "save_best", interrupted)
    straight_lines.fit(tmp_path / "run", 9, **options)
  seen.clear()
  straight_lines.fit(tmp_path / "run", 9, **options)
  assert {"loss", "error", "accuracy"} <= set(first)
  assert {name: seen[0].get(name) for name in first} == first


@pytest.mark.parametrize("first", [5, 6, 8])
@pytest.mark.long_after_first
def test_a_lengthened_run_is_as_an_uninterrupted_one(
  tmp_path, nine_steps, first
):
  straight_lines.fit(
    tmp_path / "run", first, validation=straight_lines.DATASET, config=CADENCES
  )
  assert processes.metrics_of(tmp_path / "run")[-1]["step"] == first
  straight_lines.fit(
    tmp_path / "run", 9, validation=straight_lines.DATASET, config=CADENCES
  )
  same_runs(tmp_path / "run", nine_steps)


@pytest.mark.parametrize("chosen", ["last", "best"])
@pytest.mark.long_after_first
def test_a_run_that_ends_before_its_best_model_drops_it(tmp_path, chosen):
  """Its newest state is damaged, and it must end at the one before."""
  score = straight_lines.score_of if chosen == "best" else None
  options = {
    "validation": straight_lines.DATASET,
    "config": CADENCES,
    "score": score,
  }
  state, _ = straight_lines.fit(tmp_path / "whole", 8, **options)
  straight_lines.fit(tmp_path / "run", 9, **options)
  shutil.rmtree(tmp_path / "run" / "checkpoints" / "latest" / "9")
  _, saved = straight_lines.fit(tmp_path / "run", 8, **options)
  assert saved.best_step() == 8
  step, model, _ = saved.restore_best(straight_lines.Line())
  assert (step, model.w[...]) == (8, state.model.w[...])
  # The line of training of a last step is written when it becomes the last.
  run, whole = (
    sorted(processes.metrics_of(tmp_path / x), key=str)
    for x in ("run", "whole")
  )
  assert run == whole


@pytest.mark.long_after_first
@pytest.mark.parametrize("at", [2, 5, 6])
def test_a_signal_saves_no_state_to_return_to(tmp_path, monkeypatch, at):
  """Where a run can return to a saved state, only steps decide which ones."""
  add = windows.Window.add
  config = {"log_every": 3, "eval_every": 9, "checkpoint_every": 4}

  def add_one(window, update, state, *arguments):
    state = add(window, update, state, *arguments)
    if int(state.step) == at:
      os.kill(os.getpid(), signal.SIGTERM)
    return state

  monkeypatch.setattr(windows.Window, "add", add_one)
  monkeypatch.setattr(windows.Window, "most_steps", lambda window: 1)
  with pytest.raises(SystemExit):
    straight_lines.fit(
      tmp_path,
      9,
      validation=straight_lines.EMPTY,
      config=config,
      restart=lambda state: state,
    )
  saved = checkpoints.Checkpoints(tmp_path / "checkpoints", None)
  assert saved.last_step() == at // 4 * 4


@pytest.mark.parametrize(
  ("minutes", "restart", "want"),
  [
    (1e-9, None, [0, 1, 2, 3, 4, 5]),
    (60, None, [0, 5]),
    (0, None, [0, 5]),
    (1e-9, lambda state: state, [0, 5]),  # time must not change numbers
  ],
)
@pytest.mark.long_after_first
def test_a_state_is_saved_after_some_minutes(
  tmp_path, monkeypatch, minutes, restart, want
):
  steps = []
  series = checkpoints.Checkpoints
  save = series.save

  def note(saved, step, state, *window):
    steps.append(step)
    save(saved, step, state, *window)

  monkeypatch.setattr(series, "save", note)
  config = {"checkpoint_minutes": minutes, "log_every": 1, "eval_every": 9}
  straight_lines.fit(
    tmp_path / "run",
    5,
    validation=straight_lines.EMPTY,
    config=config,
    restart=restart,
  )
  assert steps == want


@pytest.mark.long_after_first
def test_restarts_before_a_resumption_count_too(tmp_path, monkeypatch):
  monkeypatch.setattr(loop, "_MAX_RESTARTS", 3)
  answers = iter([True, True])
  options = {
    "validation": straight_lines.EMPTY,
    "config": {"log_every": 2},
    "restart": lambda state: state,
  }
  straight_lines.fit(
    tmp_path, 4, diverged=lambda _: next(answers, False), **options
  )
  with pytest.raises(windows.Diverged, match="training stopped"):
    straight_lines.fit(tmp_path, 8, diverged=lambda _: True, **options)
  lines = processes.metrics_of(tmp_path)
  counts = [x["restarts"] for x in lines if x["split"] == "restart"]
  assert counts == [1, 2, 3]
