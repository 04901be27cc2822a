"""Which checkpoint of a run is reported, and averages of its weights."""

import os
import shutil
import signal

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import processes
import pytest
from absl import flags
from absl.testing import flagsaver
from flax import nnx

from capjax import data
from experiments.flags import runs  # noqa: F401 (its flags)
from experiments.run import directory
from experiments.training import (
  checkpoints,
  loop,
  placing,
  task,
  train_step,
  windows,
)
from experiments.training.loop_config import LoopConfig

IMAGES = np.arange(20, dtype=np.uint8).reshape(-1, 1, 1, 1)
LABELS = np.arange(20, dtype=np.int32)
DATASET = data.Dataset(IMAGES, LABELS, 20, {})
EMPTY = data.select(DATASET, slice(0, 0))
BATCH_SIZE = 4


class Line(nnx.Module):
  """y = w x, of inputs that are normalised."""

  def __init__(self):
    self.w = nnx.Param(jnp.float32(0.5))
    self.norm = nnx.BatchNorm(1, rngs=nnx.Rngs(0))
    self.eval()

  def __call__(self, images):
    return self.w[...] * self.norm(255 * images[:, 0, 0])[:, 0]


def loss(model, images, labels, key, step):
  del step
  errors = model(images) - labels + 0.1 * jax.random.normal(key)
  value = jnp.mean(jnp.square(errors))
  return value, {"loss": value}


def measure(model, images, labels):
  error = jnp.abs(model(images) - labels)
  return {"error": error, "accuracy": jnp.ones_like(error)}


def options():
  sample = train_step.sample_labelled(lambda key, image: image)
  mesh = placing.data_mesh(BATCH_SIZE)
  return {"sample": sample, "batch_size": BATCH_SIZE, "mesh": mesh}


def make(decay=0.0):
  """The first state of a line, and how it is updated."""
  optimizer = optax.adam(0.1)
  state = train_step.init(
    Line(), optimizer, jax.random.key(0), average=bool(decay)
  )
  update = train_step.make_update(
    loss, optimizer, average_decay=decay, **options()
  )
  return placing.replicate(state, options()["mesh"]), update


def fit(
  workdir,
  num_steps,
  *,
  validation,
  decay=0.0,
  config=(),
  score=None,
  **changes,
):
  """Trains a line; gives its state and its checkpoints."""
  workdir.mkdir(exist_ok=True)
  saved = checkpoints.Checkpoints(workdir / "checkpoints", score)
  state, update = make(decay)
  loop.fit(
    directory.Run(workdir),
    saved,
    state,
    update=update,
    evaluate=train_step.make_evaluate(measure, **options()),
    train=DATASET,
    validation=validation,
    mesh=options()["mesh"],
    config=LoopConfig(
      num_steps, BATCH_SIZE, **{"eval_every": 2, **dict(config)}
    ),
    **changes,
  )
  return saved.restore((make(decay)[0], 0.0))[0], saved


def score_of(metrics, chosen_by="accuracy"):
  """As a task whose models are chosen by a measure scores them."""
  some = task.Task(*[None] * 8, chosen_by=chosen_by)
  return task._score(some, metrics)


@pytest.mark.parametrize(
  ("validations", "want"),
  [
    ([(0.9, 0.3), (0.9, 0.2), (0.9, 0.25)], 2),  # the lowest loss
    ([(0.9, 0.2), (0.9, 0.2), (0.8, 0.1)], 2),  # then the later step
    ([(0.9, 0.3), (0.8, 0.1), (0.7, 0.1)], 1),  # accuracy before all
    ([(0.9, None), (0.9, None), (0.9, None)], 3),  # without a loss
  ],
)
@pytest.mark.parametrize("name", ["loss", "margin_loss"])
def test_ties_go_to_the_lower_loss_then_to_the_later_step(
  tmp_path, validations, want, name
):
  saved = checkpoints.Checkpoints(tmp_path, score_of)
  for step, (accuracy, value) in enumerate(validations, 1):
    metrics = {"accuracy": accuracy} | ({name: value} if value else {})
    saved.save_best(step, {"w": jnp.float32(step)}, metrics)
  again = checkpoints.Checkpoints(tmp_path, score_of)
  assert again.best_step() == want
  step, model, _ = again.restore_best({"w": jnp.float32(0)})
  assert step == float(model["w"]) == want


def test_a_tie_with_a_later_checkpoint_keeps_that(tmp_path):
  """Training comes to a step again after the newest state was damaged."""
  saved = checkpoints.Checkpoints(tmp_path, score_of)
  saved.save_best(4, {"w": jnp.float32(4)}, {"accuracy": 0.5})
  saved.save_best(2, {"w": jnp.float32(2)}, {"accuracy": 0.5})
  assert saved.best_step() == 4


