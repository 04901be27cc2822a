"""The pages of results/: every metric and curve of the records, by binary."""

import collections
import statistics
from collections.abc import Iterable, Sequence

from . import densities, published, tables

_TITLE = """# Results

All that the records in this folder hold; written by `python -m
experiments.report`. For three or more seeds a cell holds the mean and the
sample standard deviation; for two seeds, both values; for a curve, the means
only. A metric named `standard_error` is the standard error of the mean over
test images, for one seed; that of `log_partition` is over chains. Seeds share a
row only if their device and all their flags agree but the accuracy at which
each stops; where their commits differ, the row names them. "Images" is the
number of test images that a metric was measured on, or - if not recorded. The
other metrics of the runs of this page are on the pages of their binaries.

Controls of pixels by an MLP (`*_pixels_mlp_*` of the suite `equivariance`) are
too weak in evaluations before the commit f532b56: all principal components had
the same standard deviation.
"""
_WHAT = ("Experiment", "Dataset", "Preset", "Steps", "Device")
_RUN = (
  "Test error (%)",
  "Images",
  "Seeds",
  "Commit",
  "Published (%)",
  "Parameters",
  "Minutes",
  "Images/s",
)
_METRIC = ("Suite", "Metric", "Value", "Images", "Seeds", "Commit")
_PROVENANCE = """# Provenance

Every record was made by committed code; others are refused.
"Of training" is the commit that trained the evaluated model, where it is
recorded. "At the end" is the commit when the run ended, if it was another. Data
are the first digits of the SHA-256 of the training set and of the test set.
Packages are given as numbers of this list.

{combined}
"""
# By commit of the history: the commits that it combines, whose code it has.
COMBINED = {
  "d38a343": ("01360d0", "2c3a278", "5dac060", "afd2f01", "efd7e34"),
  "0c055eb": ("2fd8d70", "303722e", "5ce54bf", "dd1810e", "fa5a7c3"),
}
COMMITS = ("commit", "training_commit", "commit_at_end")
_CARD = (
  "Suite", "Seeds", "Commit", "Of training", "At the end", "Data", "Packages"
)  # fmt: skip


def pages(records: Iterable[dict]) -> dict[str, str]:
  """Returns Markdown of all records, by the file's name in results/.

  `README.md` has a row for each setting that is scored by a test error, and the
  densities. `metrics/EXPERIMENT.md` has a table for each setting of a binary,
  with a row for each metric or curve of its training and of its evaluations.
  `provenance.md` and `commands.md` tell how each row was made.

  Raises:
    ValueError: if one setting holds a seed twice.
  """
  records = list(records)
  settings = list(tables.settings(records))
  of_binary = collections.defaultdict(list)
  for setting in settings:
    of_binary[setting.experiment].append(setting)
  metrics = {
    f"metrics/{name}.md": text
    for name, group in of_binary.items()
    if (text := _metrics(name, group))
  }
  links = [f"[{x}]({x})" for x in (*metrics, "provenance.md", "commands.md")]
  front = [
    _TITLE,
    "Further pages: " + ",\n".join(links) + ".\n" if settings else "",
    *tables.section("Test errors", _errors(settings)),
    *tables.section(densities.TITLE, densities.full(records)),
  ]
  if not settings:
    return {"README.md": f"{_TITLE}\n{tables.NO_RUNS}"}
  return {
    "README.md": "\n".join(part for part in front if part),
    **metrics,
    "provenance.md": _provenance(settings),
    "commands.md": _commands(settings),
  }


def _has_error(setting: tables.Setting) -> bool:
  """Whether a setting has a row of test errors."""
  metrics = setting.records[0]["metrics"]
  return not setting.suite and published.ERROR in metrics


