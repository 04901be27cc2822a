"""A page of tables that compare short runs of one preset."""

import collections
import re
from collections.abc import Iterable, Sequence

from . import densities, published, tables

_TITLE = """# Sweeps

Short runs of one preset with different flags; written by `python -m
experiments.report`. Accuracies are those of linear probes, of the presences of
objects (t) or of presences and poses; on test images placed as in training, on
images rotated by any angle, and on affine views. Choose settings by the columns
of validation, which some older runs lack. The objective of generative capsules
is the ELBO with `--gaussian_poses`. Without it poses are point estimates and
the objective is no bound on log p(x): it depends on the unit of poses and grows
as their scales fall, so it cannot compare floors or priors of scales, or
numbers of capsules.
"""
_SWEPT = ("Seeds", "Commit", "Device")
_ACCURACY = 100.0
# The columns of sweeps, in order; those that no run has are left out.
_COMPARED = {
  "validation_objective": ("validation: objective (nats)", 1.0),
  "validation_reconstruction_loss": ("validation: squared error", 1.0),
  "validation_reconstruction_error": ("validation: absolute error", 1.0),
  "validation_posterior_match_accuracy": (
    "validation: without labels (%)", _ACCURACY
  ),
  "validation_presence_accuracy": ("validation: t (%)", _ACCURACY),
  "validation_presence_and_pose_accuracy": (
    "validation: t, poses (%)", _ACCURACY
  ),
  "novel_error_percent": ("error, novel viewpoints (%)", 1.0),
  "test_familiar_accuracy": ("accuracy, familiar viewpoints (%)", _ACCURACY),
  "test_objective": ("objective (nats)", 1.0),
  "bound_1": ("bound, 1 sample", 1.0),
  "bound_100": ("bound, 100 samples", 1.0),
  "effective_samples_100": ("effective of 100", 1.0),
  "test_reconstruction_loss": ("squared error", 1.0),
  "test_reconstruction_error": ("absolute error", 1.0),
  "posterior_match_accuracy": ("without labels (%)", _ACCURACY),
  "presence_accuracy": ("t (%)", _ACCURACY),
  "presence_and_pose_accuracy": ("t, poses (%)", _ACCURACY),
  "rotated_presence_accuracy": ("rotated: t (%)", _ACCURACY),
  "rotated_presence_and_pose_accuracy": ("rotated: t, poses (%)", _ACCURACY),
  "affnist_like_presence_accuracy": ("views: t (%)", _ACCURACY),
  "affnist_like_presence_and_pose_accuracy": (
    "views: t, poses (%)", _ACCURACY
  ),
}  # fmt: skip


def page(records: Iterable[dict]) -> str:
  """Returns Markdown of sweeps: one table for each preset, a row a setting.

  A row holds the metrics of training and of the evaluations.
  """
  presets = collections.defaultdict(lambda: collections.defaultdict(list))
  for record in records:
    given = " ".join(
      f"`{word}`" for word in published.changes(record["command"])
    )
    preset = record["preset"], record["dataset"]
    presets[preset][given or "as it is", record["device"]].append(record)
  parts = [_TITLE]
  for (preset, dataset), settings in sorted(presets.items()):
    rows = collections.defaultdict(list)
    for (given, device), peers in settings.items():
      for record in peers:
        name = " ".join([given, *tables.words_apart(record, peers)])
        rows[name, device].append(record)
    having = {x for group in rows.values() for r in group for x in r["metrics"]}
    columns = {x: form for x, form in _COMPARED.items() if x in having}
    cells = [
      _compared(*row, columns)
      for row in rows.items()
      if any(x in record["metrics"] for x in columns for record in row[1])
    ]
    header = ["Flags", *(label for label, _ in columns.values()), *_SWEPT]
    parts += tables.section(
      f"{preset} on {dataset}",
      tables.markdown(header, sorted(cells, key=_by_number)),
    )
  parts += tables.section(densities.TITLE, densities.full(records))
  return "\n".join(parts)


def _compared(
  name: tuple[str, str], group: Sequence[dict], columns: dict[str, tuple]
) -> list[str]:
  """The cells of a row of sweeps, from all records of each seed."""
  seeds = collections.defaultdict(dict)
  for record in group:
    seeds[record["seed"]].update(record["metrics"])
  cells = []
  for metric, (label, factor) in columns.items():
    values = [factor * x[metric] for x in seeds.values() if metric in x]
    digits = ".1f" if label.endswith("(%)") else ".4g"
    cells.append(tables.mean(values, digits, ".2g") or "-")
  words, device = name
  return [words, *cells, str(len(seeds)), tables.commits(group), device]


def _by_number(row: Sequence[str]) -> tuple[list[str | float], str]:
  """Sorts rows by their names, and by numbers within them as numbers."""
  words = re.split(r"(\d+\.?\d*)", row[0].replace("as it is", ""))
  words = [float(word) if i % 2 else word for i, word in enumerate(words)]
  return words, row[-1]
