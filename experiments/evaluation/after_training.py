"""What follows training: the reported model, its suites, its summary."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ..run import directory
from ..training import allocator, cards, train_step
from ..training import task as tasks
from ..training.loop_config import LoopConfig
from . import models, suites


def finish(
  run: directory.Run,
  restore: Callable[[], models.Trained],
  records: Mapping[str, Mapping[str, Any]],
  step: int,
  seconds: float,
) -> None:
  """Saves and evaluates the reported model; then writes the run's summary.

  Args:
    run: the run.
    restore: gives the reported model.
    records: entries of the summary.
    step: the number of updates.
    seconds: the time that they took.
  """
  trained = restore()
  task = trained.task
  entries = {
    "num_parameters": train_step.num_parameters(trained.model),
    "num_steps": step,
    "restarts": run.restarts_of_phases(),
    "reported": _reported(task, trained.config),
    **records,
    "metrics": {},
    "num_images": {},
    "seconds": seconds,
    "images_per_second": run.images_per_second(),
    **run.noted("start_from"),
  }
  write_card = functools.partial(
    cards.write, run, task, trained.model, trained.test
  )
  was_complete = run.is_complete(step)
  if was_complete:  # what follows the last saved state is not timed again
    entries["seconds"] = run.read_summary().get("seconds", seconds)
  if not was_complete:  # Saves the model, even if a suite fails.
    write_card(run.summary(entries))
  metrics, num_images, failures = _run_suites(run, trained)
  entries |= {"metrics": metrics, "num_images": num_images}
  if failures.errors:
    if was_complete:  # keep the scores of the existing summary
      failures.raise_first()
    entries["failed_suites"] = {x: str(y) for x, y in failures.errors.items()}
  summary = run.summary(entries)
  run.write_summary(summary)
  write_card(summary)
  if "test_accuracy" in metrics:
    count = len(trained.test.labels)
    print(
      f"test accuracy {metrics['test_accuracy']:.2%} on {count:,} images "
      f"(checkpoint of step {trained.step}, {entries['reported']})"
    )
  else:
    for name, value in metrics.items():
      if isinstance(value, int | float) and not name.startswith("validation_"):
        print(f"{name} {value:.4g}")
  print(f"figures are in {run.workdir / 'figures'}")
  failures.raise_first()


def _reported(task: tasks.Task, config: LoopConfig) -> str:
  """Describes which weights of a run are reported."""
  if tasks.reports_last(task, config):
    reported = "the last"
  else:
    reported = f"chosen on validation by {task.chosen_by}"
  return f"{reported}, averaged weights" if config.average_decay else reported


def _run_suites(
  run: directory.Run, trained: models.Trained
) -> tuple[dict[str, Any], dict[str, int], suites.Failures]:
  """Runs the suites of a task that fit the model and its data.

  Returns:
    Their scores; the number of images of each score; the suites that failed.
  """
  metrics: dict[str, Any] = {}
  num_images: dict[str, int] = {}
  failures = suites.Failures()
  for name in trained.task.after_training:
    if name not in suites.fitting(trained):
      continue
    allocator.trim()  # Training, or another suite, has just freed memory.
    print(f"suite {name} of the test images", flush=True)
    with failures.kept(name):
      suite = suites.SUITES[name]
      scores = suite(run, trained, models.Options())
      num_images |= models.images_of(trained, scores, suite.counts)
      metrics |= {x: y for x, y in scores.items() if x != "num_images"}
  return metrics, num_images, failures
