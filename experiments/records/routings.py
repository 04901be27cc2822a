"""The table of routings: properties of one small network with each of them.

Rows come from the records `routings_digits_NAME-SEED`, their suites, and the
measurements `routing_costs` and `routing_fuzz`.
"""

import statistics
from collections.abc import Mapping, Sequence

from capjax.layers import routers

from . import tables

STEM = "routings_digits_"
_CONTROL = "uniform"
# Heading; suite; metric; factor; format.
_COLUMNS = (
  ("entropy of shares", "parse_tree", "routing_entropy", 1, ".3f"),
  ("mutual information", "parse_tree", "image_information", 1, ".3f"),
  ("share to the class (%)", "parse_tree", "share_to_class", 100, ".1f"),
  ("same parents when rotated", "parse_tree", "rotation_kappa", 1, ".2f"),
  ("when shifted", "parse_tree", "shift_kappa", 1, ".2f"),
  ("dead capsules (%)", "starvation", "dead_capsules", 100, ".1f"),
  ("classes changed by rotation (%)", "moved", "rotation_changed", 100, ".1f"),
  ("by shift (%)", "moved", "shift_changed", 100, ".1f"),
  ("poses changed by rotation", "moved", "rotation_invariance_error", 1, ".2f"),
  ("by shift", "moved", "shift_invariance_error", 1, ".2f"),
)
# Heading; metric after the name of the routing; format.
_COSTS = (
  ("forward (ms)", "forward_ms", ".2f"),
  ("with gradient (ms)", "gradient_ms", ".2f"),
  ("memory, forward (MB)", "forward_megabytes", ".1f"),
  ("with gradient (MB)", "gradient_megabytes", ".1f"),
)
Named = Mapping[str, Sequence[dict]]


def table(named: Named) -> str:
  """The table in Markdown, the lowest error first; empty without records.

  Args:
    named: what `pages.read` returns.
  """
  rows = {
    name: _row(name, named)
    for name in routers.NAMES
    if errors(named, STEM + name)
  }
  header = ["routing", "error (%)", "against even shares (points)", "n"]
  header += [heading for heading, *_ in (*_COLUMNS, *_COSTS)]
  header.append("not finite")
  by_error = sorted(
    rows, key=lambda x: statistics.fmean(errors(named, STEM + x).values())
  )
  return tables.markdown(header, [rows[name] for name in by_error])


def by_name(named: Named) -> str:
  """The routings that layers know by name, in Markdown.

  Args:
    named: not used; the other tables need it.
  """
  del named
  lines = [
    [
      f'`"{name}"`',
      row.source,
      ", ".join(f"`{option}`" for option in row.options) or "-",
      "yes" if row.uses_activations else "no",
    ]
    for name, row in routers.ROUTERS.items()
  ]
  header = ["name", "how it routes", "options", "uses activations of parts"]
  return tables.markdown(header, lines)


def errors(named: Named, stem: str) -> dict[int, float]:
  """The test error in percent of each seed of a record."""
  return tables.by_seed(named, stem, "", "test_error_percent")


def differences(named: Named, stem: str, other: str) -> list[float]:
  """Test errors of one record minus those of another, seed by seed."""
  return tables.differences(errors(named, stem), errors(named, other))


def plotted(named: Named) -> dict[str, dict[str, list[float]]]:
  """Some columns of the table, for a figure: by heading, routing and seed."""
  wanted = {
    "error (%)": ("", "test_error_percent", 1),
    "entropy of shares": ("parse_tree", "routing_entropy", 1),
    "mutual information": ("parse_tree", "image_information", 1),
    "same parents,\nrotated": ("parse_tree", "rotation_kappa", 1),
    "classes changed\nby rotation (%)": ("moved", "rotation_changed", 100),
  }
  return {
    heading: {
      name: [
        factor * x
        for x in tables.by_seed(named, STEM + name, suite, metric).values()
      ]
      for name in routers.NAMES
    }
    for heading, (suite, metric, factor) in wanted.items()
  }


def _row(name: str, named: Named) -> list[str]:
  stem = STEM + name
  found = errors(named, stem)
  apart = differences(named, stem, STEM + _CONTROL)
  cells = [
    f"`{name}`",
    tables.mean([*found.values()], ".2f", ".2f"),
    "-" if name == _CONTROL else tables.mean(apart, "+.2f", ".2f") or "-",
    str(len(found)),
  ]
  for _, suite, metric, factor, form in _COLUMNS:
    values = [
      factor * x for x in tables.by_seed(named, stem, suite, metric).values()
    ]
    cells.append(tables.mean(values, form, form) or "-")
  for _, metric, form in _COSTS:
    values = tables.by_seed(
      named, "routing_costs", "costs_of_a_batch", f"{name}_{metric}"
    )
    cells.append(tables.mean([*values.values()], form, form) or "-")
  bad, cases = (
    tables.by_seed(named, "routing_fuzz", "fuzz", f"{name}_{what}").get(0)
    for what in ("not_finite", "cases")
  )
  return [*cells, "-" if cases is None else f"{bad} of {cases}"]
