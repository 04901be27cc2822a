"""The table of main measures: a row for each setting.

A model with two kinds of inference has a row for each.
"""

from collections.abc import Iterable

from ..evaluation import suites
from . import published, tables

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
_HEADER = (
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


def table(records: Iterable[dict]) -> str:
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
      size, minutes, _ = tables.costs(group)
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
  return tables.markdown(_HEADER, rows) or tables.NO_RUNS


def _main_measures(setting: tables.Setting) -> dict[str, tuple[str, float]]:
  """The labels and factors of the measures that the summary shows."""
  if setting.suite:
    metric, label, factor = _MAIN_OF_SUITES.get(setting.suite, ("", "", 1.0))
    label = label.format(canvas=tables.canvas(setting.records[0]))
    # Not all models have all scores of a suite.
    has = metric and all(metric in x["metrics"] for x in setting.records)
    return {metric: (label, factor)} if has else {}
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
