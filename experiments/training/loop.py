"""The training loop on the host: when to log, validate, save and stop."""

import sys
import time
from collections.abc import Callable

import jax
import numpy as np

from capjax import data

from ..run import directory, interrupts, processes
from . import (
  allocator,
  checkpoints,
  placing,
  printing,
  profiling,
  train_step,
  windows,
)
from .loop_config import LoopConfig

_MAX_RESTARTS = 20  # in one process


def fit(
  run: directory.Run,
  saved: checkpoints.Checkpoints,
  state: train_step.TrainState,
  *,
  update: train_step.Update,
  evaluate: Callable[..., dict[str, np.ndarray]],
  train: data.Dataset,
  validation: data.Dataset,
  mesh: jax.sharding.Mesh,
  config: LoopConfig,
  summarise: Callable[[dict], dict[str, float]] = train_step.means,
  diverged: Callable[[dict[str, float]], bool] = lambda metrics: False,
  restart: Callable[[train_step.TrainState], train_step.TrainState]
  | None = None,
  warn: Callable[[dict[str, float]], list[str]] = lambda metrics: [],
) -> tuple[int, float]:
  """Trains to the last step; resumes from the newest checkpoint, if any.

  The model with the highest `saved` score on validation is kept as the best; of
  several with the same score, the last. Without validation the last model is
  the best. Where the state has an average of the weights, a checkpoint holds a
  pair of models, with averaged and with raw weights; the first is scored.

  Several processes call this together. Process 0 writes all files, but for the
  arrays of checkpoints, of which each writes its share.

  Args:
    run: the run that gets the metrics.
    saved: the checkpoints that get the states.
    state: the state of a new run.
    update: as `train_step.make_update` builds it.
    evaluate: as `train_step.make_evaluate` builds it; for `stop_accuracy` it
      measures `accuracy`.
    train: the training examples.
    validation: the examples by which the best model is chosen; their measures
      include the one that `saved` scores. May be empty if `saved` has no score.
    mesh: the devices.
    config: see `LoopConfig`.
    summarise: reduces each measure to one number, to be logged.
    diverged: `metrics -> bool`, whether training has diverged; it always has
      where a number is not finite.
    restart: changes the older of the two saved states, from which training then
      resumes; without it, training ends.
    warn: `metrics -> messages` about training and validation, to be printed.

  Returns:
    The number of updates and the seconds spent, summed over resumed processes.

  Raises:
    ValueError: if no checkpoint of the run can be read, or they are gone.
    SystemExit: after a signal, with the state saved; and when training has
      diverged, with the last good state kept.
  """
  num_steps, batch_size = config.num_steps, config.batch_size
  epoch = len(train.images) // batch_size
  eval_every = config.eval_every or epoch
  every = [eval_every, config.log_every, config.checkpoint_every]

  state = placing.place_state(state, mesh)
  restored = saved.restore((state, 0.0))
  if restored is None:
    if processes.by_first(_has_begun, run, saved):
      raise ValueError(
        f"{run.workdir} holds a run without states to resume from: restore its "
        "folder checkpoints/latest, or train again in another folder "
        "(--workdir)"
      )
    # From here on the run has a state to resume from, or to return to.
    restored = state, 0.0
    saved.save(0, restored)
  state, earlier = restored
  started = saved_at = time.monotonic()
  step = int(state.step)
  images, labels = train.images, placing.divide(train.labels, mesh)
  if not isinstance(images, data.StoredImages):
    images = placing.divide(images, mesh)
  window = windows.Window(
    update.zeros(state, images, labels), saved.window(step)
  )
  processes.by_first(
    _rewind, run, saved, step, config._replace(eval_every=eval_every), window
  )
  # The newest metrics: the line of this step, or the sums since the last line.
  line = processes.by_first(_metrics_of, run, step, "train")
  newest = line or window.means()
  restarts = _MAX_RESTARTS if restart else 0

  averages = state.average is not None
  # Where training can return to a saved state, neither time nor a signal may
  # decide which one.
  patience = 0.0 if restart else 60 * config.checkpoint_minutes

  def seconds():
    return float(earlier) + time.monotonic() - started

  def save():
    nonlocal saved_at
    saved.save(step, (state, seconds()), window.record())
    saved_at = time.monotonic()

  def is_late():
    return bool(patience) and time.monotonic() - saved_at > patience

  def log(*line):
    processes.by_first(run.log, *line)

  def is_pause():
    return step > 0 and (step % eval_every == 0 or step == num_steps)

  def validate():
    """Measures the model of this step, and saves it if it is the best."""
    allocator.trim()  # The first evaluation compiles, which takes memory.
    reported = train_step.averaged(state)
    scores = {}
    if len(validation.images):
      arrays = validation.images, validation.labels
      scores = summarise(evaluate(reported, *arrays, between=signals.check))
      if averages:
        raw = evaluate(state.model, *arrays, between=signals.check)
        scores |= {f"raw_{name}": x for name, x in summarise(raw).items()}
    saved.save_best(
      step, (reported, state.model) if averages else reported, scores
    )
    if scores:  # written last, when the model is saved
      log(step, "validation", {"epoch": step / epoch, **scores})
      lines.add(step, "validation", scores)
      for message in warn({**newest, **scores}):
        lines.warn(f"step {step}: warning: {message}")

  with (
    interrupts.Interrupts() as signals,
    printing.Lines(step, num_steps) as lines,
    profiling.Trace(run.workdir / "trace", config.profile, lines.say) as trace,
  ):
    if step:
      lines.say(f"resuming from step {step} of {num_steps}")
    try:
      if step == num_steps and newest and not line:
        # A run that was shortened to this step may have no line for it.
        log(step, "train", {"epoch": step / epoch, **newest})
      if is_pause() and not processes.by_first(
        _is_validated, run, saved, step, validation
      ):
        validate()
      most = 1  # steps of the next call; all processes do the same number
      while step < num_steps and not _reached(config.stop_accuracy, saved):
        stop = min([num_steps] + [(step // x + 1) * x for x in every if x])
        while step < stop:
          count = min(stop - step, epoch - step % epoch, most)
          is_first = window.first is None
          if is_first:
            lines.say("compiling the update")
          else:
            count = trace.begin(count)
          state = window.add(update, state, images, labels, count)
          trace.end(count)
          if is_first:
            lines.say(f"first update after {window.first:.1f} s")
          step += count
          lines.move(step)
          late, most = signals.share(is_late(), window.most_steps())
          if step < stop and (signals.received or late):
            means = window.means()
            if not (restart or windows.fault(means, state.model, diverged)):
              save()
            signals.stop()
        newest = window.means()
        fault = windows.fault(newest, state.model, diverged)
        if fault and restarts:
          restarts -= 1
          state, _ = saved.step_back(
            (state, 0.0),
            lambda kept: (placing.place_state(restart(kept[0]), mesh), kept[1]),
          )
          step = int(state.step)
          window.clear()
          processes.by_first(_drop_after, run, step)
          log(step, "restart", {"restarts": _MAX_RESTARTS - restarts})
          lines.move(step)
          lines.warn(f"{fault}; resuming from step {step}")
          continue
        if fault:
          sys.exit(
            f"{fault} by step {step}; training stopped, and the "
            f"checkpoints in {run.workdir} are from before. Try a smaller "
            "learning rate (--learning_rate) in another folder (--workdir)"
          )
        is_line = step % config.log_every == 0
        if is_line or step == num_steps:
          rate = window.rate() * batch_size
          line = {"epoch": step / epoch, **newest, "images_per_second": rate}
          log(step, "train", line)
          lines.add(step, "train", newest, rate)
        if is_line:
          window.clear()
        due = config.checkpoint_every and not step % config.checkpoint_every
        # Save before validation, which may be cut off after a signal.
        if is_pause() or due or late or (signals.received and not restart):
          save()
        signals.stop()
        if is_pause():
          validate()
    except interrupts.Interrupted:
      lines.warn(
        f"stopped at step {saved.last_step()} of {num_steps}; the same command "
        "resumes"
      )
      sys.exit(128 + signals.received)
  processes.by_first(run.close)
  return step, seconds()


def _has_begun(run: directory.Run, saved: checkpoints.Checkpoints) -> bool:
  """Whether a run without training states has been trained."""
  return run.has_begun() or bool(saved.best_metrics())


def _drop_after(run: directory.Run, step: int) -> None:
  """Drops the metrics after a step to which training has returned."""
  run.rewind(step, due=0)


def _rewind(
  run: directory.Run,
  saved: checkpoints.Checkpoints,
  step: int,
  config: LoopConfig,
  window: windows.Window,
) -> None:
  """Drops what was written after the step from which training resumes.

  If that was the last step of a run that is now lengthened, also drops what was
  written only because it was the last step.
  """
  also = []
  if step < config.num_steps:
    if window.num_steps:
      also.append("train")
    if step % config.eval_every:
      also.append("validation")
      saved.drop_best(step)
  saved.drop_best_after(config.num_steps)
  run.rewind(step, also, due=step - step % config.log_every)


def _is_validated(
  run: directory.Run,
  saved: checkpoints.Checkpoints,
  step: int,
  validation: data.Dataset,
) -> bool:
  """Whether a step was validated before its process ended."""
  if len(validation.images):
    return bool(_metrics_of(run, step, "validation"))
  return saved.best_step() == step


def _metrics_of(run: directory.Run, step: int, split: str) -> dict[str, float]:
  """The line of a step in metrics.jsonl; empty without one."""
  for line in run.metrics():
    if line["step"] == step and line["split"] == split:
      return {name: x for name, x in line.items() if name != "split"}
  return {}


def _reached(goal: float | None, saved: checkpoints.Checkpoints) -> bool:
  best = None if goal is None else saved.best_metrics()
  return best is not None and best["accuracy"] >= goal
