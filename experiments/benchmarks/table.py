r"""Prints one table of all benchmarks, from the file that they wrote.

python -m experiments.benchmarks.scae --json=bench.jsonl
python -m experiments.benchmarks.table bench.jsonl
"""

import pathlib
import sys
import textwrap
from collections.abc import Sequence

from absl import app, flags

from ..flags import limits
from . import rows

_MARKDOWN = flags.DEFINE_string(
  "markdown", None, "File that gets the table as Markdown."
)
_LOAD = flags.DEFINE_string(
  "load",
  "otherwise idle",
  "What else the machine did; the page in Markdown says so.",
)
_HEADER = (
  "system", "setting", "ours (ms)", "textbook (ms)", "times faster",
  "floor: operations (ms)", "bytes (ms)", "times floor", "compile (s)",
  "peak (MB)",
)  # fmt: skip


def lines_of(found: Sequence[rows.Row]) -> list[list[str]]:
  """The header and a line for each row.

  A dash stands for a number that was not measured or is not known. Another
  library has columns of its own if it was timed.
  """

  def milliseconds(seconds):
    return "-" if seconds is None else f"{1e3 * seconds:.4g}"

  def ratio(above, below):
    return "-" if None in (above, below) else f"{above / below:.2f}"

  names = sorted({row.peer_name for row in found if row.peer is not None})
  lines = [[*_HEADER]]
  for name in names:
    lines[0] += [f"{name} (ms)", "times faster than it"]
  for row in found:
    line = [
      row.system,
      row.setting,
      milliseconds(row.ours),
      milliseconds(row.textbook),
      ratio(row.textbook, row.ours),
      milliseconds(row.operations),
      milliseconds(row.transfer),
      ratio(row.ours, row.floor),
      "-" if row.compile_seconds is None else f"{row.compile_seconds:.1f}",
      "-" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.0f}",
    ]
    for name in names:
      peer = row.peer if row.peer_name == name else None
      line += [milliseconds(peer), ratio(peer, row.ours)]
    lines.append(line)
  return _without_empty(lines)


def _without_empty(lines: list[list[str]]) -> list[list[str]]:
  """Leaves out the columns that have nothing but dashes."""
  columns = [
    column
    for column in zip(*lines, strict=True)
    if len(lines) == 1 or {*column[1:]} != {"-"}
  ]
  return [list(line) for line in zip(*columns, strict=True)]


def describe(machines: Sequence[rows.Machine]) -> str:
  """The devices, the versions, and the range of each ceiling, as text."""
  kinds = dict.fromkeys(
    f"{x.device}, {x.versions}{', huge pages' if x.huge_pages else ''}"
    for x in machines
  )

  def span(values, unit):
    low, high = (f"{x / 1e9:.0f}" for x in (min(values), max(values)))
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"

  transfer = span([x.bandwidth for x in machines], "GB/s")
  products = ", ".join(
    f"{name or 'float32'} matmul "
    + span([x.flops for x in machines if x.precision == name], "GFLOP/s")
    for name in dict.fromkeys(x.precision for x in machines)
  )
  return (
    f"{'; '.join(kinds)}; ceilings measured with it: {products}, memory "
    f"{transfer}"
  )


def plain(lines: Sequence[Sequence[str]]) -> str:
  """The table as text, with aligned columns."""
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  return "\n".join(
    "  ".join(
      cell.ljust(width) if number < 2 else cell.rjust(width)
      for number, (cell, width) in enumerate(zip(line, widths, strict=True))
    ).rstrip()
    for line in lines
  )


def markdown(
  machines: Sequence[rows.Machine], found: Sequence[rows.Row], load: str
) -> str:
  """The page of one run."""
  header, *lines = lines_of(found)
  rule = ["---"] * 2 + ["---:"] * (len(header) - 2)
  lines = [header, rule, *lines]
  table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
  compile_time = (
    "Compile includes tracing, without a compilation cache. "
    if any(row.compile_seconds is not None for row in found)
    else ""
  )
  text = textwrap.fill(
    "Times are of one call or training step, forward, loss, backward and "
    "update. The floors are the times that the fewest operations take at the "
    "rate of a large matrix product, and the fewest bytes at the rate of the "
    'memory; "times floor" is of the larger. Fast convolutions need fewer '
    "operations than the direct sum that is counted. Single figures vary by a "
    f"tenth and more, so read the ratios. {compile_time}Peaks are of the "
    "resident memory of a process that does nothing else, with Python, JAX and "
    "the compiler; on accelerators, of the device's memory. Where another "
    "library has a column, it runs the same network in the same run; its "
    "allocator keeps freed memory.",
    80,
  )
  return f"""# One run of the benchmarks

{describe(machines)}; {load}. `make bench-record` writes this page.

{text}

{table}
"""


def main(words: list[str]) -> None:
  if len(words) != 1:
    raise app.UsageError("give the file that the benchmarks wrote")
  try:
    machines, found = rows.read(words[0])
  except (OSError, ValueError) as error:
    sys.exit(f"{type(error).__name__}: {error}")
  if not machines or not found:
    raise app.UsageError(f"{words[0]} has no results")
  print(describe(machines))
  print(plain(lines_of(found)))
  if _MARKDOWN.value:
    text = markdown(machines, found, _LOAD.value)
    pathlib.Path(_MARKDOWN.value).write_text(text)


if __name__ == "__main__":
  limits.run_on_words(main)
