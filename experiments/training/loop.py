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

_MAX_RESTARTS = 20  # of a run, also over several processes


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
    diverged: `metrics -> bool`, whether training has diverged; a number that is
      not finite always counts as diverged.
    restart: changes the older of the two saved states, from which training then
      resumes; without it, training ends.
    warn: `metrics -> messages` about training and validation, to be printed.

  Returns:
    The number of updates and the seconds spent, summed over resumed processes.

  Raises:
    ValueError: if no checkpoint of the run can be read, or they are gone.
    windows.Diverged: if training has diverged; the last good state is kept.
    SystemExit: after a signal, with the state saved.
  """
  training = _Training(
    run,
    saved,
    state,
    update=update,
    evaluate=evaluate,
    train=train,
    validation=validation,
    mesh=mesh,
    config=config,
    summarise=summarise,
    diverged=diverged,
    restart=restart,
    warn=warn,
  )
  with (
    interrupts.Interrupts() as signals,
    printing.Lines(training.step, config.num_steps) as lines,
    profiling.Trace(run.workdir / "trace", config.profile, lines.say) as trace,
  ):
    try:
      training.run_to_end(signals, lines, trace)
    except interrupts.Interrupted:
      lines.warn(
        f"stopped at step {saved.last_step()} of {config.num_steps}; the same "
        "command resumes"
      )
      sys.exit(128 + signals.received)
  processes.by_first(run.close)
  return training.step, training.seconds()


class _Training:
  """The training of one run, from the state that it resumes to its last step.

  Attributes:
    step: the number of updates so far.
  """

  def __init__(
    self,
    run,
    saved,
    state,
    *,
    update,
    evaluate,
    train,
    validation,
    mesh,
    config,
    summarise,
    diverged,
    restart,
    warn,
  ):
    """Restores the newest state of the run; see `fit` for the arguments."""
    self._run, self._saved, self._mesh = run, saved, mesh
    self._update, self._evaluate = update, evaluate
    self._validation, self._summarise = validation, summarise
    self._diverged, self._restart, self._warn = diverged, restart, warn
    self._epoch = len(train.images) // config.batch_size  # updates
    config = config._replace(eval_every=config.eval_every or self._epoch)
    self._config = config

    self._state, self._earlier = self._restore(placing.place_state(state, mesh))
    self._started = self._saved_at = time.monotonic()
    self.step = int(self._state.step)
    images, labels = train.images, placing.divide(train.labels, mesh)
    if not isinstance(images, data.StoredImages):
      images = placing.divide(images, mesh)
    self._examples = images, labels
    self._window = windows.Window(
      update.zeros(self._state, images, labels), saved.window(self.step)
    )
    processes.by_first(_rewind, run, saved, self.step, config, self._window)
    self._restarts = processes.by_first(run.restarts)  # so far
    # The line of the step that is resumed, if any; then the newest metrics.
    self._first_line = processes.by_first(_metrics_of, run, self.step, "train")
    self._newest = self._first_line or self._window.means()

  def _restore(self, state):
    """Returns the newest state and the seconds that the updates to it took."""
    restored = self._saved.restore((state, 0.0))
    if restored is not None:
      return restored
    if processes.by_first(_has_begun, self._run, self._saved):
      raise ValueError(
        f"{self._run.workdir} holds a run without states to resume from: "
        "restore its folder checkpoints/latest, or train again in another "
        "workdir"
      )
    # From here on the run has a state to resume from, or to return to.
    self._saved.save(0, (state, 0.0))
    return state, 0.0

  def run_to_end(
    self,
    signals: interrupts.Interrupts,
    lines: printing.Lines,
    trace: profiling.Trace,
  ) -> None:
    """Trains to the last step; see `fit`.

    Raises:
      interrupts.Interrupted: after a signal, with the state saved.
      windows.Diverged: if training has diverged.
    """
    self._signals, self._lines, self._trace = signals, lines, trace
    config, num_steps = self._config, self._config.num_steps
    every = [config.eval_every, config.log_every, config.checkpoint_every]
    if self.step:
      lines.say(f"resuming from step {self.step} of {num_steps}")
    if self.step == num_steps and self._newest and not self._first_line:
      # A run that was shortened to this step may have no line for it.
      self._log("train", self._newest)
    if self._is_pause() and not processes.by_first(
      _is_validated, self._run, self._saved, self.step, self._validation
    ):
      self._validate()
    most = 1  # steps of the next call
    while self.step < num_steps and not _reached(
      config.stop_accuracy, self._saved, self.step
    ):
      stop = min([num_steps] + [(self.step // x + 1) * x for x in every if x])
      late, most = self._advance(stop, most)
      self._newest = self._window.means()
      if fault := self._fault():
        self._step_back(fault)
        continue
      self._write_line()
      due = config.checkpoint_every and not self.step % config.checkpoint_every
      ending = signals.received and not self._restart
      # Save before validation, which may be cut off after a signal.
      if self._is_pause() or due or late or ending:
        self._save()
      signals.stop()
      if self._is_pause():
        self._validate()
    signals.check()  # one may have come while the last model was saved

  def seconds(self) -> float:
    """The seconds spent, summed over resumed processes."""
    return float(self._earlier) + time.monotonic() - self._started

  def _advance(self, stop: int, most: int) -> tuple[bool, int]:
    """Updates up to a step. Saves on the way if it is time, or at a signal.

    Args:
      stop: the step.
      most: the most steps of the first call; all processes do the same number.

    Returns:
      Whether it is time to save, and the most steps of the next call.

    Raises:
      interrupts.Interrupted: after a signal.
    """
    late, lines, window = False, self._lines, self._window
    while self.step < stop:
      count = min(stop - self.step, self._epoch - self.step % self._epoch, most)
      is_first = window.first is None
      if is_first:
        lines.say("compiling the update")
      else:
        count = self._trace.begin(count)
      self._state = window.add(
        self._update, self._state, *self._examples, count
      )
      self._trace.end(count)
      if is_first:
        lines.say(f"first update after {window.first:.1f} s")
      self.step += count
      lines.move(self.step)
      late, most = self._signals.share(self._is_late(), window.most_steps())
      if self.step < stop and (self._signals.received or late):
        if not (self._restart or self._fault()):
          self._save()
        self._signals.stop()
    return late, most

  def _fault(self) -> str | None:
    """Describes why training has diverged since the last line; None if not."""
    means = self._window.means()
    return windows.fault(means, self._state.model, self._diverged)

  def _step_back(self, fault: str) -> None:
    """Resumes from the older of the saved states, or ends the training.

    Raises:
      windows.Diverged: if there are no restarts, or none is left.
    """
    if not self._restart or self._restarts >= _MAX_RESTARTS:
      raise windows.Diverged(
        f"{fault} by step {self.step}; training stopped, and the "
        f"checkpoints in {self._run.workdir} are from before. Try a smaller "
        "learning_rate in another workdir"
      )
    self._restarts += 1

    def change(kept):
      state, earlier = kept
      return placing.place_state(self._restart(state), self._mesh), earlier

    self._state, _ = self._saved.step_back((self._state, 0.0), change)
    self.step = int(self._state.step)
    self._window.clear()
    processes.by_first(self._run.rewind, self.step, due=0)
    restarts = {"restarts": self._restarts}
    processes.by_first(self._run.log, self.step, "restart", restarts)
    self._lines.move(self.step)
    self._lines.warn(f"{fault}; resuming from step {self.step}")

  def _write_line(self) -> None:
    """Logs and prints the means since the last line, where a line is due."""
    is_line = self.step % self._config.log_every == 0
    if is_line or self.step == self._config.num_steps:
      rate = self._window.rate() * self._config.batch_size
      self._log("train", {**self._newest, "images_per_second": rate})
      self._lines.add(self.step, "train", self._newest, rate)
    if is_line:
      self._window.clear()

  def _validate(self) -> None:
    """Measures the model of this step, and saves it if it is the best."""
    allocator.trim()  # The first evaluation compiles, which takes memory.
    state, images = self._state, self._validation.images
    reported, averages = train_step.averaged(state), state.average is not None
    scores = {}
    if len(images):

      def measure(model):
        labels, between = self._validation.labels, self._signals.check
        return self._summarise(
          self._evaluate(model, images, labels, between=between)
        )

      scores = measure(reported)
      if averages:
        raw = measure(state.model)
        scores |= {f"raw_{name}": x for name, x in raw.items()}
    self._saved.save_best(
      self.step, (reported, state.model) if averages else reported, scores
    )
    if scores:  # written last, when the model is saved
      self._log("validation", scores)
      self._lines.add(self.step, "validation", scores)
      for message in self._warn({**self._newest, **scores}):
        self._lines.warn(f"step {self.step}: warning: {message}")

  def _log(self, split: str, metrics: dict[str, float]) -> None:
    """Writes the metrics of this step, in process 0 alone."""
    line = {"epoch": self.step / self._epoch, **metrics}
    processes.by_first(self._run.log, self.step, split, line)

  def _save(self) -> None:
    """Saves the state from which training resumes."""
    self._saved.save(
      self.step, (self._state, self.seconds()), self._window.record()
    )
    self._saved_at = time.monotonic()

  def _is_pause(self) -> bool:
    """Whether the model of this step is to be validated."""
    step, config = self.step, self._config
    return step > 0 and (
      step % config.eval_every == 0 or step == config.num_steps
    )

  def _is_late(self) -> bool:
    """Whether the last checkpoint is older than `checkpoint_minutes`.

    Never where training can return to a saved state: neither time nor a signal
    may decide which state that is.
    """
    minutes = 0.0 if self._restart else self._config.checkpoint_minutes
    return bool(minutes) and time.monotonic() - self._saved_at > 60 * minutes


def _has_begun(run: directory.Run, saved: checkpoints.Checkpoints) -> bool:
  """Whether a run without training states has been trained."""
  return run.has_begun() or bool(saved.best_metrics())


def _rewind(
  run: directory.Run,
  saved: checkpoints.Checkpoints,
  step: int,
  config: LoopConfig,
  window: windows.Window,
) -> None:
  """Records the run's length; drops what was written after the resumed step.

  If that was the last step of a run that is now lengthened, also drops what was
  written only because it was the last step.
  """
  run.record_length()
  also = []
  if step < config.num_steps and not _reached(
    config.stop_accuracy, saved, step
  ):
    run.note_resumption()
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


def _reached(
  goal: float | None, saved: checkpoints.Checkpoints, step: int
) -> bool:
  """Whether the model of this or an earlier step has the accuracy `goal`.

  A model of a later step does not count: a damaged state made the run repeat
  the steps to it.
  """
  best = None if goal is None else saved.best_metrics()
  return best is not None and (
    best["accuracy"] >= goal and saved.best_step() <= step
  )
