"""The host's side of training: when to log, validate, save and stop."""

import math
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import tqdm

from capjax import data
from experiments.run import directory, interrupts
from experiments.training import checkpoints, train_step

_MAX_RESTARTS = 20  # of one sitting


class LoopConfig(NamedTuple):
  """How long training goes, and when it is logged, validated and saved.

  Attributes:
    num_steps: updates in all.
    batch_size: examples of an update.
    seed: of parameters, batches and augmentation.
    num_validation: training examples, the first ones, that are kept for
      validation; None for a sixth, 0 for none.
    log_every: steps between lines of metrics.
    eval_every: steps between validations; None for an epoch.
    checkpoint_every: steps between states that are saved beside those at
      validations; None for none.
    checkpoint_minutes: a state is also saved at the first line of metrics after
      so many minutes without; 0 for never. Not where training restarts from
      saved states, whose numbers would depend on the time.
    stop_accuracy: training ends at the first validation that reaches this
      accuracy; None for never.
    average_decay: of the exponential moving average of the weights; 0 for none.
  """

  num_steps: int
  batch_size: int = 128
  seed: int = 0
  num_validation: int | None = None
  log_every: int = 20
  eval_every: int | None = None
  checkpoint_every: int | None = None
  checkpoint_minutes: float = 10.0
  stop_accuracy: float | None = None
  average_decay: float = 0.0


def split_validation(
  dataset: data.Dataset, num_validation: int | None, batch_size: int
) -> tuple[data.Dataset, data.Dataset]:
  """Sets the first examples of the training set apart (Sabour et al., 2017).

  Args:
    dataset: the training set.
    num_validation: how many; None for a sixth, 10,000 of MNIST's 60,000; 0 to
      train on all.
    batch_size: examples an update, of which some must be left.

  Returns:
    What is left to train on, and the validation set, which may be empty.

  Raises:
    ValueError: if no batch would be left to train on.
  """
  total = len(dataset.images)
  count = total // 6 if num_validation is None else num_validation
  if not 0 <= count < total:
    raise ValueError(
      f"cannot keep {count} of {total} training examples for validation; give "
      f"--num_validation between 0 and {total - 1}"
    )

  require_a_batch(total - count, batch_size)
  return rows(dataset, slice(count, None)), rows(dataset, slice(None, count))


def require_a_batch(count: int, batch_size: int) -> None:
  """Raises a ValueError where there are too few examples for an update."""
  if count < batch_size:
    raise ValueError(
      f"{count} training examples make no batch of {batch_size}; give a "
      "smaller --batch_size"
    )


def rows(dataset: data.Dataset, part: slice | np.ndarray) -> data.Dataset:
  """Some of the examples."""
  return dataset._replace(
    images=dataset.images[part],
    labels=dataset.labels[part],
    factors={name: x[part] for name, x in dataset.factors.items()},
  )


