"""The training loop on the host: when to log, validate, save and stop."""

import math
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import tqdm

from capjax import data

from ..run import directory, interrupts
from . import checkpoints, train_step

_MAX_RESTARTS = 20  # in one process


class LoopConfig(NamedTuple):
  """The length of training, and when it is logged, validated and saved.

  Attributes:
    num_steps: total number of updates.
    batch_size: number of examples in an update.
    seed: seed of the parameters, the batches and the augmentation.
    num_validation: number of training examples, from the first on, that are
      kept for validation; None for a sixth, 0 for none.
    log_every: steps between lines of metrics.
    eval_every: steps between validations; None for an epoch.
    checkpoint_every: steps between saved states, in addition to those at
      validations; None for none.
    checkpoint_minutes: minutes after which a state is also saved, at the next
      line of metrics; 0 for never. Not used where training can restart from
      saved states, since its numbers would depend on the time.
    stop_accuracy: training stops at the first validation that reaches this
      accuracy; None for never.
    average_decay: decay of the exponential moving average of the weights; 0 for
      no average.
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
  """Splits off the first training examples for validation.

  Sabour et al. (2017).

  Args:
    dataset: the training set.
    num_validation: number of validation examples; None for a sixth, 10,000 of
      MNIST's 60,000; 0 to train on all.
    batch_size: number of examples in an update.

  Returns:
    The remaining training set, and the validation set, which may be empty.

  Raises:
    ValueError: if the remaining training set is smaller than a batch.
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

  The model with the highest `saved` score on validation is kept as the best; of
  several with the same score, the last. Without validation the last model is
  the best. Where the state has an average of the weights, a checkpoint holds a
  pair of models, with averaged and with raw weights; the first is scored.

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
  stops = [epoch, eval_every, config.log_every]
  if config.checkpoint_every:
    stops.append(config.checkpoint_every)

  state = train_step.replicate(state, mesh)
  restored = saved.restore((state, 0.0))
  if restored is None:
    if run.has_begun() or saved.best_metrics():
      raise ValueError(
        f"{run.workdir} holds a run without states to resume from: restore its "
        "folder checkpoints/latest, or train again in another --workdir"
      )
    # From here on the run has a state to resume from, or to return to.
    restored = state, 0.0
    saved.save(0, restored)
  state, earlier = restored
  started = time.monotonic()
  step = int(state.step)
  run.rewind(step)
  images, labels = train_step.replicate((train.images, train.labels), mesh)
  restarts = _MAX_RESTARTS if restart else 0

  averages = state.average is not None
  # Where training can return to a saved state, time must not decide which one.
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
  """The reason why training cannot continue; None where it can."""
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
