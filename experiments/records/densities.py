"""Tables of the log-likelihood of test images, in nats."""

import statistics
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from . import tables

# The suites that measure the log-likelihood.
_SUITES = ("bound", "importance", "log_likelihood")
TITLE = "Densities of test images"
# Metrics of the suite `importance`, and their names in the suite `bound`.
_ALIASES = {"bound_1": "elbo", "bound_100": "importance_bound"}
_NUM_SAMPLES = 100  # where a record does not say
_ESTIMATORS = {
  "elbo": "ELBO",
  "importance_bound": "importance bound, {} samples",
  "log_likelihood": "annealed importance sampling",
  "log_likelihood_backwards": "annealed importance sampling, backwards",
}
# Inputs of inference in a Helmholtz machine, by the suffix of a metric.
_INPUTS = {"": "", "_mean_field": ", from expectations below"}
_FULL = (
  "Preset",
  "Dataset",
  "Pixels",
  "Estimator",
  "Nats",
  "Error over images",
  "Error of log Z",
  "Learning rate",
  "Steps",
  "Images",
  "Seeds",
  "Commit",
)
_COMPACT = (
  "Preset",
  "Dataset",
  "Pixels",
  "ELBO",
  "Importance bound",
  "AIS",
  "AIS backwards",
  "Learning rate",
  "Steps",
  "Images",
  "Seeds",
)
_NOTE = """Mean log-likelihood of a test image, in nats. The ELBO and the
importance bound are below log p(x) on average. Annealed importance sampling
(AIS) is above it on average; backwards it is below it on average, if its chains
have mixed. Pixels are either sampled as 0 or 1, with their intensity as the
probability of 1, or are intensities with a density; the two kinds cannot be
compared. Compare models at the same learning rate, or each at its best one.
"""


class _Estimate(NamedTuple):
  """An estimator of the log-likelihood, with the seeds of one setting.

  Attributes:
    setting: the setting of an evaluation.
    metric: the name of the metric in its records.
    name: the estimator, a key of `_ESTIMATORS`.
    inputs: the inputs of inference, a key of `_INPUTS`.
  """

  setting: tables.Setting
  metric: str
  name: str
  inputs: str

  @property
  def nats(self) -> str:
    return tables.mean(self.values(self.metric), ".1f", ".2f")

  def values(self, metric: str) -> list[float]:
    """The values of a metric, for the seeds that have it."""
    found = (record["metrics"] for record in self.setting.records)
    return [metrics[metric] for metrics in found if metric in metrics]


def full(records: Iterable[dict]) -> str:
  """Returns a note and a Markdown table with one row for each estimate."""
  rows = []
  for one in _estimates(records):
    setting = one.setting
    samples, *_ = one.values("num_samples") or [_NUM_SAMPLES]
    errors = one.values(_error_of(one.metric))
    label = _ESTIMATORS[one.name].format(samples) + _INPUTS[one.inputs]
    rows.append(
      [
        setting.name,
        setting.dataset,
        _pixels(setting),
        label,
        one.nats,
        f"{statistics.fmean(errors):.2g}" if errors else "-",
        _error_of_partition(one),
        _rate(setting),
        setting.steps,
        tables.images(setting.records, one.metric),
        tables.seeds(setting.records),
        tables.commits(setting.records),
      ]
    )
  return _noted(tables.markdown(_FULL, rows))


def compact(records: Iterable[dict]) -> str:
  """Returns a note and a Markdown table with one row for each setting."""
  rows = {}
  for one in _estimates(records):
    setting = one.setting
    key = setting.name + _INPUTS[one.inputs], *setting.what
    begin = [key[0], setting.dataset, _pixels(setting)]
    end = [
      _rate(setting),
      setting.steps,
      tables.images(setting.records, one.metric),
      tables.seeds(setting.records),
    ]
    _, cells, _ = rows.setdefault(
      key, (begin, dict.fromkeys(_ESTIMATORS, "-"), end)
    )
    cells[one.name] = one.nats
  cells = [[*begin, *nats.values(), *end] for begin, nats, end in rows.values()]
  return _noted(tables.markdown(_COMPACT, cells))


def _noted(table: str) -> str:
  return f"{_NOTE}\n{table}" if table else ""


def _estimates(records: Iterable[dict]) -> Iterator[_Estimate]:
  """Yields estimates by data set and kind of pixels, the highest first."""
  found = []
  kept = [record for record in records if record.get("suite") in _SUITES]
  for setting in tables.settings(kept):
    own = [
      _Estimate(setting, metric, name, inputs)
      for metric in dict.fromkeys(
        name for record in setting.records for name in record["metrics"]
      )
      for name in _ESTIMATORS
      for inputs in _INPUTS
      if _ALIASES.get(metric, metric) == name + inputs
    ]
    if own:
      best = max(statistics.fmean(one.values(one.metric)) for one in own)
      key = setting.dataset, _pixels(setting), -best, setting.what
      found.append((key, own))
  for _, own in sorted(found, key=lambda pair: pair[0]):
    yield from own


def _pixels(setting: tables.Setting) -> str:
  flag = setting.records[0]["flags"].get
  gaussian = flag("visible") == "gaussian" or flag("pixel_scale") is not None
  return "density" if gaussian else "0 or 1"


def _rate(setting: tables.Setting) -> str:
  flag = setting.records[0]["flags"].get
  before = flag("pretrain_learning_rate") if flag("pretrain_steps") else None
  if (rate := flag("learning_rate")) is None:
    return "-"
  rate = f"{rate:g}"
  return rate if before is None else f"{rate} (layers {before:g})"


def _error_of(metric: str) -> str:
  """The name of the standard error over images of a metric."""
  return f"{metric.removesuffix('_backwards')}_standard_error"


def _error_of_partition(one: _Estimate) -> str:
  if not one.name.startswith("log_likelihood"):
    return "-"
  metric = one.name.replace("log_likelihood", "log_partition")
  errors = one.values(f"{metric}_standard_error")
  return f"{statistics.fmean(errors):.2g}" if errors else "-"
