"""Writes numbers of the records into the sentences and tables of pages.

A page holds each number between two comments that no reader sees:

  <!--= digits test_error_percent .2f -->0.93 ± 0.16<!--/-->

The first comment has three words: a record (the name of its file without the
seed; with `:SUITE` for an evaluation), a metric (with `@N` for point N of a
curve), and a format. The format is one of Python, `n` for the number of seeds,
`images` for the number of test images, `steps` for the mean number of updates,
or `parameters` for the number of parameters in millions. A `%` at the end of a
format multiplies by 100; the percent sign itself is part of the page.
"""

import pathlib
import re
from collections.abc import Mapping, Sequence

from . import records, tables

_MARK = re.compile(r"<!--= (.*?) -->.*?<!--/-->", re.DOTALL)
_SEED = re.compile(r"-\d+$")
Named = Mapping[str, Sequence[dict]]


def read(folder: str | pathlib.Path) -> Named:
  """The records of a folder, by the name of their file without the seed.

  Raises:
    ValueError: as `records.read`.
  """
  found = {}
  for path in sorted(pathlib.Path(folder).rglob("*.jsonl")):
    lines = records.parse_lines(path.read_text("utf-8").splitlines(), path)
    found.setdefault(_SEED.sub("", path.stem), []).extend(lines)
  return found


def fill(text: str, named: Named) -> str:
  """The text with the numbers of the records.

  Args:
    text: Markdown.
    named: what `read` returns.

  Raises:
    ValueError: if a comment is not of the form above, or what it names is not
      recorded.
  """

  def number(match):
    words = match[1]
    return f"<!--= {words} -->{value(words, named)}<!--/-->"

  return _MARK.sub(number, text)


def value(words: str, named: Named) -> str:
  """The text for `RECORD[:SUITE] METRIC[@N] FORMAT`.

  Raises:
    ValueError: as `fill`.
  """
  try:
    name, metric, form = words.split()
  except ValueError:
    raise ValueError(
      f"{words!r}; give RECORD[:SUITE] METRIC[@N] FORMAT."
    ) from None
  stem, _, suite = name.partition(":")
  metric, _, index = metric.partition("@")
  group = [
    record
    for record in named.get(stem, ())
    if (record.get("suite") or "") == suite and metric in record["metrics"]
  ]
  if not group:
    raise ValueError(f"{words!r}: no record {name!r} has a metric {metric!r}.")
  tables.require_one_each(group, f"{words!r}")
  if form == "n":
    return str(len(group))
  if form == "images":
    return tables.images(group, metric)
  if form == "steps":
    return f"{round(sum(x['num_steps'] for x in group) / len(group)):,}"
  if form == "parameters":
    return f"{group[0]['num_parameters'] / 1e6:.1f}"
  values = [record["metrics"][metric] for record in group]
  if index:
    try:
      values = [curve[int(index)] for curve in values]
    except (TypeError, ValueError, IndexError):
      raise ValueError(f"{words!r}: {metric} has no number @{index}.") from None
  if any(isinstance(x, list) for x in values):
    raise ValueError(
      f"{words!r}: {metric} is a curve; give one number, as {metric}@0."
    )
  if len(set(values)) == 1 and not tables.is_measured(metric):
    values = values[:1]
  if form.endswith("%"):
    values, form = [100 * x for x in values], f"{form[:-1]}f"
  return tables.mean(values, form, form)
