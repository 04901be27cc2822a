"""Rewrites the results of README.md and results/README.md from the records.

`python -m experiments.report` makes one line for each preset in README.md, and
in results/README.md all that results/*.jsonl hold. Runs of presets that end in
`_sweep` stand beside each other in results/sweeps.md. With `--check` it only
compares, and fails where they differ.
"""

import collections
import pathlib
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence

from absl import app, flags

from experiments.common import archive, published

_CHECK = flags.DEFINE_bool("check", False, "Fail if they are out of date.")
_README = flags.DEFINE_string("readme", "README.md", "With a block to rewrite.")
_RESULTS = flags.DEFINE_string("results", "results", "Folder of *.jsonl files.")

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
_TITLE = """# Results

Every metric and curve of the records in this folder, as means and standard
deviations over seeds; written by `python -m experiments.report`.
"""
_SWEEPS = """# Sweeps

Short runs of one preset, each with other flags; written by `python -m
experiments.report`. Accuracies are of probes: of the presences of objects (t),
and of these with their poses; on test images as in training, on images turned
by any angle, and in affine views. Where poses are taken as known, without
`--gaussian_poses`, an ELBO is no bound on log p(x).
"""
_NO_RUNS = "No runs are recorded yet.\n"
_GROUP = ("experiment", "dataset", "preset", "device", "suite")
# Flags with a column of their own, and of how often a run is looked at.
_ELSEWHERE = {"num_steps", "log_every", "eval_every", "checkpoint_every"}
_WHAT = ("Experiment", "Dataset", "Preset", "Steps", "Device")
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
  published.ERROR: ("test error (%)", 1.0),
  "posterior_match_accuracy": ("accuracy without labels (%)", _ACCURACY),
  "presence_and_pose_accuracy": ("accuracy of a probe (%)", _ACCURACY),
  "segmentation_accuracy": ("points right (%)", _ACCURACY),
  "test_reconstruction_error": ("reconstruction error", 1.0),
  "r2_coordinates_x": ("R^2 of x, by coordinates", 1.0),
}
# Of the evaluations that are main results too.
_MAIN_OF_SUITES = {
  "affnist": ("affnist_accuracy", "affNIST (%)", _ACCURACY),
  "affnist_like": (
    "affnist_like_accuracy", "affNIST-like views (%)", _ACCURACY
  ),
  "log_likelihood": ("log_likelihood", "log-likelihood (nats)", 1.0),
}  # fmt: skip
# What the columns of sweeps are, in order, where any run has them.
_COMPARED = {
  "novel_error_percent": ("error, novel viewpoints (%)", 1.0),
  "test_familiar_accuracy": ("familiar viewpoints (%)", _ACCURACY),
  "test_elbo": ("ELBO (nats)", 1.0),
  "bound_1": ("bound, 1 sample", 1.0),
  "bound_100": ("bound, 100 samples", 1.0),
  "effective_samples_100": ("effective of 100", 1.0),
  "test_reconstruction_loss": ("squared error", 1.0),
  "test_reconstruction_error": ("absolute error", 1.0),
  "posterior_match_accuracy": ("without labels (%)", _ACCURACY),
  "presence_accuracy": ("t (%)", _ACCURACY),
  "presence_and_pose_accuracy": ("t, poses (%)", _ACCURACY),
  "rotated_presence_accuracy": ("turned: t (%)", _ACCURACY),
  "rotated_presence_and_pose_accuracy": ("turned: t, poses (%)", _ACCURACY),
  "affnist_like_presence_accuracy": ("views: t (%)", _ACCURACY),
  "affnist_like_presence_and_pose_accuracy": (
    "views: t, poses (%)", _ACCURACY
  ),
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
# Numbers in the scores of a suite that say how it was made.
_SETTINGS = (
  "num_images",
  "num_rows",
  "num_rotated",
  "views",
  "pad",
  "max_shift",
  "temperatures",
  "num_samples",
)


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
        "-" if suite else published.figure(first, metric),
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
    if not suite and published.ERROR in first["metrics"]:
      errors = [record["metrics"][published.ERROR] for record in group]
      cells = _mean(errors, ".2f", ".3f"), str(len(group))
      runs.append(
        [
          *what,
          *cells,
          published.figure(first, published.ERROR),
          *_costs(group),
        ]
      )
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


def sweeps(records: Iterable[dict]) -> str:
  """Returns Markdown of sweeps: one table for each preset, a row a setting.

  What was measured in training and by evaluations stands in one row.
  """
  presets = collections.defaultdict(lambda: collections.defaultdict(dict))
  for record in records:
    flags_given = " ".join(
      f"`{word}`" for word in published.changes(record["command"])
    )
    rows = presets[record["preset"], record["dataset"]]
    measured = rows[flags_given or "as it is"].setdefault(record["seed"], {})
    measured.update(record["metrics"])
  parts = [_SWEEPS]
  for (preset, dataset), rows in sorted(presets.items()):
    columns = {
      name: label
      for name, label in _COMPARED.items()
      if any(name in seed for seeds in rows.values() for seed in seeds.values())
    }
    cells = [
      [setting, *(_compared(seeds, *column) for column in columns.items())]
      for setting, seeds in sorted(rows.items(), key=_by_number)
    ]
    header = ["Flags", *(label for label, _ in columns.values())]
    parts += _section(f"{preset} on {dataset}", _markdown(header, cells))
  return "\n".join(parts)


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
    records = archive.read(_RESULTS.value)
    short = [x for x in records if (x["preset"] or "").endswith("_sweep")]
    records = [x for x in records if x not in short]
    new = {
      readme: replace_block(readme.read_text("utf-8"), summary(records)),
      whole: f"{_TITLE}\n{table(records)}",
      whole.with_name("sweeps.md"): sweeps(short),
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
  groups = collections.defaultdict(list)
  for record in records:
    key = tuple(record.get(name) or "" for name in _GROUP)
    # Runs that stop at an accuracy make as many steps as each needs.
    stops = record["flags"].get("stop_accuracy") is not None
    key += (0 if stops else record["num_steps"],)
    groups[key].append(record)
  for key, peers in sorted(groups.items()):
    experiment, dataset, preset, device, suite, _ = key
    settings = collections.defaultdict(list)
    for record in peers:
      settings[_setting(record, peers)].append(record)
    for setting, group in sorted(settings.items()):
      group.sort(key=lambda record: record["seed"])
      seeds = [record["seed"] for record in group]
      if len(set(seeds)) < len(seeds):
        raise ValueError(f"{key}: a seed occurs twice in {seeds}; keep one.")
      name = " ".join([preset or "-", *setting])
      steps = round(statistics.fmean(record["num_steps"] for record in group))
      yield [experiment, dataset, name, f"{steps:,}", device], suite, group


def _setting(record: dict, peers: Sequence[dict]) -> tuple[str, ...]:
  """The flags that tell a run from its preset, and from its peers.

  A flag that some peers do not have, being older than it, tells them apart only
  if the others give it several values.
  """
  changes = published.changes(record["command"]) if record["preset"] else []
  given = dict(word.lstrip("-").partition("=")[::2] for word in changes)
  differing = {
    name: str(value)
    for name, value in record["flags"].items()
    if name not in published.FREE_FLAGS
    and any(peer["flags"].get(name, value) != value for peer in peers)
  }
  return tuple(
    f"`{name}={value}`" if value else f"`{name}`"
    for name, value in sorted({**given, **differing}.items())
    if name not in _ELSEWHERE
  )


def _compared(seeds: dict[int, dict], name: str, form: tuple) -> str:
  """The cell of a metric, of those seeds that have it."""
  label, factor = form
  values = [factor * x[name] for x in seeds.values() if name in x]
  digits = ".1f" if label.endswith("(%)") else ".4g"
  return _mean(values, digits, ".2g") if values else "-"


def _by_number(row: tuple[str, dict]) -> list[str | float]:
  """Sorts settings by their names, and by numbers within them as numbers."""
  words = re.split(r"(\d+\.?\d*)", row[0].replace("as it is", ""))
  return [float(word) if i % 2 else word for i, word in enumerate(words)]


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
