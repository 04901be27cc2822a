"""Times how long a binary takes to start: its help, and its first update.

  python -m experiments.benchmarks.start_up

Times three kinds of processes from their start: `train_capsnet --help`; the
preset digits until its first update is done, which includes imports, data and
compilation; and the same again with the compilation cache of the one before.
"""

import collections
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from absl import flags

from ..flags import limits
from . import rows

_ROUNDS = flags.DEFINE_integer(
  "rounds", 3, "Starts of each kind; the shortest time is reported.",
  lower_bound=1,
)  # fmt: skip
_BINARY = f"{__package__.rpartition('.')[0]}.train_capsnet"
_SAID = "first update after"
_LINES_TOLD = 3  # of the output of a binary that failed


def seconds_until(words: Sequence[str], text: str | None) -> float:
  """Wall time from the start of a binary until it prints a text, or ends.

  Args:
    words: the module and its flags, as they follow `python -m`.
    text: what a line of its output starts with; None to wait for its end.

  Raises:
    ValueError: if it ends without this text, or fails.
  """
  start = time.perf_counter()
  with subprocess.Popen(
    [sys.executable, "-u", "-m", *words],
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  ) as process:
    last: collections.deque[str] = collections.deque(maxlen=_LINES_TOLD)
    for line in process.stdout:
      last.append(line)
      if text is not None and line.startswith(text):
        taken = time.perf_counter() - start
        process.kill()
        return taken
    if text is not None or process.wait():
      told = "".join(last).strip()
      raise ValueError(f"{' '.join(words)} ended too early:\n{told}")
    return time.perf_counter() - start


def measure(rounds: int, preset: str = "digits") -> dict[str, float]:
  """Seconds of each kind of start, the shortest of some rounds.

  Args:
    rounds: starts of each kind.
    preset: of `train_capsnet`.
  """
  found: dict[str, list[float]] = {}
  for _ in range(rounds):
    with tempfile.TemporaryDirectory() as folder:
      train = [
        _BINARY, f"--preset={preset}", f"--compilation_cache={folder}/cache",
      ]  # fmt: skip
      starts = {
        "--help": ([_BINARY, "--help"], None),
        "first update, nothing compiled": (
          [*train, f"--workdir={folder}/cold"], _SAID,
        ),
        "first update, with the compilation cache": (
          [*train, f"--workdir={folder}/warm"], _SAID,
        ),
      }  # fmt: skip
      for name, (words, text) in starts.items():
        found.setdefault(name, []).append(seconds_until(words, text))
  return {name: min(seconds) for name, seconds in found.items()}


def main() -> None:
  for name, seconds in measure(_ROUNDS.value).items():
    rows.note(rows.Row(f"start of train_capsnet, {name}", "digits", seconds))
    print(f"{name}: {seconds:.2f} s", flush=True)


if __name__ == "__main__":
  limits.run(main)
