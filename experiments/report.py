"""Rewrites the numbers of the documentation and results/ from the records.

`python -m experiments.report` writes one line for each preset into
docs/results.md, and all metrics of the records into results/README.md. Runs of
presets that end in `_sweep` are compared in results/sweeps.md. Numbers in the
README and in docs/ stand between comments that name their record (see
`experiments.records.pages`); a page with markers of `TABLES` gets their table.
With `--check` it only compares the pages with the records, and fails where they
differ.
"""

import pathlib
import statistics
import sys
from collections.abc import Iterable, Sequence

from absl import app, flags

from .evaluation import suites
from .records import (
  ablations,
  densities,
  networks,
  pages,
  published,
  routings,
  scaling,
  sweeps,
  tables,
)
from .records import records as archive

_CHECK = flags.DEFINE_bool(
  "check", False, "Only compare, and fail if a page is out of date."
)
_PAGE = flags.DEFINE_string(
  "page", "docs/results.md", "Page with the block to rewrite."
)
_PAGES = flags.DEFINE_list(
  "pages",
  ["README.md", "docs"],
  "Pages, or folders of pages, with numbers of records in their text.",
)
_RESULTS = flags.DEFINE_string(
  "results",
  "results",
  "Folder that holds records/*.jsonl and gets the generated pages.",
)

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
# Tables on pages of docs/, by the name in the markers around them.
TABLES = {
  "routings": routings.table,
  "routers": routings.by_name,
  "scaling": scaling.table,
  "ablations": ablations.table,
  "networks": networks.table,
}
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
_NO_RUNS = "No runs are recorded yet.\n"
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
# The main measure of a run is the first of these that it has: name, label and
# factor.
_ACCURACY = 100.0
_RECONSTRUCTION = "test_reconstruction_error"
_MAIN = {
  "novel_error_percent": ("error, novel viewpoints (%)", 1.0),
  published.ERROR: ("test error (%)", 1.0),
  "posterior_match_accuracy": ("accuracy without labels (%)", _ACCURACY),
  "presence_and_pose_accuracy": ("accuracy of a probe (%)", _ACCURACY),
  "segmentation_accuracy": ("points assigned correctly (%)", _ACCURACY),
  _RECONSTRUCTION: ("reconstruction error", 1.0),
  "r2_coordinates_x": ("R^2 of x, by coordinates", 1.0),
}
# Used instead for models whose reconstructions have two kinds of inference.
_INFERENCES = {
  f"{_RECONSTRUCTION}_mean_field": (
    "reconstruction error, by mean field", 1.0
  ),
  f"{_RECONSTRUCTION}_exact": (
    "reconstruction error, exact posterior", 1.0
  ),
}  # fmt: skip
# The main scores of evaluation suites.
_MAIN_OF_SUITES = {
  name: some.main for name, some in suites.SUITES.items() if some.main
}
_SUMMARY = (
  "Preset",
  "Dataset",
  "Measure",
  "Ours",
  "Published",
  "Images",
  "Seeds",
  "Parameters",
  "Steps",
  "Minutes",
  "Device",
)
# Numbers in the scores of a suite that describe its settings.
_SETTINGS = (
  "num_images",
  "num_rows",
  "views",
  "pad",
  "max_shift",
  "temperatures",
  "num_samples",
)


def summary(records: Iterable[dict]) -> str:
  """Returns a Markdown table of main measures, with rows for each setting.

  Raises:
    ValueError: if one setting holds a seed twice.
  """
  rows = []
  for setting in tables.settings(records):
    group, first = setting.records, setting.records[0]
    name = setting.name
    for metric, (label, factor) in _main_measures(setting).items():
      values = [factor * r["metrics"][metric] for r in group if metric]
      forms = (".2f", ".2f") if label.endswith("(%)") else (".4g", ".2g")
      size, minutes, _ = _costs(group)
      images = tables.images(group, metric)
      # Older runs do not record it.
      images = "all" if images == "-" and not setting.suite else images
      experiment = setting.experiment
      rows.append(
        [
          name if first["preset"] else name.replace("-", experiment, 1),
          setting.dataset,
          label,
          tables.mean(values, *forms) if values else "-",
          "-" if setting.suite else published.figure(first, metric),
          images,
          tables.seeds(group),
          size,
          setting.steps,
          "-" if setting.suite else minutes,
          setting.device,
        ]
      )
  return tables.markdown(_SUMMARY, rows) or _NO_RUNS


