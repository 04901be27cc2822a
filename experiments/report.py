"""Rewrites the results block of README.md from results/*.jsonl.

`python -m experiments.report` rewrites it; with `--check` it only compares, and
fails where README.md and results/ differ.
"""

import collections
import json
import math
import pathlib
import statistics
import sys
from collections.abc import Iterable, Sequence

from absl import app, flags

_CHECK = flags.DEFINE_bool("check", False, "Fail if README is out of date.")
_README = flags.DEFINE_string("readme", "README.md", "File to rewrite.")
_RESULTS = flags.DEFINE_string("results", "results", "Folder of *.jsonl files.")

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
_FIELDS = {
  **dict.fromkeys(("experiment", "dataset", "command", "device"), str),
  **dict.fromkeys(("seed", "num_parameters", "num_steps"), int),
  **dict.fromkeys(("seconds", "images_per_second"), int | float),
  **dict.fromkeys(("flags", "metrics"), dict),
  **dict.fromkeys(("preset", "suite"), str | None),
}
_GROUP = ("experiment", "dataset", "preset", "num_steps", "device", "suite")
_WHAT = ("Experiment", "Dataset", "Preset", "Steps", "Device")
_ERROR = "test_error_percent"
_RUN = (
  "Test error (%)",
  "Seeds",
  "Published (%)",
  "Parameters",
  "Minutes",
)
# Flags that differ between the runs of one row.
_FREE_FLAGS = {"seed", "workdir", "data_dir", "compilation_cache"}
# Error on MNIST in percent (Sabour et al., 2017, table 1): of CapsNet by number
# of iterations and whether it reconstructs, and of the baseline.
_PAPER = {(1, False): 0.34, (1, True): 0.29, (3, False): 0.35, (3, True): 0.25}
_PAPER |= {"baseline": 0.39, "efficient": 0.26}


def read_results(folder: str | pathlib.Path) -> list[dict]:
  """Returns the records in a folder's *.jsonl files, by file name and line.

  Args:
    folder: its files have one object a line, each like a run's summary.json.

  Raises:
    ValueError: if the folder is missing, or a line is no such object; names the
      file, the line and the fault.
  """
  folder = pathlib.Path(folder)
  if not folder.is_dir():
    raise ValueError(f"no folder {folder}; run this in the repository's root.")
  records = []
  for path in sorted(folder.glob("*.jsonl")):
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
      try:
        records.append(_parse(line))
      except ValueError as error:
        raise ValueError(f"{path}, line {number}: {error}") from error
  return records


def table(records: Iterable[dict]) -> str:
  """Returns Markdown tables of records, the seeds of one setting in one row.

  Runs with a test error make the first table. Evaluations (with a `suite`) and
  other runs make the second, one row for each metric. The commands follow.

  Raises:
    ValueError: if one setting holds a seed twice.
  """
  groups = collections.defaultdict(lambda: collections.defaultdict(list))
  for record in records:
    key = tuple(record.get(name) or "" for name in _GROUP)
    groups[key][_setting(record)].append(record)
  runs, others, commands = [], [], {}
  for key, settings in sorted(groups.items()):
    experiment, dataset, preset, steps, device, suite = key
    for setting, group in sorted(settings.items()):
      seeds = [record["seed"] for record in group]
      if len(set(seeds)) < len(seeds):
        raise ValueError(f"{key}: a seed occurs twice in {seeds}; keep one.")
      first = group[seeds.index(min(seeds))]
      commands[first["command"]] = None
      name = " ".join([preset or "-", *_differences(setting, settings)])
      what = [experiment, dataset, name, f"{steps:,}", device]
      if not suite and _ERROR in first["metrics"]:
        runs.append([*what, *_run_cells(group)])
        continue
      for name in first["metrics"]:
        if isinstance(first["metrics"][name], list):
          continue  # a curve, which figures show
        values = [r["metrics"][name] for r in group if name in r["metrics"]]
        value = _mean(values, ".4g", ".2g")
        others.append([*what, suite or "-", name, value, str(len(values))])
  if not commands:
    return "No runs are recorded yet.\n"
  parts = [
    _markdown([*_WHAT, *_RUN, "Images/s"], runs),
    _markdown([*_WHAT, "Suite", "Metric", "Value", "Seeds"], others),
    "<details><summary>Commands: of each row, for its lowest seed</summary>\n",
    "\n".join(["```sh", *commands, "```\n"]),
    "</details>\n",
  ]
  return "\n".join(part for part in parts if part)