def test_without_validation_the_last_state_is_the_best(tmp_path):
  state, saved = fit(tmp_path / "run", 5, validation=EMPTY)
  step, model, scores = saved.restore_best(Line())
  assert (step, scores) == (5, {})
  chex.assert_trees_all_equal(
    jax.tree.leaves(model), jax.tree.leaves(state.model)
  )
  lines = processes.metrics_of(tmp_path / "run")
  assert {line["split"] for line in lines} == {"train"}


@pytest.mark.parametrize("decay", [0.0, 0.7])
@pytest.mark.long_after_first
def test_without_validation_a_run_resumes_to_the_same_numbers(tmp_path, decay):
  for num_steps in (3, 7):
    state, _ = fit(tmp_path / "cut", num_steps, validation=EMPTY, decay=decay)
  want, _ = fit(tmp_path / "whole", 7, validation=EMPTY, decay=decay)
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
    checkpoints.Checkpoints(x / "checkpoints", score_of) for x in (one, other)
  ]
  first, second = (x.restore((make()[0], 0.0))[0] for x in states)
  chex.assert_trees_all_equal(
    jax.tree.leaves((first.model, first.opt_state)),
    jax.tree.leaves((second.model, second.opt_state)),
  )
  assert states[0].best_step() == states[1].best_step()


CADENCES = {"log_every": 3, "eval_every": 4}


@pytest.fixture(scope="module")
def nine_steps(tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "whole"
  fit(workdir, 9, validation=DATASET, config=CADENCES)
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
  monkeypatch.setattr(windows.Window, "calls_for", lambda window: 1)
  run = tmp_path / "run"
  with pytest.raises(SystemExit) as ended:
    fit(run, 9, validation=DATASET, config=CADENCES)
  assert ended.value.code == 128 + signal.SIGTERM
  assert checkpoints.Checkpoints(run / "checkpoints", None).last_step() == at
  fit(run, 9, validation=DATASET, config=CADENCES)
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
    fit(run, 9, validation=DATASET, config=CADENCES)
  assert checkpoints.Checkpoints(run / "checkpoints", None).last_step() == 4
  lines = processes.metrics_of(run)
  assert [(x["split"], x["step"]) for x in lines] == [("train", 3)]
  fit(run, 9, validation=DATASET, config=CADENCES)
  same_runs(run, nine_steps)


def test_a_repeated_validation_warns_of_what_training_measured(
  tmp_path, monkeypatch
):
  """Also where no line of training was due, as at step 4 of lines by threes."""
  seen = []

  def warn(metrics):
    seen.append(metrics)
    return []

  options = {"validation": DATASET, "config": CADENCES, "warn": warn}
  fit(tmp_path / "whole", 9, **options)
  first = seen.pop(0)
  with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):

    def interrupted(*arguments, **changes):
      raise KeyboardInterrupt

    patched.setattr(checkpoints.Checkpoints, "save_best", interrupted)
    fit(tmp_path / "run", 9, **options)
  seen.clear()
  fit(tmp_path / "run", 9, **options)
  assert {"loss", "error", "accuracy"} <= set(first)
  assert {name: seen[0].get(name) for name in first} == first


@pytest.mark.parametrize("first", [5, 6, 8])
@pytest.mark.long_after_first
def test_a_lengthened_run_is_as_an_uninterrupted_one(
  tmp_path, nine_steps, first
):
  fit(tmp_path / "run", first, validation=DATASET, config=CADENCES)
  assert processes.metrics_of(tmp_path / "run")[-1]["step"] == first
  fit(tmp_path / "run", 9, validation=DATASET, config=CADENCES)
  same_runs(tmp_path / "run", nine_steps)


@pytest.mark.parametrize("chosen", ["last", "best"])
@pytest.mark.long_after_first
def test_a_run_that_ends_before_its_best_model_drops_it(tmp_path, chosen):
  """Its newest state was damaged, and it is told to end at the one before."""
  score = score_of if chosen == "best" else None
  options = {"validation": DATASET, "config": CADENCES, "score": score}
  state, _ = fit(tmp_path / "whole", 8, **options)
  fit(tmp_path / "run", 9, **options)
  shutil.rmtree(tmp_path / "run" / "checkpoints" / "latest" / "9")
  _, saved = fit(tmp_path / "run", 8, **options)
  assert saved.best_step() == 8
  step, model, _ = saved.restore_best(Line())
  assert (step, model.w[...]) == (8, state.model.w[...])
  # The line of training of a last step is written when it becomes the last.
  run, whole = (
    sorted(processes.metrics_of(tmp_path / x), key=str)
    for x in ("run", "whole")
  )
  assert run == whole


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
  fit(tmp_path / "run", 5, validation=EMPTY, config=config, restart=restart)
  assert steps == want