def fit(
  run: directory.Run,
  saved: checkpoints.Checkpoints,
  state: train_step.TrainState,
  *,
  update: Callable[..., tuple[train_step.TrainState, train_step.Metrics]],
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

  The model that `saved` scores highest on validation is kept as its best; of
  several with the same score, the last. Without validation no model is scored:
  it is the last of all. Where the state has an average of the weights, models
  are pairs, with averaged and with raw weights, of which the first is scored.

  Args:
    run: where metrics go.
    saved: where states go.
    state: that of a new run.
    update: as `train_step.make_update` builds it.
    evaluate: as `train_step.make_evaluate` builds it; for `stop_accuracy` it
      measures `accuracy`.
    train: to draw batches from.
    validation: to choose the model by; its measures hold what `saved` scores.
      It may be empty, if `saved` has no score.
    mesh: the devices.
    config: see `LoopConfig`.
    summarise: makes one number of each measure, to be logged.
    diverged: whether training has diverged, by its metrics; it always has where
      a number is not finite.
    restart: changes the older of the two saved states, from which training then
      resumes; without it, training ends.
    warn: messages about metrics of training and validation, to be printed.

  Returns:
    Updates done and seconds spent, in all sittings.

  Raises:
    ValueError: if no checkpoint of the run can be read, or they are gone.
    SystemExit: after a signal, with the state saved; and when training has
      diverged, with the last good state kept.
  """
  num_steps, batch_size = config.num_steps, config.batch_size
  epoch = len(train.images) // batch_size
  eval_every = config.eval_every or epoch
  stops = [epoch, eval_every, config.log_every]
  if config.checkpoint_every:
    stops.append(config.checkpoint_every)

  state = train_step.replicate(state, mesh)
  restored = saved.restore((state, 0.0))
  if restored is None:
    if run.has_begun() or saved.best_metrics():
      raise ValueError(
        f"{run.workdir} holds a run whose states to resume from are gone: put "
        "its folder checkpoints/latest back, or train anew in another --workdir"
      )
    # From here on a run has a state to resume from, or go back to.
    restored = state, 0.0
    saved.save(0, restored)
  state, earlier = restored
  started = time.monotonic()
  step = int(state.step)
  run.rewind(step)
  images, labels = train_step.replicate((train.images, train.labels), mesh)
  restarts = _MAX_RESTARTS if restart else 0

  averages = state.average is not None
  # Where training goes back to a saved state, time must not say which one.
  patience = 0.0 if restart else 60 * config.checkpoint_minutes
  saved_at = started

  def seconds():
    return float(earlier) + time.monotonic() - started

  with (
    interrupts.Interrupts() as signals,
    tqdm.tqdm(
      total=num_steps,
      initial=step,
      unit="step",
      disable=not sys.stderr.isatty(),
    ) as bar,
  ):
    while step < num_steps and not _reached(
      config.stop_accuracy, saved.best_metrics()
    ):
      stop = min([(step // every + 1) * every for every in stops] + [num_steps])
      began = time.monotonic()
      state, metrics = update(state, images, labels, stop - step)
      metrics = {name: float(x) for name, x in metrics.items()}
      rate = (stop - step) * batch_size / (time.monotonic() - began)
      fault = _fault(metrics, state.model, diverged)
      if fault and restarts:
        restarts -= 1
        state, _ = saved.step_back(
          (state, 0.0), lambda kept: (restart(kept[0]), kept[1])
        )
        step = int(state.step)
        run.rewind(step)
        run.log(step, "restart", {"restarts": _MAX_RESTARTS - restarts})
        bar.n = step
        print(f"{fault}; resuming from step {step}", file=sys.stderr)
        continue
      if fault:
        sys.exit(
          f"{fault} between steps {step} and {stop}; training stopped, and "
          f"the checkpoints in {run.workdir} are from before. Try a smaller "
          "--learning_rate in another --workdir"
        )
      bar.update(stop - step)
      step = stop
      line = {"epoch": step / epoch, **metrics, "images_per_second": rate}
      run.log(step, "train", line)
      _show(bar, step, num_steps, "train", metrics, rate)
      pause = step % eval_every == 0 or step == num_steps
      scores = {}
      reported = train_step.averaged(state) if pause else None
      if pause and len(validation.images):
        measures = evaluate(reported, validation.images, validation.labels)
        scores = summarise(measures)
        if averages:
          raw = evaluate(state.model, validation.images, validation.labels)
          scores |= {f"raw_{name}": x for name, x in summarise(raw).items()}
        run.log(step, "validation", {"epoch": step / epoch, **scores})
        _show(bar, step, num_steps, "validation", scores)
        for message in warn({**metrics, **scores}):
          bar.write(f"step {step}: warning: {message}", file=sys.stderr)
      if pause:
        models = (reported, state.model) if averages else reported
        saved.save_best(step, models, scores)
      due = config.checkpoint_every and not step % config.checkpoint_every
      late = patience and time.monotonic() - saved_at > patience
      signal_number = signals.received
      if pause or due or late or signal_number:
        saved.save(step, (state, seconds()))
        saved_at = time.monotonic()
      if signal_number:
        print(
          f"stopped at step {step} of {num_steps}; the same command resumes",
          file=sys.stderr,
        )
        sys.exit(128 + signal_number)
  run.close()
  return step, seconds()


def _fault(
  metrics: dict[str, float],
  model: Any,
  diverged: Callable[[dict[str, float]], bool],
) -> str | None:
  """What went wrong, if anything did."""
  if not all(math.isfinite(x) for x in metrics.values()):
    return "the loss became infinite or NaN"
  if not train_step.all_finite(model):
    return "the parameters became infinite or NaN"
  return "training diverged" if diverged(metrics) else None


def _reached(goal: float | None, best: dict[str, float] | None) -> bool:
  return None not in (goal, best) and best["accuracy"] >= goal


def _show(
  bar: tqdm.tqdm,
  step: int,
  num_steps: int,
  split: str,
  metrics: dict[str, Any],
  rate: float | None = None,
) -> None:
  """Shows progress: on a terminal in the bar, elsewhere as plain lines."""
  text = " ".join(f"{name} {value:.4g}" for name, value in metrics.items())
  if bar.disable:
    speed = f" ({rate:.0f} images/s)" if rate else ""
    print(f"step {step}/{num_steps} {split}: {text}{speed}", flush=True)
  elif split == "train":
    name = "loss" if "loss" in metrics else next(iter(metrics))
    bar.set_postfix_str(f"{name} {metrics[name]:.4g}")
  else:
    bar.write(f"step {step}: {split} {text}")