def replace_block(text: str, table: str) -> str:
  """Puts a table between the markers of a text.

  Raises:
    ValueError: unless the text has each marker once, and in order.
  """
  before, _, rest = text.partition(BEGIN)
  _, end, after = rest.partition(END)
  if not end or text.count(BEGIN) + text.count(END) != 2:
    raise ValueError(
      f"README must hold a line `{BEGIN}` and below it a line `{END}`, once "
      "each; add them where the results belong."
    )
  return f"{before}{BEGIN}\n\n{table}\n{END}{after}"


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  readme = pathlib.Path(_README.value)
  try:
    old = readme.read_text("utf-8")
    new = replace_block(old, table(read_results(_RESULTS.value)))
  except (OSError, ValueError) as error:
    sys.exit(str(error))
  if not _CHECK.value:
    readme.write_text(new, "utf-8")
  elif new != old:
    sys.exit(f"{readme} is out of date; run `python -m experiments.report`.")


def _parse(line: str) -> dict:
  record = json.loads(line)
  if not isinstance(record, dict):
    raise ValueError(f"expected an object, got {line[:40]}")
  for name, kind in _FIELDS.items():
    if not isinstance(value := record.get(name), kind):
      raise ValueError(f"`{name}` is {value!r}, expected {kind}")
  for name, value in record["metrics"].items():
    points = value if isinstance(value, list) else [value]
    if not all(isinstance(x, int | float) and math.isfinite(x) for x in points):
      raise ValueError(f"metric `{name}` is {value!r}, expected a number")
  return record


def _setting(record: dict) -> str:
  """The flags that all runs of a row share, in a form that sorts."""
  kept = {k: v for k, v in record["flags"].items() if k not in _FREE_FLAGS}
  return json.dumps(kept, sort_keys=True)


def _differences(setting: str, settings: Iterable[str]) -> list[str]:
  """The flags that tell a row from others with the same preset."""
  peers = [json.loads(other) for other in settings]
  return [
    f"`{name}={value}`"
    for name, value in json.loads(setting).items()
    if any(peer.get(name) != value for peer in peers)
  ]


def _run_cells(group: Sequence[dict]) -> list[str]:
  first = group[0]
  flag, size = first["flags"].get, first["num_parameters"]
  variant = flag("model")
  if variant == "capsnet":
    iterations = flag("num_iterations") or 3
    variant = (iterations, flag("reconstruction") != "none")
  published = (
    first["dataset"] == "mnist"
    and first["experiment"] == "train_capsnet"
    and flag("routing", "dynamic") == "dynamic"
    and not flag("canvas")
  )
  minutes = statistics.fmean(record["seconds"] for record in group) / 60
  rate = statistics.fmean(record["images_per_second"] for record in group)
  return [
    _mean([record["metrics"][_ERROR] for record in group], ".2f", ".3f"),
    str(len(group)),
    str(_PAPER.get(variant, "-") if published else "-"),
    f"{size / 1e6:.1f}M" if size >= 999_500 else f"{size / 1e3:.0f}K",
    f"{minutes:.1f}",
    f"{rate:,.0f}",
  ]


def _mean(values: Sequence[float], form: str, spread_form: str) -> str:
  """The mean and, of two or more, the sample standard deviation."""
  spread = f" ± {statistics.stdev(values):{spread_form}}" if values[1:] else ""
  return f"{statistics.fmean(values):{form}}{spread}"


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  lines = [header, ["---"] * len(header), *rows] if rows else []
  lines = [[cell.replace("|", "\\|") for cell in line] for line in lines]
  return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
  app.run(main)
