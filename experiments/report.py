"""Rewrites the results of README.md and results/README.md from the records.

`python -m experiments.report` makes one line for each preset in README.md, and
in results/README.md all that results/*.jsonl hold. With `--check` it only
compares, and fails where they differ.
"""

import collections
import json
import math
import pathlib
import shlex
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence

from absl import app, flags

_CHECK = flags.DEFINE_bool("check", False, "Fail if they are out of date.")
_README = flags.DEFINE_string("readme", "README.md", "With a block to rewrite.")
_RESULTS = flags.DEFINE_string("results", "results", "Folder of *.jsonl files.")

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
_TITLE = """# Results

Every metric and curve of the records in this folder, as means and standard
deviations over seeds; written by `python -m experiments.report`.
"""
_NO_RUNS = "No runs are recorded yet.\n"
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
  "Images/s",
)
# The main measure of a run: the first of these that it has, what it is called,
# and its factor.
_ACCURACY = 100.0
_MAIN = {
  "novel_error_percent": ("error, novel viewpoints (%)", 1.0),
  _ERROR: ("test error (%)", 1.0),
  "posterior_match_accuracy": ("accuracy without labels (%)", _ACCURACY),
  "presence_and_pose_accuracy": ("accuracy of a probe (%)", _ACCURACY),
  "segmentation_accuracy": ("points right (%)", _ACCURACY),
  "test_reconstruction_error": ("reconstruction error", 1.0),
  "r2_x": ("R^2 of x", 1.0),
}
# Of the evaluations that are main results too.
_MAIN_OF_SUITES = {
  "affnist": ("affnist_accuracy", "affNIST (%)", _ACCURACY),
  "affnist_like": (
    "affnist_like_accuracy", "affNIST-like views (%)", _ACCURACY
  ),
  "log_likelihood": ("log_likelihood", "log-likelihood (nats)", 1.0),
}  # fmt: skip
_SUMMARY = (
  "Preset",
  "Dataset",
  "Measure",
  "Ours",
  "Published",
  "Seeds",
  "Parameters",
  "Steps",
  "Minutes",
  "Device",
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
# The main measures of other papers, by preset, as it is.
_PAPER_PRESETS = {
  **dict.fromkeys(("boltzmann_mnist", "boltzmann_mnist_paper"), 0.07),
  **dict.fromkeys(("helmholtz_mnist", "helmholtz_mnist_slow"), 0.058),
  "helmholtz_fashion": 0.152,
  "constellation": 97.2,
  **dict.fromkeys(("scae_mnist", "scae_mnist_cpu", "scae_mnist_paper"), 98.7),
  "scae_cifar10": 25.0,
  "scae_svhn": 55.3,
  "smallnorb_paper": 1.8,
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


def summary(records: Iterable[dict]) -> str:
  """Returns a Markdown table of main measures, one row for each setting.

  Raises:
    ValueError: if one setting holds a seed twice.
  """
  rows = []
  for what, suite, group in _settings(records):
    experiment, dataset, name, steps, device = what
    first = group[0]
    metric, label, factor = _MAIN_OF_SUITES.get(suite, ("", "-", 1.0))
    if not suite:
      metric = next((x for x in _MAIN if x in first["metrics"]), "")
      label, factor = _MAIN.get(metric, ("-", 1.0))
    if suite and not metric:
      continue
    values = [factor * r["metrics"][metric] for r in group if metric]
    forms = (".2f", ".2f") if label.endswith("(%)") else (".4g", ".2g")
    size, minutes, _ = _costs(group)
    rows.append(
      [
        name if first["preset"] else name.replace("-", experiment, 1),
        dataset,
        label,
        _mean(values, *forms) if values else "-",
        "-" if suite else _published(first, metric),
        str(len(group)),
        size,
        steps,
        "-" if suite else minutes,
        device,
      ]
    )
  return _markdown(_SUMMARY, rows) or _NO_RUNS


def table(records: Iterable[dict]) -> str:
  """Returns Markdown of all records, the seeds of one setting in one row.

  Runs with a test error make the first table. Evaluations (with a `suite`) and
  other runs make the second, one row for each metric or curve. The commands
  follow.

  Raises:
    ValueError: if one setting holds a seed twice.
  """
  runs, others, commands = [], [], {}
  for what, suite, group in _settings(records):
    first = group[0]
    commands[first["command"]] = None
    if not suite and _ERROR in first["metrics"]:
      errors = [record["metrics"][_ERROR] for record in group]
      cells = _mean(errors, ".2f", ".3f"), str(len(group))
      runs.append([*what, *cells, _published(first, _ERROR), *_costs(group)])
      continue
    for name in first["metrics"]:
      if name in _SETTINGS:
        continue
      values = [r["metrics"][name] for r in group if name in r["metrics"]]
      value = _cell(values)
      others.append([*what, suite or "-", name, value, str(len(values))])
  if not commands:
    return _NO_RUNS
  parts = [
    _markdown([*_WHAT, *_RUN], runs),
    *_section(
      "Each metric or curve",
      _markdown([*_WHAT, "Suite", "Metric", "Value", "Seeds"], others),
    ),
    *_section(
      "Commands, of each row for its lowest seed",
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
  whole = pathlib.Path(_RESULTS.value) / "README.md"
  try:
    records = read_results(_RESULTS.value)
    new = {
      readme: replace_block(readme.read_text("utf-8"), summary(records)),
      whole: f"{_TITLE}\n{table(records)}",
    }
  except (OSError, ValueError) as error:
    sys.exit(str(error))
  for path, text in new.items():
    if not _CHECK.value:
      path.write_text(text, "utf-8")
    elif not path.exists() or path.read_text("utf-8") != text:
      sys.exit(f"{path} is out of date; run `python -m experiments.report`.")


def _settings(
  records: Iterable[dict],
) -> Iterator[tuple[list[str], str, list[dict]]]:
  """Yields the cells of `_WHAT`, the suite and the seeds of each setting."""
  groups = collections.defaultdict(lambda: collections.defaultdict(list))
  for record in records:
    key = tuple(record.get(name) or "" for name in _GROUP)
    # Runs that stop at an accuracy make as many steps as each needs.
    stops = record["flags"].get("stop_accuracy") is not None
    key += (0 if stops else record["num_steps"],)
    groups[key][_setting(record)].append(record)
  for key, settings in sorted(groups.items()):
    experiment, dataset, preset, device, suite, _ = key
    for setting, group in sorted(settings.items()):
      group.sort(key=lambda record: record["seed"])
      seeds = [record["seed"] for record in group]
      if len(set(seeds)) < len(seeds):
        raise ValueError(f"{key}: a seed occurs twice in {seeds}; keep one.")
      name = " ".join([preset or "-", *_differences(setting, settings)])
      steps = round(statistics.fmean(record["num_steps"] for record in group))
      yield [experiment, dataset, name, f"{steps:,}", device], suite, group


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


def _published(record: dict, metric: str) -> str:
  """What a paper says of the same network on the same data, if it does."""
  if metric == _ERROR and (error := _published_error(record)) is not None:
    return f"{error:g}"
  words = shlex.split(record["command"])
  changed = {word.partition("=")[0] for word in words if word[:2] == "--"} - {
    f"--{name}" for name in (*_FREE_FLAGS, "flagfile")
  }
  known = _PAPER_PRESETS.get(record["preset"])
  return "-" if changed or known is None else f"{known:g}"


def _published_error(record):
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


def _costs(group: Sequence[dict]) -> list[str]:
  """Parameters, minutes, images a second."""
  size = group[0]["num_parameters"]
  minutes = statistics.fmean(record["seconds"] for record in group) / 60
  rate = statistics.fmean(record["images_per_second"] for record in group)
  return [
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


def _section(title: str, text: str) -> list[str]:
  """Nothing where there is no text."""
  return [f"## {title}\n", text] if text else []


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  lines = [header, ["---"] * len(header), *rows] if rows else []
  lines = [[cell.replace("|", "\\|") for cell in line] for line in lines]
  return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
  app.run(main)