def _errors(settings: Sequence[tables.Setting]) -> str:
  """The table of the settings that a test error scores."""
  rows = []
  for setting in filter(_has_error, settings):
    group = setting.records
    errors = [record["metrics"][published.ERROR] for record in group]
    rows.append(
      [
        *setting.what,
        tables.mean(errors, ".2f", ".3f"),
        tables.images(group, published.ERROR),
        str(len(group)),
        tables.commits(group),
        published.figure(group[0], published.ERROR),
        *tables.costs(group),
      ]
    )
  return tables.markdown([*_WHAT, *_RUN], rows)


def _metrics(binary: str, settings: Sequence[tables.Setting]) -> str:
  """The page of a binary: a section for each setting; empty without metrics."""
  sections = collections.defaultdict(list)
  for setting in settings:
    _, dataset, name, steps, device = setting.what
    title = f"{name} on {dataset}, {steps} updates, {device}"
    if rows := _of_setting(setting):
      sections[title] += rows
  parts = [f"# Metrics of {binary}\n"]
  for title, rows in sections.items():
    parts += tables.section(title, tables.markdown(_METRIC, rows))
  return "\n".join(parts) if len(parts) > 1 else ""


def _of_setting(setting: tables.Setting) -> list[list[str]]:
  """A row for each metric or curve of a setting but its test error."""
  group, rows = setting.records, []
  elsewhere = {*tables.SETTINGS}
  if _has_error(setting):
    elsewhere.add(published.ERROR)
  # A seed may have a metric that the first has not.
  for name in dict.fromkeys(x for record in group for x in record["metrics"]):
    if name in elsewhere:
      continue
    having = [record for record in group if name in record["metrics"]]
    rows.append(
      [
        _suite(setting),
        name,
        _cell([record["metrics"][name] for record in having]),
        tables.images(having, name),
        str(len(having)),
        tables.commits(having),
      ]
    )
  return rows


def _provenance(settings: Sequence[tables.Setting]) -> str:
  """The page of commits, data and packages of each row."""
  environments: dict[str, str] = {}
  cards = [[*x.what, *_card(x, environments)] for x in settings]
  combined = " ".join(
    f"The commits {', '.join(names)} are combined in {commit} of the history."
    for commit, names in COMBINED.items()
  )
  return "\n".join(
    [
      _PROVENANCE.format(combined=combined),
      *(f"{key}. {name}" for name, key in environments.items()),
      "",
      tables.markdown([*_WHAT, *_CARD], cards),
    ]
  )


def _commands(settings: Sequence[tables.Setting]) -> str:
  """The page of commands, each once."""
  commands = dict.fromkeys(x.records[0]["command"] for x in settings)
  title = "# Commands of each row, for its lowest seed\n"
  return "\n".join([title, "```sh", *commands, "```\n"])


def _suite(setting: tables.Setting) -> str:
  """The name of the suite; with the canvas where views depend on it."""
  if setting.suite.startswith("affnist_like"):
    return f"{setting.suite}, {tables.canvas(setting.records[0])}"
  return setting.suite or "-"


def _card(setting: tables.Setting, environments: dict[str, str]) -> list[str]:
  """The provenance of a row; package versions are added to `environments`."""
  keys = {}
  for record in setting.records:
    packages = ", ".join(f"{x} {n}" for x, n in record["versions"].items())
    number = str(len(environments) + 1)
    keys[environments.setdefault(packages, number)] = None
  return [
    setting.suite or "-",
    " ".join(str(record["seed"]) for record in setting.records),
    *(tables.commits(setting.records, name) for name in COMMITS),
    tables.fingerprint(setting.records),
    " ".join(keys),
  ]


def _cell(values: Sequence[float | list[float]]) -> str:
  """The text of a cell: means over seeds, of a number or of a curve's points.

  Curves of different lengths, for example with different bins, have no mean.
  """
  if not isinstance(values[0], list):
    return tables.mean(values, ".4g", ".2g")
  if len({len(curve) for curve in values}) > 1:
    return "-"
  return " ".join(
    f"{statistics.fmean(point):.3g}" for point in zip(*values, strict=True)
  )
