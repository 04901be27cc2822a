"""The page of every metric and curve of the records, with their provenance."""

import statistics
from collections.abc import Iterable, Sequence

from . import densities, published, tables

_TITLE = """# Results

Every metric and curve of the records in this folder; written by `python -m
experiments.report`. For three or more seeds a cell holds the mean and the
sample standard deviation; for two seeds, both values; for a curve, the means
only. A metric named `standard_error` is the standard error of the mean over
test images, for one seed. Seeds share a row only if their device and all their
flags agree but the accuracy at which each stops; where their commits differ,
the row names them. "Images" is the number of test images that a metric was
measured on, or - if not recorded.
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
_PROVENANCE = """Every record was made by committed code; others are refused.
"Of training" is the commit that trained the evaluated model, where it is
recorded. "At the end" is the commit when the run ended, if it was another. Data
are the first digits of the SHA-256 of the training set and of the test set.
Packages are given as numbers of this list.
"""
_CARD_COMMITS = ("commit", "training_commit", "commit_at_end")
_CARD = (
  "Suite", "Seeds", "Commit", "Of training", "At the end", "Data", "Packages"
)  # fmt: skip


def page(records: Iterable[dict]) -> str:
  """The whole page in Markdown; see `body`."""
  return f"{_TITLE}\n{body(records)}"


def body(records: Iterable[dict]) -> str:
  """Returns Markdown of all records, the seeds of one setting in one row.

  Runs with a test error make the first table. Evaluations (with a `suite`) and
  other runs make the second, one row for each metric or curve. The provenance
  and the commands of each row follow.

  Raises:
    ValueError: if one setting holds a seed twice.
  """
  runs, others, cards, commands = [], [], [], {}
  environments = {}
  for setting in tables.settings(records):
    group, first = setting.records, setting.records[0]
    commands[first["command"]] = None
    cards.append([*setting.what, *_card(setting, environments)])
    if not setting.suite and published.ERROR in first["metrics"]:
      errors = [record["metrics"][published.ERROR] for record in group]
      runs.append(
        [
          *setting.what,
          tables.mean(errors, ".2f", ".3f"),
          tables.images(group, published.ERROR),
          str(len(group)),
          tables.commits(group),
          published.figure(first, published.ERROR),
          *tables.costs(group),
        ]
      )
      continue
    # A seed may have a metric that the first has not.
    for name in dict.fromkeys(x for record in group for x in record["metrics"]):
      if name in tables.SETTINGS:
        continue
      having = [record for record in group if name in record["metrics"]]
      others.append(
        [
          *setting.what,
          _suite(setting),
          name,
          _cell([record["metrics"][name] for record in having]),
          tables.images(having, name),
          str(len(having)),
          tables.commits(having),
        ]
      )
  if not commands:
    return tables.NO_RUNS
  parts = [
    *tables.section("Test errors", tables.markdown([*_WHAT, *_RUN], runs)),
    *tables.section(
      "Each metric or curve",
      tables.markdown([*_WHAT, *_METRIC], others),
    ),
    *tables.section(densities.TITLE, densities.full(records)),
    *tables.section(
      "Provenance",
      "\n".join(
        [
          _PROVENANCE,
          *(f"{key}. {name}" for name, key in environments.items()),
          "",
          tables.markdown([*_WHAT, *_CARD], cards),
        ]
      ),
    ),
    *tables.section(
      "Commands of each row, for its lowest seed",
      "\n".join(["```sh", *commands, "```\n"]),
    ),
  ]
  return "\n".join(part for part in parts if part)


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
    *(tables.commits(setting.records, name) for name in _CARD_COMMITS),
    tables.fingerprint(setting.records),
    " ".join(keys),
  ]


def _cell(values: Sequence[float | list[float]]) -> str:
  """One number, or those of a curve, as means over seeds.

  Curves of several lengths, as over bins that some seeds have, have no mean.
  """
  if not isinstance(values[0], list):
    return tables.mean(values, ".4g", ".2g")
  if len({len(curve) for curve in values}) > 1:
    return "-"
  return " ".join(
    f"{statistics.fmean(point):.3g}" for point in zip(*values, strict=True)
  )
