"""Records of measurements without a run."""

import json

import pytest

from experiments.records import measurements, records
from experiments.run import provenance
from experiments.run.invocation import Invocation

_MADE_BY = Invocation("measure_x", command="make measurements", dataset="none")


@pytest.fixture(autouse=True)
def committed(monkeypatch):
  """The code is as a commit has it."""
  monkeypatch.setattr(provenance, "commit", lambda: "0" * 40)
  monkeypatch.setattr(provenance, "is_dirty", lambda: False)


def test_a_record_is_read_again_with_its_provenance(tmp_path):
  path = tmp_path / "x-0.jsonl"
  measurements.write(path, _MADE_BY, "costs", {"ms": 1.5}, seconds=2.0)
  (record,) = records.read(tmp_path)
  assert record["metrics"] == {"ms": 1.5} and record["suite"] == "costs"
  assert record["command"] == "make measurements" and record["seconds"] == 2
  assert record["versions"]["jax"] and record["device"]
  # A second measurement replaces the first.
  measurements.write(path, _MADE_BY, "costs", {"ms": 2.5}, seconds=2.0)
  assert json.loads(path.read_text())["metrics"] == {"ms": 2.5}


def test_the_file_may_be_in_the_home_folder(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  measurements.write("~/x-0.jsonl", _MADE_BY, "costs", {"ms": 1.5}, seconds=2.0)
  (record,) = records.read(tmp_path)
  assert record["metrics"] == {"ms": 1.5}


def test_what_is_no_record_leaves_the_file_as_it_was(tmp_path):
  path = tmp_path / "x-0.jsonl"
  measurements.write(path, _MADE_BY, "costs", {"ms": 1.5}, seconds=2.0)
  with pytest.raises(ValueError, match="x-0.jsonl, line 1: "):
    measurements.write(path, _MADE_BY, "costs", {"ms": 1.5}, seconds=None)
  assert json.loads(path.read_text())["metrics"] == {"ms": 1.5}


def test_code_that_no_commit_holds_makes_no_record(tmp_path, monkeypatch):
  monkeypatch.setattr(provenance, "is_dirty", lambda: True)
  path = tmp_path / "x-0.jsonl"
  with pytest.raises(ValueError, match="no commit holds the code"):
    measurements.write(path, _MADE_BY, "costs", {"ms": 1.5}, seconds=2.0)
  assert not path.exists()
