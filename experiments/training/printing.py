"""What training prints: at most a few dozen lines, whatever its length."""

import sys
import time
from collections.abc import Mapping

import tqdm

from ..run import processes

_LINES = 12  # of a run, of each split
_PATIENCE = 60.0  # seconds without a line


class Lines:
  """Prints the first metrics after each twelfth of a run.

  Others are printed if there was no line for a minute. metrics.jsonl has all
  metrics. On a terminal there is a progress bar too.
  """

  def __init__(self, step: int, num_steps: int):
    self._num_steps, self._every = num_steps, -(-num_steps // _LINES)
    self._due = step  # the first line comes as soon as there are metrics
    self._printed = time.monotonic()
    self._texts: dict[str, str] = {}  # by split, what is not yet printed
    self._bar = tqdm.tqdm(
      total=num_steps,
      initial=step,
      unit="step",
      disable=not (sys.stderr.isatty() and processes.is_first()),
    )

  def __enter__(self) -> "Lines":
    return self

  def __exit__(self, *_: object) -> None:
    self.flush()
    self._bar.close()

  def move(self, step: int) -> None:
    """Shows the number of steps done, in the bar."""
    self._bar.update(step - self._bar.n)

  def add(
    self,
    step: int,
    split: str,
    metrics: Mapping[str, float],
    rate: float | None = None,
  ) -> None:
    """Takes the metrics of a split; prints a line if it is time.

    Args:
      step: number of updates done.
      split: "train" or "validation".
      metrics: by name.
      rate: images per second.
    """
    words = " ".join(f"{name} {value:.4g}" for name, value in metrics.items())
    speed = f" ({rate:,.0f} images/s)" if rate else ""
    self._texts.pop(split, None)  # so that lines are printed in their order
    self._texts[split] = (
      f"step {step}/{self._num_steps} {split}: {words}{speed}"
    )
    if split == "train" and metrics:
      name = "loss" if "loss" in metrics else next(iter(metrics))
      self._bar.set_postfix_str(f"{name} {metrics[name]:.4g}", refresh=False)
    late = time.monotonic() - self._printed >= _PATIENCE
    if step >= self._due or late:
      self._due = (step // self._every + 1) * self._every
      self.flush()

  def flush(self) -> None:
    """Prints the newest metrics that are not printed yet."""
    for text in self._texts.values():
      self.say(text)
    self._texts.clear()

  def say(self, text: str) -> None:
    """Prints a line, above the bar."""
    self._printed = time.monotonic()
    if self._bar.disable:
      print(text, flush=True)
    else:
      self._bar.write(text)

  def warn(self, text: str) -> None:
    """Prints a line to the standard error, after all lines before it.

    Process 0 alone prints it.
    """
    self.flush()
    if processes.is_first():
      self._bar.write(text, file=sys.stderr)
