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
_GROUP = ("experiment", "dataset", "preset", "device", "suite")
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
# Numbers in the scores of a suite that say how it was made.
_SETTINGS = (
  "num_images",
  "num_rotated",
  "views",
  "pad",
  "max_shift",
  "temperatures",
  "num_samples",
)
# Errors in percent (Sabour et al., 2017, tables 1 and section 6; Mazzia et al.,
# 2021): of CapsNet by number of iterations and whether it reconstructs.
_PAPER = {
  ("train_capsnet", "capsnet", 1, False): 0.34,
  ("train_capsnet", "capsnet", 1, True): 0.29,
  ("train_capsnet", "capsnet", 3, False): 0.35,
  ("train_capsnet", "capsnet", 3, True): 0.25,
  ("train_capsnet", "baseline"): 0.39,
  ("train_capsnet", "efficient"): 0.26,
  ("train_multimnist", "capsnet", 1, True): 7.5,
  ("train_multimnist", "capsnet", 3, True): 5.2,
  ("train_multimnist", "baseline"): 8.1,
}
# What the networks of those figures have.
_PAPER_FLAGS = {
  ("train_capsnet", "capsnet"): {"conv_features": 256, "num_types": 32},
  ("train_multimnist", "capsnet"): {"conv_features": 256, "num_types": 32},
  ("train_capsnet", "baseline"): {"cnn_features": ["256", "256", "128"]},
  ("train_multimnist", "baseline"): {"cnn_features": ["512", "256"]},
}


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
  other runs make the second, one row for each metric or curve. The commands
  follow.

  Raises:
    ValueError: if one setting holds a seed twice.
  """
  groups = collections.defaultdict(lambda: collections.defaultdict(list))
  for record in records:
    key = tuple(record.get(name) or "" for name in _GROUP)
    # Runs that stop at an accuracy make as many steps as each needs.
    stops = record["flags"].get("stop_accuracy") is not None
    key += (0 if stops else record["num_steps"],)
    groups[key][_setting(record)].append(record)
  runs, others, commands = [], [], {}
  for key, settings in sorted(groups.items()):
    experiment, dataset, preset, device, suite, _ = key
    for setting, group in sorted(settings.items()):
      seeds = [record["seed"] for record in group]
      if len(set(seeds)) < len(seeds):
        raise ValueError(f"{key}: a seed occurs twice in {seeds}; keep one.")
      first = group[seeds.index(min(seeds))]
      commands[first["command"]] = None
      name = " ".join([preset or "-", *_differences(setting, settings)])
      steps = round(statistics.fmean(record["num_steps"] for record in group))
      what = [experiment, dataset, name, f"{steps:,}", device]
      if not suite and _ERROR in first["metrics"]:
        runs.append([*what, *_run_cells(group)])
        continue
      for name in first["metrics"]:
        if name in _SETTINGS:
          continue
        values = [r["metrics"][name] for r in group if name in r["metrics"]]
        value = _cell(values)
        others.append([*what, suite or "-", name, value, str(len(values))])
  if not commands:
    return "No runs are recorded yet.\n"
  parts = [
    _markdown([*_WHAT, *_RUN, "Images/s"], runs),
    *_folded(
      "Evaluations: each metric or curve",
      _markdown([*_WHAT, "Suite", "Metric", "Value", "Seeds"], others),
    ),
    *_folded(
      "Commands: of each row, for its lowest seed",
      "\n".join(["```sh", *commands, "```\n"]),
    ),
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


def _published(record: dict) -> float | None:
  """The error of the same network on the same data in its paper, if any."""
  flag = record["flags"].get
  if record["dataset"] != "mnist" or flag("canvas"):
    return None
  key = record["experiment"], flag("model")
  widths = _PAPER_FLAGS.get(key, {})
  if any(flag(name, value) != value for name, value in widths.items()):
    return None
  if flag("model") == "capsnet":
    if flag("routing", "dynamic") != "dynamic":
      return None
    key += flag("num_iterations") or 3, flag("reconstruction") != "none"
  return _PAPER.get(key)


def _run_cells(group: Sequence[dict]) -> list[str]:
  size = group[0]["num_parameters"]
  published = _published(group[0])
  minutes = statistics.fmean(record["seconds"] for record in group) / 60
  rate = statistics.fmean(record["images_per_second"] for record in group)
  return [
    _mean([record["metrics"][_ERROR] for record in group], ".2f", ".3f"),
    str(len(group)),
    "-" if published is None else f"{published:g}",
    f"{size / 1e6:.1f}M" if size >= 999_500 else f"{size / 1e3:.0f}K",
    f"{minutes:.1f}",
    f"{rate:,.0f}",
  ]


def _cell(values: Sequence[float | list[float]]) -> str:
  """One number, or those of a curve, as means over seeds."""
  if not isinstance(values[0], list):
    return _mean(values, ".4g", ".2g")
  return " ".join(
    f"{statistics.fmean(point):.3g}" for point in zip(*values, strict=True)
  )


def _mean(values: Sequence[float], form: str, spread_form: str) -> str:
  """The mean and, of two or more, the sample standard deviation."""
  spread = f" ± {statistics.stdev(values):{spread_form}}" if values[1:] else ""
  return f"{statistics.fmean(values):{form}}{spread}"


def _folded(summary: str, text: str) -> list[str]:
  """What a reader unfolds; nothing where there is no text."""
  if not text:
    return []
  return [f"<details><summary>{summary}</summary>\n", text, "</details>\n"]


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  lines = [header, ["---"] * len(header), *rows] if rows else []
  lines = [[cell.replace("|", "\\|") for cell in line] for line in lines]
  return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
  app.run(main)
