"""The table of routings, from records whose numbers are known."""

import pytest
from report_cases import make_record

from capjax.layers import routers
from experiments.records import routings


def seeds(errors, **suites):
  found = [
    make_record(seed, metrics={"test_error_percent": error})
    for seed, error in enumerate(errors)
  ]
  return found + [
    make_record(seed, suite=suite, metrics=metrics)
    for suite, metrics in suites.items()
    for seed in range(len(errors))
  ]


NAMED = {
  "routings_digits_uniform": seeds([2.0, 4.0, 6.0]),
  "routings_digits_em": seeds(
    [1.0, 4.0, 4.0],
    parse_tree={"routing_entropy": 0.25, "share_to_class": 0.5},
    starvation={"dead_capsules": 0.125},
  ),
  "routings_digits_em_2": seeds([0.0]),
  "routing_costs": [
    make_record(
      suite="costs_of_a_batch",
      metrics={"em_forward_ms": 1.5, "em_gradient_megabytes": 2.0},
    )
  ],
  "routing_fuzz": [
    make_record(suite="fuzz", metrics={"em_cases": 40, "em_not_finite": 3})
  ],
}


def test_rows_are_routings_with_records_from_the_lowest_error_up():
  lines = routings.table(NAMED).splitlines()
  header, _, *rows = (
    [cell.strip() for cell in line.strip("|").split("|")] for line in lines
  )
  assert [row[0] for row in rows] == ["`em`", "`uniform`"]
  em, uniform = (dict(zip(header, row, strict=True)) for row in rows)
  assert em["error (%)"] == "3.00 ± 1.73" and em["n"] == "3"
  # Seed by seed: -1, 0 and -2.
  assert em["against even shares (points)"] == "-1.00 ± 1.00"
  assert uniform["against even shares (points)"] == "-"
  assert em["entropy of shares"] == "0.250 ± 0.000"
  assert em["share to the class (%)"] == "50.0 ± 0.0"
  assert em["dead capsules (%)"] == "12.5 ± 0.0"
  assert em["forward (ms)"] == "1.50" and em["not finite"] == "3 of 40"
  assert uniform["entropy of shares"] == uniform["not finite"] == "-"


def test_routings_are_listed_by_name():
  lines = routings.by_name({}).splitlines()
  assert len(lines) == 2 + len(routers.NAMES)
  (em,) = [x for x in lines if x.startswith('| `"em"` |')]
  assert "Hinton et al., 2018" in em and em.endswith("`gradient` | yes |")
  (uniform,) = [x for x in lines if x.startswith('| `"uniform"` |')]
  assert uniform.endswith("| - | no |")


def test_differences_are_of_the_seeds_that_both_have():
  named = {"a": seeds([1.0, 2.0, 5.0]), "b": seeds([3.0, 1.0])}
  assert routings.differences(named, "a", "b") == pytest.approx([-2, 1])
  assert routings.table(named) == ""


def test_what_is_plotted_are_the_values_of_seeds():
  found = routings.plotted(NAMED)
  assert found["error (%)"]["em"] == [1.0, 4.0, 4.0]
  assert found["entropy of shares"]["em"] == [0.25] * 3
  assert found["entropy of shares"]["uniform"] == []
