"""The table of deeper networks, from no records, and from some."""

import pathlib
import re

from report_cases import make_record, rows_of

from experiments.records import networks

_ROOT = pathlib.Path(__file__).parents[3]


def records(errors, dead):
  return [
    record
    for seed, error in enumerate(errors)
    for record in (
      make_record(seed, metrics={"test_error_percent": error}),
      make_record(seed, suite="starvation", metrics={"dead_capsules": dead}),
    )
  ]


def rows(named):
  header, *found = rows_of(named, networks.table)
  assert {len(row) for row in found} == {len(header)}
  return header, found


def test_without_records_it_says_so():
  assert networks.table({}) == networks.NONE
  assert networks.table({"routings_digits_em": records([1.0], 0.0)}) == (
    networks.NONE
  )


def test_missing_depths_are_dashes():
  header, (first, second) = rows(
    {
      "networks_fashion_em_1": records([8.125], 0.5),
      "networks_mnist_grid_1": records([1.0, 2.0, 3.0], 0.25),
      "networks_mnist_grid_3": records([4.0], 0.75),
    }
  )
  assert (
    header[2] == "error (%), 1 layer" and header[4] == "error (%), 3 layers"
  )
  assert first == [
    "MNIST", "3D convolutions of DeepCaps", "2.00 ± 1.00", "-", "4.00",
    "25.0 ± 0.0", "-", "75.0", "1 to 3",
  ]  # fmt: skip
  assert second == [
    "Fashion-MNIST", "`em`", "8.12", "-", "-", "50.0", "-", "-", "1"
  ]  # fmt: skip


def test_records_of_the_tables_are_those_that_are_made():
  makefile = (_ROOT / "results" / "records.mk").read_text()
  call = r"\$\(call network,\$\(data\),(\w+),([\d ]+),"
  made = dict(re.findall(call, makefile))
  assert sorted(made) == sorted(networks.ROWS)
  assert f"$(foreach data,{' '.join(networks.DATA)}," in makefile
  depths = " ".join(map(str, networks.DEPTHS))
  assert set(made.values()) == {depths}
  stem = f"{networks.STEM}$(1)_$(2)_$(depth)"
  assert f"$(foreach depth,$(3),$(eval train.{stem} :=" in makefile