def table(records: Iterable[dict]) -> str:
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
          *_costs(group),
        ]
      )
      continue
    for name in first["metrics"]:
      if name in _SETTINGS:
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
    return _NO_RUNS
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


def replace_block(
  text: str, table: str, marks: tuple[str, str] = (BEGIN, END)
) -> str:
  """Puts a table between the markers of a text.

  Args:
    text: Markdown.
    table: what comes between.
    marks: the markers before and after it.

  Raises:
    ValueError: unless the text has each marker once, and in order.
  """
  begin, end = marks
  before, _, rest = text.partition(begin)
  _, found, after = rest.partition(end)
  if not found or text.count(begin) + text.count(end) != 2:
    raise ValueError(
      f"the page must hold a line `{begin}` and below it a line `{end}`, "
      "once each; add them where the results belong."
    )
  return f"{before}{begin}\n\n{table}\n{end}{after}"


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  page = pathlib.Path(_PAGE.value)
  whole = pathlib.Path(_RESULTS.value) / "README.md"
  try:
    every = archive.read(_RESULTS.value)
    short = [x for x in every if (x["preset"] or "").endswith("_sweep")]
    records = [x for x in every if x not in short]
    block = summary(records), densities.compact(records)
    new = {
      page: replace_block(
        page.read_text("utf-8"), "\n".join(filter(None, block))
      ),
      whole: f"{_TITLE}\n{table(records)}",
      whole.with_name("sweeps.md"): sweeps.page(short),
    }
    named = pages.read(_RESULTS.value)
    for path in _pages():
      text = new.get(path) or path.read_text("utf-8")
      for name, make in TABLES.items():
        marks = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        if marks[0] in text:
          text = replace_block(text, make(named), marks)
      new[path] = pages.fill(text, named)
  except (OSError, ValueError) as error:
    sys.exit(str(error))
  stale = [
    path
    for path, text in new.items()
    if not path.exists() or path.read_text("utf-8") != text
  ]
  if _CHECK.value and stale:
    sys.exit(f"{stale[0]} is out of date; run `python -m experiments.report`.")
  for path in stale:
    path.write_text(new[path], "utf-8")
    print(f"wrote {path}")
  print(
    f"{len(new) - len(stale)} of {len(new)} pages were up to date with "
    f"{len(every)} records of {_RESULTS.value}"
  )


def _pages() -> list[pathlib.Path]:
  """The pages whose numbers are filled in."""
  found = []
  for path in map(pathlib.Path, _PAGES.value):
    if path.is_dir():
      inside = path.rglob("*.md")
      found += sorted(x for x in inside if "build" not in x.parts)
    else:
      found.append(path)
  return found


def _main_measures(setting: tables.Setting) -> dict[str, tuple[str, float]]:
  """The labels and factors of the measures that the summary shows."""
  if setting.suite:
    metric, label, factor = _MAIN_OF_SUITES.get(setting.suite, ("", "", 1.0))
    label = label.format(canvas=tables.canvas(setting.records[0]))
    return {metric: (label, factor)} if metric else {}
  first = setting.records[0]
  # Older records of a setting may lack what newer ones have.
  known = set.intersection(*(set(x["metrics"]) for x in setting.records))
  metric = next((x for x in _MAIN if x in known), "")
  both = {x: form for x, form in _INFERENCES.items() if x in known}
  if metric == _RECONSTRUCTION and both:
    return both
  label, factor = _MAIN.get(metric, ("-", 1.0))
  if metric == published.ERROR and _is_routed_at_the_end(first):
    label = "test error, this routing in the last layer alone (%)"
  iterations = first["flags"].get("mean_field_iterations")
  if metric == _RECONSTRUCTION and iterations is not None:
    label += ", by mean field" if iterations else ", exact posterior"
  return {metric: (label, factor)}


def _is_routed_at_the_end(record: dict) -> bool:
  """Whether a routing meant for many layers is used in CapsNet's last layer."""
  flag = record["flags"].get
  is_capsnet = flag("model", "capsnet") == "capsnet"
  is_deep = flag("conv_capsules") or flag("hidden_capsules")
  return is_capsnet and not is_deep and flag("routing", "dynamic") != "dynamic"


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


def _costs(group: Sequence[dict]) -> list[str]:
  """The cells of parameters, minutes and images per second."""
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
    return tables.mean(values, ".4g", ".2g")
  return " ".join(
    f"{statistics.fmean(point):.3g}" for point in zip(*values, strict=True)
  )


if __name__ == "__main__":
  app.run(main)