@pytest.mark.parametrize("decay", [0.7, 0.9999])
def test_the_average_is_that_of_numpy(decay):
  """Of weights and running statistics, in any number of calls."""
  state, update = make(decay)
  seen = []
  for _ in range(5):
    state, _ = update(state, IMAGES, LABELS, 1)
    model = state.model
    seen.append(
      [np.float64(x[...]) for x in (model.w, model.norm.mean, model.norm.var)]
    )
    shares = decay ** np.arange(len(seen))[::-1]
    want = [
      np.tensordot(shares / shares.sum(), np.stack(x), 1)
      for x in zip(*seen, strict=True)
    ]
    model = train_step.averaged(state)
    got = [x[...] for x in (model.w, model.norm.mean, model.norm.var)]
    for a, b in zip(got, want, strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-5)
  assert np.ptp([x[0] for x in seen]) > 0.1  # or all averages are alike
  whole, update = make(decay)
  whole, _ = update(whole, IMAGES, LABELS, 5)
  chex.assert_trees_all_close(
    jax.tree.leaves(whole.average), jax.tree.leaves(state.average), rtol=1e-6
  )


def test_without_an_average_the_model_is_as_it_is():
  state, _ = make()
  assert state.average is None
  assert train_step.averaged(state) is state.model


def test_averaged_weights_are_validated_and_reported(tmp_path):
  state, saved = fit(tmp_path / "run", 4, validation=DATASET, decay=0.7)
  step, (model, raw), scores = saved.restore_best((Line(), Line()))
  assert step == 4
  for got, want in (
    (model, train_step.averaged(state)), (raw, state.model)
  ):  # fmt: skip
    chex.assert_trees_all_equal(jax.tree.leaves(got), jax.tree.leaves(want))
  assert abs(model.w[...] - raw.w[...]) > 0.01
  for name, line in (("error", model), ("raw_error", raw)):
    errors = measure(line, train_step.as_intensities(IMAGES), LABELS)["error"]
    assert scores[name] == pytest.approx(float(np.mean(errors)), rel=1e-5)


@pytest.mark.long
def test_a_run_with_averaged_weights_tells_both(train, tmp_path):
  """On one device and, sharing each batch, on two."""
  words = (*processes.UNDECODED, "--average_decay=0.9", "--num_steps=40",
           "--eval_every=20", "--learning_rate=0.01",
           "--num_validation=300")  # fmt: skip
  summaries = []
  for devices in (1, 2):
    code, printed = train(
      tmp_path / str(devices), *words,
      xla_flags=f"--xla_force_host_platform_device_count={devices}",
    )  # fmt: skip
    assert code == 0, printed
    assert "averaged weights)" in printed
    summaries.append(processes.summary_of(tmp_path / str(devices)))
  one, two = (summary["metrics"] for summary in summaries)
  for name in ("test_margin_loss", "validation_margin_loss"):
    assert abs(one[name] - one[f"raw_{name}"]) > 1e-4
    for key in (name, f"raw_{name}"):
      assert two[key] == pytest.approx(one[key], rel=1e-3)
  assert "raw_test_accuracy" in one
  code, printed = train(tmp_path / "1", "--suite=accuracy", binary="evaluate")
  assert code == 0, printed
  record = processes.evaluation_of(tmp_path / "1")["accuracy"]["metrics"]
  for name in ("test_margin_loss", "raw_test_margin_loss"):
    assert record[name] == pytest.approx(one[name], rel=1e-6)


@pytest.mark.parametrize("decay", ["1", "-0.1", "nan"])
def test_a_decay_is_below_one(decay):
  with flagsaver.flagsaver(), pytest.raises(flags.Error, match="below 1"):
    flags.FLAGS(["binary", f"--average_decay={decay}"])


@pytest.mark.long
def test_a_run_without_validation_says_so(train, tmp_path):
  words = (*processes.BASELINE, "--num_validation=0", "--num_steps=4",
           "--log_every=2")  # fmt: skip
  code, printed = train(tmp_path, *words)
  assert code == 0, printed
  assert "(checkpoint of step 4, the last)" in printed
  assert "validation:" not in printed and "chosen on" not in printed
  summary = processes.summary_of(tmp_path)
  assert summary["reported"] == "the last"
  assert summary["metrics"]["best_step"] == 4
  assert not any(x.startswith("validation") for x in summary["metrics"])
  lines = processes.metrics_of(tmp_path)
  assert [line["split"] for line in lines] == ["train", "train"]
  # Of all 1437 images there are 22 batches of 64.
  assert lines[-1]["epoch"] == pytest.approx(4 / 22)
  assert (tmp_path / "figures" / "learning_curves.png").exists()
  code, printed = train(tmp_path, "--suite=accuracy", binary="evaluate")
  assert code == 0, printed
  record = processes.evaluation_of(tmp_path)["accuracy"]["metrics"]
  assert record["test_accuracy"] == summary["metrics"]["test_accuracy"]


def test_an_accuracy_to_stop_at_needs_validation(train, tmp_path):
  code, printed = train(
    tmp_path, *processes.BASELINE, "--num_validation=0", "--stop_accuracy=0.9"
  )
  assert code == 1
  assert "--num_validation=0 does not use --stop_accuracy" in printed
