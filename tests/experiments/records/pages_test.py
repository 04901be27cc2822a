"""Numbers of records in the text of pages."""

import json

import pytest
from report_cases import make_record

from experiments.records import pages, tables


@pytest.fixture
def named(tmp_path):
  for seed, error in enumerate((0.5, 1.0, 1.5)):
    metrics = {"test_error_percent": error, "curve": [0.25, error], "views": 3}
    lines = [
      make_record(seed, metrics=metrics),
      make_record(seed, suite="views", metrics={"accuracy": error / 2}),
    ]
    text = "\n".join(map(json.dumps, lines))
    (tmp_path / f"net-{seed}.jsonl").write_text(text)
  return pages.read(tmp_path)


@pytest.mark.parametrize(
  "words, expected",
  [
    ("net test_error_percent .2f", "1.00 ± 0.50"),
    ("net curve@0 .0%", "25 ± 0"),  # equal in all seeds, and yet measured
    ("net views .0f", "3"),  # a setting
    ("net:views accuracy .1f", "0.5 ± 0.2"),
    ("net test_error_percent n", "3"),
  ],
)
def test_a_number_is_filled_in(named, words, expected):
  text = f"of <!--= {words} -->old\ntext<!--/--> percent"
  filled = pages.fill(text, named)
  assert filled == f"of <!--= {words} -->{expected}<!--/--> percent"
  assert pages.fill(filled, named) == filled


@pytest.mark.parametrize(
  "words, message",
  [
    ("net test_error_percent", "give RECORD"),
    ("nets test_error_percent .2f", "no record 'nets'"),
    ("net:view accuracy .2f", "no record 'net:view'"),
    ("net errors .2f", "metric 'errors'"),
    ("net curve .2f", "curve is a curve; give one number, as curve@0"),
    ("net curve@2 .2f", "curve has no number @2"),
    ("net curve@last .2f", "curve has no number @last"),
    ("net test_error_percent@0 .2f", "test_error_percent has no number @0"),
  ],
)
def test_what_is_not_recorded_is_named(named, words, message):
  with pytest.raises(ValueError, match=message):
    pages.fill(f"<!--= {words} -->1<!--/-->", named)


def test_seeds_of_different_data_have_no_mean():
  group = [
    make_record(seed, data={"train": letter * 64, "test": "b" * 64})
    for seed, letter in enumerate("ac")
  ]
  with pytest.raises(ValueError, match="seeds 0, 1 of .*different data"):
    pages.value("x test_error_percent .2f", {"x": group})
  with pytest.raises(ValueError, match="different data"):
    tables.by_seed({"x": group}, "x", "", "test_error_percent")
  apart = [{**record, "preset": "solids_cpu_vector"} for record in group]
  shown = tables.fingerprint(apart)
  assert shown == "aaaaaaa bbbbbbb, ccccccc bbbbbbb"
  repeated = {"x": [make_record(0), make_record(0)]}
  with pytest.raises(ValueError, match="2 records are of seed 0"):
    tables.by_seed(repeated, "x", "", "test_error_percent")
